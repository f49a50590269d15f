//! The threads that answer tokens with masks.
//!
//! A mask takes tens to hundreds of microseconds, too long for a thread that streams. Each constrained sequence is a
//! [`Job`], which is its own waker: the token reader wakes it, a worker takes it, feeds the new tokens to its matcher and delivers
//! the next mask, while the engine is already computing the step that needs it. Whether and when the client reads its stream makes no difference.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use izar_transport::client::{FeedProgress, MaskFeed};
use llguidance::Matcher;

use super::Constraint;

/// Most threads. One keeps up with some thousand masks a second.
const MAX_WORKERS: usize = 8;

/// What came of a constrained sequence, as far as its grammar goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The answer is complete with this many tokens: nothing can follow.
    Complete {
        /// Tokens of the answer.
        num_tokens: u32,
    },
    /// No mask can be made for the next token.
    Failed,
}

/// Tells a choice what its grammar came to. The sequence's reader is woken when there is news.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<OnceLock<Outcome>>);

impl Watch {
    /// The outcome, once there is one.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.0.get()
    }
}

/// The threads, which are started for the first job.
#[derive(Default)]
pub struct MaskWorkers {
    queue: Arc<Queue>,
    started: OnceLock<()>,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Arc<Job>>,
    is_closed: bool,
}

/// One constrained sequence.
struct Job {
    queue: Arc<Queue>,
    /// In the queue, or about to be.
    is_queued: AtomicBool,
    /// Gone when there is nothing left to do. Locked by the worker that has the job.
    work: Mutex<Option<Work>>,
}

struct Work {
    feed: MaskFeed,
    matcher: Matcher,
    watch: Watch,
    num_tokens: u32,
    /// Words of 32 bits in a mask.
    mask_words: usize,
    tokens: Vec<u32>,
    /// Masks made by a worker, and the time that they and their tokens took.
    num_masks: u32,
    busy: Duration,
}

impl MaskWorkers {
    /// Delivers the masks of `constraint` to `feed` until the answer is complete or the sequence is over.
    pub fn run(&self, constraint: &Constraint, feed: MaskFeed, vocab_size: u32) -> Watch {
        self.started.get_or_init(|| self.start());
        let watch = Watch::default();
        let mut work = Work {
            feed,
            matcher: constraint.matcher(),
            watch: watch.clone(),
            num_tokens: 0,
            mask_words: vocab_size.div_ceil(32) as usize,
            tokens: Vec::new(),
            num_masks: 0,
            busy: Duration::ZERO,
        };
        // The first mask is every answer's and was made when the format was compiled.
        let goes_on = work.deliver(constraint.first_mask());
        let job = Arc::new(Job {
            queue: Arc::clone(&self.queue),
            is_queued: AtomicBool::new(false),
            work: Mutex::new(goes_on.then_some(work)),
        });
        job.wake();
        watch
    }

    fn start(&self) {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for i in 0..(cores / 4).clamp(1, MAX_WORKERS) {
            let queue = Arc::clone(&self.queue);
            let spawned = std::thread::Builder::new()
                .name(format!("izar-masks-{i}"))
                .spawn(move || queue.serve());
            if let Err(error) = spawned {
                tracing::error!(%error, "cannot start a thread for masks: structured output will stall");
            }
        }
    }
}

impl Drop for MaskWorkers {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_all();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Pushes and pops leave it consistent.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker's life.
    fn serve(&self) {
        while let Some(job) = self.next() {
            job.run();
        }
    }

    fn next(&self) -> Option<Arc<Job>> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_closed {
                return None;
            }
            if let Some(job) = waiting.jobs.pop_front() {
                return Some(job);
            }
            waiting = self
                .changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        // Acquire and release: whoever finds it set has its news looked at by the run that clears it.
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let queue = Arc::clone(&self.queue);
        queue.lock().jobs.push_back(self);
        queue.changed.notify_one();
    }
}

impl Job {
    fn run(self: Arc<Self>) {
        // Cleared before the look: news that comes during it queues the job again.
        self.is_queued.swap(false, Ordering::AcqRel);
        let waker = Waker::from(Arc::clone(&self));
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = work
            .as_mut()
            .is_some_and(|work| work.turn(&mut Context::from_waker(&waker)));
        if !goes_on {
            *work = None;
        }
    }
}

impl Work {
    /// Answers what has come; false when there is nothing left to do.
    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            match self.feed.poll_tokens(cx, &mut self.tokens) {
                Poll::Pending => return true,
                Poll::Ready(FeedProgress::Over) => return false,
                Poll::Ready(FeedProgress::Tokens) => {}
            }
            let begun = Instant::now();
            let goes_on = self.answer();
            self.busy += begun.elapsed();
            self.num_masks += 1;
            if !goes_on {
                self.feed.wake_handle();
                return false;
            }
        }
    }

    /// Feeds the tokens at hand to the grammar and delivers the next mask; false after the last.
    fn answer(&mut self) -> bool {
        self.num_tokens += self.tokens.len() as u32;
        let consumed = self.matcher.consume_tokens(&self.tokens);
        self.tokens.clear();
        if let Err(error) = consumed {
            return self.fail(&error);
        }
        if self.matcher.is_stopped() {
            return self.end(Outcome::Complete {
                num_tokens: self.num_tokens,
            });
        }
        match self.matcher.compute_mask() {
            Ok(mask) => self.deliver(mask.as_slice()),
            Err(error) => self.fail(&error),
        }
    }

    fn deliver(&mut self, mask: &[u32]) -> bool {
        let mask = &mask[..self.mask_words.min(mask.len())];
        self.feed.deliver(Some(mask)).unwrap_or_else(|error| {
            // The sequence ends by that, too.
            tracing::debug!(%error, "a mask was not delivered");
            false
        })
    }

    fn fail(&self, error: &dyn std::fmt::Display) -> bool {
        tracing::warn!(%error, "a grammar could not go on");
        self.end(Outcome::Failed)
    }

    fn end(&self, outcome: Outcome) -> bool {
        // Set once: the work ends with it.
        let _ = self.watch.0.set(outcome);
        false
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mean = self.busy / self.num_masks.max(1);
        tracing::debug!(
            num_masks = self.num_masks,
            ?mean,
            "a constrained sequence is over"
        );
    }
}
