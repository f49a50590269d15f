//! The driver: an engine that serves a ring.
//!
//! [`Engine::start`] takes the engine's end of a ring, starts the scheduler thread, and returns; the thread alternates between ring,
//! policy and executor as the [`Placement`] says until [`Engine::stop`]. Only that thread touches the ring's engine
//! side, the policy and the executor.
//!
//! ```text
//!  ring ──scan, claim──► Scheduler ──plan──► StepWork ──launch──► Executor
//!   ▲                       ▲                                        │
//!   └──publish, complete────┴──────────────StepWork◄──────wait───────┘
//! ```

mod clock;
mod executor;
mod placement;
mod scheduler;
mod stats;
mod study;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use izar_policy::{Config, ConfigError, OwnedState};
use izar_ring::{EngineError, EngineInfo, EngineState};
use izar_transport::EngineEnd;
use thiserror::Error;

use crate::sampling::SeedSource;
use scheduler::{Parts, Scheduler};
pub(crate) use stats::Control;

pub use clock::now_ns;
pub use executor::{
    Executor, ExecutorFailed, NoToken, PromptLogprobs, RowBinding, RowSample, StepEntry,
    StepOutput, StepWork, StopLimits,
};
pub use placement::{Placement, UnknownPlacement};
pub use stats::StepTimes;
pub use study::{Overlap, OverlapSwitch, StepGate, StepLog, StepRecord, Study};

/// What an engine is started with, besides its executor.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Sizes and switches of the policy. The executor must have been built for the same.
    pub policy: Config,
    /// Where planning happens.
    pub placement: Placement,
    /// Root of the seeds of requests that bring none; from the operating system if not given.
    pub seed: Option<u64>,
    /// Vocabulary of the model: logits per row.
    pub vocab_size: u32,
    /// What front ends call the model.
    pub model_name: String,
    /// What computes, for people.
    pub hardware: String,
    /// How long a masked sequence waits for one mask before it fails.
    pub mask_timeout: Duration,
    /// What an experiment changes and watches; the default is nothing.
    pub study: Study,
}

/// Default of [`EngineOptions::mask_timeout`]: as long as a front end that was stopped for a moment may need.
pub const DEFAULT_MASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an engine did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The policy cannot work with these sizes.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Policy and ring disagree.
    #[error("the policy has {policy} slots, the ring has {ring}")]
    Slots {
        /// Slots of the policy.
        policy: u32,
        /// Slots of the ring.
        ring: u32,
    },
    /// The placement is not for a scheduler on the host.
    #[error("--scheduler {0} needs a CUDA device: use host-sync or host-async")]
    Placement(Placement),
    /// The operating system refused a thread.
    #[error("cannot start the scheduler thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running engine. Dropping it stops it.
pub struct Engine {
    control: Arc<Control>,
    thread: Option<JoinHandle<Result<(), ExecutorFailed>>>,
}

impl Engine {
    /// Starts an engine that serves `ring`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        options: EngineOptions,
        mut ring: EngineEnd,
        executor: Box<dyn Executor>,
    ) -> Result<Self, StartError> {
        if options.placement == Placement::Gpu {
            return Err(StartError::Placement(options.placement));
        }
        let policy = OwnedState::new(options.policy)?;
        if ring.layout().num_slots() != options.policy.num_slots {
            return Err(StartError::Slots {
                policy: options.policy.num_slots,
                ring: ring.layout().num_slots(),
            });
        }
        ring.describe(&EngineInfo {
            max_model_len: options.policy.max_total_len(),
            vocab_size: options.vocab_size,
            block_size: options.policy.block_size,
            num_kv_blocks: options.policy.num_blocks,
            max_num_seqs: options.policy.max_num_seqs,
            max_num_batched_tokens: options.policy.max_num_batched_tokens,
            model_name: &options.model_name,
            placement: &options.placement.to_string(),
            hardware: &options.hardware,
        });
        let control = Arc::new(Control::default());
        let scheduler = Scheduler::new(Parts {
            ring,
            policy,
            control: Arc::clone(&control),
            seeds: options
                .seed
                .map_or_else(SeedSource::from_os, SeedSource::new),
            vocab_size: options.vocab_size,
            mask_timeout: options.mask_timeout,
            study: options.study,
        });
        let placement = options.placement;
        let thread = std::thread::Builder::new()
            .name("izar-scheduler".into())
            .spawn(move || serve(placement, scheduler, executor))?;
        Ok(Self {
            control,
            thread: Some(thread),
        })
    }

    /// An engine that schedules itself elsewhere; `watch` looks after it on a thread until it has ended or is to stop.
    pub(crate) fn watched(
        name: &str,
        watch: impl FnOnce(&Control) -> Result<(), ExecutorFailed> + Send + 'static,
    ) -> Result<Self, StartError> {
        let control = Arc::new(Control::default());
        let watched = Arc::clone(&control);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || watch(&watched))?;
        Ok(Self {
            control,
            thread: Some(thread),
        })
    }

    /// Where the steps' time went so far.
    pub fn times(&self) -> StepTimes {
        self.control.times()
    }

    /// Whether the scheduler thread has ended, by failure if nobody stopped it.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends what runs, with an error to its clients, and joins the scheduler thread.
    ///
    /// # Errors
    /// [`ExecutorFailed`] if that is what ended the engine earlier.
    pub fn stop(mut self) -> Result<(), ExecutorFailed> {
        self.join()
    }

    fn join(&mut self) -> Result<(), ExecutorFailed> {
        self.control.stop();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(ExecutorFailed("the scheduler thread panicked".into())),
            None => Ok(()),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Whoever wants to know why calls `stop`.
        let _ = self.join();
    }
}

/// The scheduler thread.
fn serve(
    placement: Placement,
    mut scheduler: Scheduler,
    mut executor: Box<dyn Executor>,
) -> Result<(), ExecutorFailed> {
    scheduler.open();
    let result = placement::run(placement, &mut scheduler, executor.as_mut());
    match &result {
        Ok(()) => scheduler.close(EngineState::Stopped, EngineError::EngineStopping),
        Err(error) => {
            tracing::error!(%error, "the engine failed");
            scheduler.close(EngineState::Failed, EngineError::EngineFailed);
        }
    }
    result
}
