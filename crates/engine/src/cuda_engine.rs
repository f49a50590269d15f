//! From a checkpoint to a running CUDA engine: memory is dealt out, steps are captured, and the driver takes over.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use izar_kernels::{MAX_LAUNCH_WINDOW, ResidentStatus, StepGate};
use izar_model::Checkpoint;
use izar_ring::{RingGeometry, RingOptions};
use izar_transport::{InProcess, InProcessError};
use thiserror::Error;

use crate::cuda::resident::{ResidentOptions, ResidentScheduler, ResidentStartError};
use crate::cuda::{self, BLOCK_SIZE, CudaExecutor, CudaExecutorOptions, ExecutorError};
use crate::driver::{
    DEFAULT_MASK_TIMEOUT, Engine, EngineOptions, Placement, StartError, Study, now_ns,
};
use crate::sampling::SeedSource;
use crate::sizing::{SizeError, Wishes};

/// What an operator may choose. `None` means: worked out from the model and the device.
#[derive(Clone, Debug)]
pub struct CudaEngineOptions {
    /// Where planning happens.
    pub placement: Placement,
    /// Share of the device's memory to use, by this and other processes together.
    pub gpu_memory_utilization: f64,
    /// KV blocks of 16 tokens; what the memory allows if not given.
    pub num_kv_blocks: Option<u32>,
    /// Longest sequence, prompt and output; the model's own limit if not given.
    pub max_model_len: Option<u32>,
    /// Sequences that run at once, at most 1024.
    pub max_num_seqs: u32,
    /// Tokens per step.
    pub max_num_batched_tokens: u32,
    /// Share KV blocks between sequences with equal beginnings.
    pub prefix_caching: bool,
    /// Let a step take part of a prompt.
    pub chunked_prefill: bool,
    /// Root of the seeds of unseeded requests.
    pub seed: Option<u64>,
    /// What front ends call the model.
    pub model_name: String,
    /// What front ends call the machine it runs on.
    pub hardware: String,
    /// What an experiment changes and watches; the default is nothing.
    pub study: Study,
    /// Steps that the scheduler on the device launches before it has to launch itself again. What CUDA allows, unless that is
    /// to be tested.
    pub launch_window: u32,
}

impl Default for CudaEngineOptions {
    fn default() -> Self {
        Self {
            placement: Placement::HostAsync,
            gpu_memory_utilization: 0.9,
            num_kv_blocks: None,
            max_model_len: None,
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            prefix_caching: true,
            chunked_prefill: true,
            seed: None,
            model_name: "model".into(),
            hardware: "GPU".into(),
            study: Study::default(),
            launch_window: MAX_LAUNCH_WINDOW,
        }
    }
}

/// Why the CUDA engine did not start.
#[derive(Debug, Error)]
pub enum CudaStartError {
    /// Sizes that do not go together.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The executor.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The ring could not be made.
    #[error(transparent)]
    Ring(#[from] InProcessError),
    /// The scheduler on the device.
    #[error(transparent)]
    Resident(#[from] ResidentStartError),
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] StartError),
}

/// A running CUDA engine and how to reach it.
pub struct CudaEngine {
    /// The engine. Stop it to learn whether it ended well.
    pub engine: Engine,
    /// The ring, for a front end in this process.
    pub transport: Arc<InProcess>,
    /// What was decided.
    pub summary: CudaSummary,
    /// Where planning happens: as asked for, unless the device does not allow it.
    pub placement: Placement,
    /// What the scheduler on the device tells about itself, if that is the placement.
    pub resident: Option<Arc<ResidentStatus>>,
}

/// What a CUDA engine settled on. Displays as part of a line of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaSummary {
    /// Weights on the device. Bytes.
    pub weight_bytes: u64,
    /// The KV cache. Bytes.
    pub kv_bytes: u64,
    /// KV blocks.
    pub num_kv_blocks: u32,
    /// Longest sequence.
    pub max_model_len: u32,
    /// Captured shapes.
    pub num_buckets: usize,
    /// What capturing them took, seconds.
    pub capture_s: f32,
}

impl fmt::Display for CudaSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        write!(
            f,
            "{} MiB of weights, {} KV blocks ({} MiB), context {}, {} step shapes captured in {:.1} s",
            mib(self.weight_bytes),
            self.num_kv_blocks,
            mib(self.kv_bytes),
            self.max_model_len,
            self.num_buckets,
            self.capture_s
        )
    }
}

impl CudaEngine {
    /// Loads the weights of `checkpoint` onto the first device and starts an engine on a ring of its own. The checkpoint is
    /// not needed afterwards. `progress(done, total)` is told bytes of weights.
    ///
    /// # Errors
    /// [`CudaStartError`].
    pub fn start(
        checkpoint: &Checkpoint,
        options: &CudaEngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, CudaStartError> {
        let begun = Instant::now();
        let config = checkpoint.config();
        let mut wishes = options.wishes();
        let longest = wishes.longest(config)?;
        wishes.max_num_batched_tokens = wishes.tokens_per_step(longest);
        let executor_options = CudaExecutorOptions {
            gpu_memory_utilization: options.gpu_memory_utilization,
            num_kv_blocks: options.num_kv_blocks,
            max_model_len: longest,
            max_num_seqs: options.max_num_seqs,
            max_num_batched_tokens: wishes.max_num_batched_tokens,
        };
        let placement = available(options.placement);
        let (executor, gate) = if placement == Placement::Gpu {
            let (executor, gate) =
                CudaExecutor::start_gated(checkpoint, &executor_options, progress)?;
            (executor, Some(gate))
        } else {
            let executor = CudaExecutor::start(checkpoint, &executor_options, progress)?;
            (executor, None)
        };
        let policy = wishes.config(config, executor.num_kv_blocks())?;
        let summary = CudaSummary {
            weight_bytes: executor.weight_bytes(),
            kv_bytes: executor.kv_bytes(),
            num_kv_blocks: policy.num_blocks,
            max_model_len: policy.max_total_len(),
            num_buckets: executor.num_buckets(),
            capture_s: executor.capture_s(),
        };
        let engine_options = EngineOptions {
            policy,
            placement,
            seed: options.seed,
            vocab_size: config.vocab_size as u32,
            model_name: options.model_name.clone(),
            hardware: options.hardware.clone(),
            mask_timeout: DEFAULT_MASK_TIMEOUT,
            study: options.study.clone(),
        };
        let (engine, transport, resident) = match gate {
            Some(gate) => start_resident(engine_options, executor, gate, options.launch_window)?,
            None => start_on_host(engine_options, executor)?,
        };
        tracing::debug!("started in {:.2} s", begun.elapsed().as_secs_f32());
        Ok(Self {
            engine,
            transport,
            summary,
            placement,
            resident,
        })
    }
}

/// A running engine, its ring, and what a scheduler on the device tells.
type Started = (Engine, Arc<InProcess>, Option<Arc<ResidentStatus>>);

/// The placement, or the next best where graphs cannot be launched from the device.
fn available(placement: Placement) -> Placement {
    if placement != Placement::Gpu {
        return placement;
    }
    match cuda::resident::probe() {
        Ok(()) => placement,
        Err(reason) => {
            let instead = Placement::HostAsync;
            tracing::warn!(
                "graphs cannot be launched from this device ({reason}): scheduler {instead}, not {placement}"
            );
            instead
        }
    }
}

fn start_on_host(
    options: EngineOptions,
    mut executor: CudaExecutor,
) -> Result<Started, CudaStartError> {
    let geometry = RingGeometry {
        num_slots: options.policy.num_slots,
        ..RingGeometry::default()
    };
    let (transport, ring) = InProcess::create(&RingOptions {
        geometry,
        epoch: now_ns(),
        ..RingOptions::default()
    })?;
    executor
        .map_ring(&transport, ring.layout())
        .map_err(ExecutorError::from)?;
    let engine = Engine::start(options, ring, Box::new(executor))?;
    Ok((engine, transport, None))
}

fn start_resident(
    options: EngineOptions,
    executor: CudaExecutor,
    gate: StepGate,
    launch_window: u32,
) -> Result<Started, CudaStartError> {
    let resident_options = ResidentOptions {
        policy: options.policy,
        vocab_size: options.vocab_size,
        model_name: options.model_name,
        hardware: options.hardware,
        seed: options.seed.unwrap_or_else(|| SeedSource::from_os().draw()),
        mask_timeout: options.mask_timeout,
        launch_window,
    };
    let (scheduler, transport) = ResidentScheduler::start(executor, gate, &resident_options)?;
    let status = scheduler.status();
    let engine = Engine::watched("izar-resident", move |control| scheduler.watch(control))?;
    Ok((engine, transport, Some(status)))
}

impl CudaEngineOptions {
    fn wishes(&self) -> Wishes {
        Wishes {
            block_size: BLOCK_SIZE,
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            prefix_caching: self.prefix_caching,
            chunked_prefill: self.chunked_prefill,
        }
    }
}
