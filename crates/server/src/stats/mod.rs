//! The stream that the page at `/` watches: everything `/metrics` has, the ring's slots and the engine's latest steps, a few times a second.
//!
//! What it sends is `docs/stats.md`; the numbers come from the same walk over the same registry as those of `/metrics`.
//!
//! Nobody watching, there is nothing here but an empty list: no task, no timer, nothing sampled. The first watcher starts the sampler, a task
//! that looks every [`INTERVAL`] (on a thread for blocking work, as it reads /proc), writes down what has changed since it last looked
//! and puts the same bytes into every watcher's inbox. The last one to leave ends it. A watcher that does not read fills its own inbox and no
//! other; when it reads again it gets a whole snapshot for what it has missed.
//!
//! [`Stats`] owns all of it under one lock, which the sampler holds while it compares and encodes, and a watcher while it comes, goes or
//! catches up. An inbox has a lock of its own that is taken inside that one or alone.

mod encode;
mod sample;
#[cfg(test)]
mod tests;
mod watcher;
mod window;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use izar_transport::client::{EngineStatus, RingClient, StepRecord};
use serde_json::json;
use tokio::task::AbortHandle;
use tokio::time::MissedTickBehavior;

use crate::app::ServedModel;
use crate::drain::Drain;
use crate::error::{ApiError, Shortage};
use crate::metrics::Metrics;
use sample::Sample;
use watcher::Inbox;
pub use watcher::Watcher;
use window::Window;

/// From sample to sample.
const INTERVAL: Duration = Duration::from_millis(250);
/// Watchers at once. People watch, a few of them; machines read `/metrics`.
const MAX_WATCHERS: usize = 16;
/// Steps in one event. More would not be seen anyway.
const MAX_STEPS: usize = 256;

/// What there is to see, and who watches.
pub struct Stats {
    source: Source,
    watching: Mutex<Watching>,
}

/// Where samples come from.
pub struct Source {
    /// The ring.
    pub client: Arc<RingClient>,
    /// The registry.
    pub metrics: Arc<Metrics>,
    /// Answers in flight.
    pub drain: Arc<Drain>,
    /// What does not change, as the members of a JSON object.
    pub about: String,
}

#[derive(Default)]
struct Watching {
    inboxes: Vec<Arc<Inbox>>,
    /// There while there are inboxes.
    live: Option<Live>,
    /// Samplers started so far.
    num_started: u64,
}

/// What watchers have been told so far.
struct Live {
    /// Which sampler keeps it.
    sampler: u64,
    seq: u64,
    last: Sample,
    /// The latest of all steps seen, oldest first.
    steps: VecDeque<StepRecord>,
    window: Window,
    task: AbortHandle,
}

impl Stats {
    /// Nobody watches `source` yet.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            watching: Mutex::default(),
        }
    }

    /// Lets one more watch: it gets a snapshot and then what changes. Blocks for a first sample; call it in a runtime.
    ///
    /// # Errors
    /// [`ApiError::Draining`] once the server is shutting down, [`ApiError::AtCapacity`] where enough watch already.
    pub fn watch(self: &Arc<Self>) -> Result<Watcher, ApiError> {
        let mut watching = self.lock();
        // Under the lock: `end` takes it after draining has begun, and finds whoever came before.
        if self.source.drain.is_draining() {
            return Err(ApiError::Draining);
        }
        if watching.inboxes.len() >= MAX_WATCHERS {
            return Err(ApiError::AtCapacity {
                shortage: Shortage::TooManyWatchers,
                retry_after_s: 10,
            });
        }
        let Watching {
            live, num_started, ..
        } = &mut *watching;
        let live = live.get_or_insert_with(|| {
            *num_started += 1;
            self.start(*num_started)
        });
        let inbox = Arc::new(Inbox::holding(encode::snapshot(&self.source.about, live)));
        watching.inboxes.push(Arc::clone(&inbox));
        Ok(Watcher::new(Arc::clone(self), inbox))
    }

    /// Tells every watcher that the server drains, and ends. Draining must have begun.
    pub fn end(&self) {
        let mut watching = self.lock();
        for inbox in watching.inboxes.drain(..) {
            inbox.end(encode::end("draining"));
        }
        watching.stop();
    }

    /// Takes the first sample and starts the task that takes the others.
    fn start(self: &Arc<Self>, sampler: u64) -> Live {
        let first = Sample::take(&self.source, 0);
        let stats = Arc::clone(self);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first is now.
            ticks.tick().await;
            loop {
                ticks.tick().await;
                let stats = Arc::clone(&stats);
                let ticked = tokio::task::spawn_blocking(move || stats.tick(sampler)).await;
                if !matches!(ticked, Ok(true)) {
                    return;
                }
            }
        });
        let mut window = Window::default();
        window.push(first.point.clone());
        Live {
            sampler,
            seq: 0,
            steps: first.steps.iter().copied().collect(),
            last: first,
            window,
            task: task.abort_handle(),
        }
    }

    /// Looks, and tells everybody what has changed. False if `sampler` has been ended.
    fn tick(&self, sampler: u64) -> bool {
        let next_step = match &self.lock().live {
            Some(live) if live.sampler == sampler => live.last.next_step,
            _ => return false,
        };
        let sample = Sample::take(&self.source, next_step);
        let mut watching = self.lock();
        let Some(live) = watching.live.as_mut().filter(|it| it.sampler == sampler) else {
            return false;
        };
        live.seq += 1;
        live.window.push(sample.point.clone());
        let delta = encode::delta(live, &sample);
        live.steps.extend(&sample.steps);
        let num_old = live.steps.len().saturating_sub(MAX_STEPS);
        live.steps.drain(..num_old);
        live.last = sample;
        for inbox in &watching.inboxes {
            inbox.put(delta.clone());
        }
        true
    }

    /// A snapshot for a watcher that has missed something; whatever is in its inbox is older. None: it was told the end.
    fn catch_up(&self, inbox: &Inbox) -> Option<Bytes> {
        let watching = self.lock();
        let live = watching.live.as_ref()?;
        inbox.clear();
        Some(encode::snapshot(&self.source.about, live))
    }

    fn leave(&self, inbox: &Arc<Inbox>) {
        let mut watching = self.lock();
        watching.inboxes.retain(|other| !Arc::ptr_eq(other, inbox));
        if watching.inboxes.is_empty() {
            watching.stop();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watching> {
        // A panic while encoding leaves at worst a missing event.
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watching {
    fn stop(&mut self) {
        if let Some(live) = self.live.take() {
            live.task.abort();
        }
    }
}

/// What does not change while the server runs, as the members of a JSON object.
pub fn about(model: &ServedModel, engine: &EngineStatus, needs_key: bool) -> String {
    let server = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": model.names[0],
        "names": model.names,
        "root": model.root,
        "has_chat": model.chat.is_some(),
        "has_tools": model.tool_format.is_some(),
        "has_reasoning": model.reasoning_format.is_some(),
        "needs_key": needs_key,
    });
    let engine = json!({
        "model": engine.model_name,
        "placement": engine.placement,
        "hardware": engine.hardware,
        "max_model_len": engine.max_model_len,
        "vocab_size": engine.vocab_size,
        "block_size": engine.block_size,
        "num_kv_blocks": engine.num_kv_blocks,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
    });
    format!("\"server\":{server},\"engine\":{engine}")
}
