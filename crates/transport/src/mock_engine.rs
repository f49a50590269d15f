//! A mock engine: a real ring, a thread that serves it, and scripted tokens instead of a model.
//!
//! For tests of everything in front of an engine, and for measuring it: with [`MockOptions::step_time`] zero the tokens are
//! ready at once, and whatever time passes is the front end's. It keeps the whole protocol (claims, states, stop ids,
//! cancellation, errors, log probabilities, leases, heartbeat) but has no memory to run out of and computes nothing.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use izar_ring::{EngineError, EngineInfo, EngineState, EngineStats, Request, RingOptions};

mod worker;

use worker::{Worker, now_ns};

use crate::wake::EngineDoorbell;
use crate::{EngineEnd, InProcess, InProcessError};

/// What a scripted request answers.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The tokens, unless `max_tokens` or a stop id comes first.
    pub tokens: ReplyTokens,
    /// What happens after the last one.
    pub end: ReplyEnd,
}

/// Where a reply's tokens come from. Ids are taken modulo the vocabulary size.
#[derive(Debug, Clone)]
pub enum ReplyTokens {
    /// `first`, `first + 1`, …, without end.
    Counting {
        /// The first token.
        first: u32,
    },
    /// These.
    List(Vec<u32>),
    /// The time of its publication in µs: what reads it can tell how long it was on its way.
    Clock,
}

/// What happens after a reply's last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyEnd {
    /// The last token stops the request, as an end-of-sequence token does.
    Stop,
    /// It ends as if it had reached its length.
    Length,
    /// It fails.
    Fail(EngineError),
    /// Nothing, until it is cancelled.
    Hang,
}

impl Reply {
    /// These tokens, the last of which stops the request.
    pub fn tokens(tokens: impl Into<Vec<u32>>) -> Reply {
        Reply {
            tokens: ReplyTokens::List(tokens.into()),
            end: ReplyEnd::Stop,
        }
    }

    /// Counts from `first` until `max_tokens`.
    pub fn counting(first: u32) -> Reply {
        Reply {
            tokens: ReplyTokens::Counting { first },
            end: ReplyEnd::Length,
        }
    }

    /// Tells the time, in µs modulo the vocabulary size, until `max_tokens`.
    pub fn clock() -> Reply {
        Reply {
            tokens: ReplyTokens::Clock,
            end: ReplyEnd::Length,
        }
    }

    /// Fails before the first token.
    pub fn failure(error: EngineError) -> Reply {
        Reply {
            tokens: ReplyTokens::List(Vec::new()),
            end: ReplyEnd::Fail(error),
        }
    }

    fn token(&self, i: u32) -> Option<u32> {
        match &self.tokens {
            ReplyTokens::Counting { first } => Some(first.wrapping_add(i)),
            ReplyTokens::List(list) => list.get(i as usize).copied(),
            ReplyTokens::Clock => Some((now_ns() / 1000) as u32),
        }
    }
}

/// Decides what a request answers, from the request and its prompt.
pub type Script = Arc<dyn Fn(&Request, &[u32]) -> Reply + Send + Sync>;

/// How the mock behaves.
#[derive(Clone)]
pub struct MockOptions {
    /// The answers.
    pub script: Script,
    /// Time from one token of a sequence to its next; zero: as fast as the thread can.
    pub step_time: Duration,
    /// Groups of sequences that take turns within a step time, so that their tokens come spread over it; 1: all at once.
    pub num_groups: u32,
    /// Most sequences running at once; more wait their turn.
    pub max_num_seqs: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Announced, not enforced.
    pub max_model_len: u32,
    /// Announced.
    pub model_name: String,
}

impl Default for MockOptions {
    /// Every request counts from its first prompt token, at once.
    fn default() -> Self {
        MockOptions {
            script: Arc::new(|_, prompt| Reply::counting(prompt[0])),
            step_time: Duration::ZERO,
            num_groups: 1,
            max_num_seqs: 1024,
            vocab_size: 1 << 17,
            max_model_len: 1 << 20,
            model_name: "mock".into(),
        }
    }
}

impl MockOptions {
    /// The default, answering by `script`.
    pub fn scripted(
        script: impl Fn(&Request, &[u32]) -> Reply + Send + Sync + 'static,
    ) -> MockOptions {
        MockOptions {
            script: Arc::new(script),
            ..MockOptions::default()
        }
    }
}

const RUN: u8 = 0;
const FREEZE: u8 = 1;
const KILL: u8 = 2;
const DRAIN: u8 = 3;
const STOP: u8 = 4;
const FAIL: u8 = 5;

/// The running mock. Dropping it stops the engine: what runs ends with [`EngineError::EngineStopping`].
pub struct MockEngine {
    doorbell: EngineDoorbell,
    control: Arc<Control>,
    thread: Option<JoinHandle<EngineEnd>>,
}

#[derive(Default)]
struct Control {
    command: AtomicU8,
    seen: AtomicU64,
    stats: Mutex<EngineStats>,
}

impl MockEngine {
    /// Creates a ring in this process and serves it.
    ///
    /// # Errors
    /// If the ring cannot be created.
    pub fn in_process(
        ring: &RingOptions,
        options: MockOptions,
    ) -> Result<(Arc<InProcess>, MockEngine), InProcessError> {
        let (transport, engine) = InProcess::create(ring)?;
        Ok((transport, MockEngine::serve(engine, options)))
    }

    /// Serves a ring that was created or adopted.
    pub fn serve(mut engine: EngineEnd, options: MockOptions) -> MockEngine {
        engine.describe(&EngineInfo {
            max_model_len: options.max_model_len,
            vocab_size: options.vocab_size,
            block_size: 16,
            num_kv_blocks: 0,
            max_num_seqs: options.max_num_seqs,
            max_num_batched_tokens: 0,
            model_name: &options.model_name,
            placement: "mock",
            hardware: "none: an engine that computes nothing",
        });
        engine.heartbeat(now_ns());
        engine.set_engine_state(EngineState::Ready, None);
        let (doorbell, control) = (engine.doorbell().clone(), Arc::new(Control::default()));
        let worker = Worker::new(engine, options, control.clone());
        let thread = std::thread::Builder::new()
            .name("izar-mock".into())
            .spawn(move || worker.run());
        MockEngine {
            doorbell,
            control,
            thread: Some(thread.expect("a thread can be started")),
        }
    }

    fn tell(&self, command: u8) {
        self.control.command.store(command, Ordering::Release);
        self.doorbell.wake_engine();
    }

    /// Does nothing any more, not even heartbeats, as a stopped process.
    pub fn freeze(&self) {
        self.tell(FREEZE);
    }

    /// Goes on after [`MockEngine::freeze`].
    pub fn thaw(&self) {
        self.tell(RUN);
    }

    /// Says that it is draining: what it has is finished, the state tells front ends to submit nothing new.
    pub fn drain(&self) {
        self.tell(DRAIN);
    }

    /// Fails as a whole: the state says so, and nothing more is served.
    pub fn fail(&mut self) {
        self.end(FAIL);
    }

    /// Dies on the spot without a word; the ring stays as it is. Returns it for a successor.
    pub fn kill(mut self) -> EngineEnd {
        self.tell(KILL);
        self.thread
            .take()
            .expect("not ended yet")
            .join()
            .expect("the mock engine does not panic")
    }

    /// What it counts: `num_running`, `num_waiting`, `num_steps`, `output_tokens`.
    pub fn stats(&self) -> EngineStats {
        *self
            .control
            .stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests claimed so far.
    pub fn num_claimed(&self) -> u64 {
        self.control.seen.load(Ordering::Relaxed)
    }

    fn end(&mut self, command: u8) {
        self.tell(command);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the mock engine panicked");
        }
    }
}

impl Drop for MockEngine {
    fn drop(&mut self) {
        self.end(STOP);
    }
}
