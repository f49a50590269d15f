//! From a checkpoint to a running CPU engine: sizes that nobody chose are worked out here.

use std::sync::Arc;

use izar_model::{Checkpoint, ModelConfig};
use izar_policy::Config;
use izar_ring::{RingGeometry, RingOptions};
use izar_transport::{InProcess, InProcessError};
use thiserror::Error;

use crate::cpu::{
    Arithmetic, CpuExecutor, CpuExecutorOptions, CpuModel, CpuOptions, Isa, LoadError,
};
use crate::driver::{
    DEFAULT_MASK_TIMEOUT, Engine, EngineOptions, Placement, StartError, Study, now_ns,
};
use crate::sizing::{SizeError, Wishes};

/// The KV pool takes this share of the memory that is available after loading, unless its size is given.
const KV_MEMORY_SHARE: f64 = 0.25;
/// ... and no more than this many bytes.
const KV_MEMORY_LIMIT: u64 = 4 << 30;

/// What an operator may choose. `None` means: worked out from the model and the machine.
#[derive(Clone, Debug)]
pub struct CpuEngineOptions {
    /// Where planning happens.
    pub placement: Placement,
    /// The arithmetic of a step.
    pub arithmetic: Arithmetic,
    /// Threads that compute; all available cores if not given.
    pub num_threads: Option<usize>,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks.
    pub num_kv_blocks: Option<u32>,
    /// Longest sequence, prompt and output; the model's own limit if not given.
    pub max_model_len: Option<u32>,
    /// Sequences that run at once.
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
}

impl Default for CpuEngineOptions {
    fn default() -> Self {
        Self {
            placement: Placement::HostSync,
            arithmetic: Arithmetic::Auto,
            num_threads: None,
            block_size: 16,
            num_kv_blocks: None,
            max_model_len: None,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            prefix_caching: true,
            chunked_prefill: true,
            seed: None,
            model_name: "model".into(),
            hardware: "CPU".into(),
            study: Study::default(),
        }
    }
}

/// Why the CPU engine did not start.
#[derive(Debug, Error)]
pub enum CpuStartError {
    /// Sizes that do not go together.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The weights could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The ring could not be made.
    #[error(transparent)]
    Ring(#[from] InProcessError),
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] StartError),
    /// The operating system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// A running CPU engine and how to reach it.
pub struct CpuEngine {
    /// The engine. Stop it to learn whether it ended well.
    pub engine: Engine,
    /// The ring, for a front end in this process.
    pub transport: Arc<InProcess>,
    /// What was decided.
    pub summary: CpuSummary,
}

/// What a CPU engine settled on. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuSummary {
    /// Weights in memory.
    pub weight_bytes: u64,
    /// The KV pool when all of it is used.
    pub kv_bytes: u64,
    /// KV blocks.
    pub num_kv_blocks: u32,
    /// Longest sequence.
    pub max_model_len: u32,
    /// Threads that compute.
    pub num_threads: usize,
}

impl CpuEngine {
    /// Loads the weights of `checkpoint` and starts an engine on a ring of its own. The checkpoint is not needed
    /// afterwards. `progress(done, total)` is told bytes of weights.
    ///
    /// # Errors
    /// [`CpuStartError`].
    pub fn start(
        checkpoint: &Checkpoint,
        options: &CpuEngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, CpuStartError> {
        let config = checkpoint.config();
        let policy = policy_config(config, options)?;
        let num_threads = options
            .num_threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let model = CpuModel::load(
            checkpoint,
            CpuOptions {
                arithmetic: options.arithmetic,
                num_threads,
                max_model_len: policy.max_model_len as usize,
                num_kv_blocks: policy.num_blocks as usize,
                block_size: policy.block_size as usize,
                max_num_batched_tokens: policy.max_num_batched_tokens as usize,
                max_num_seqs: policy.max_num_seqs as usize,
                max_logit_rows: policy.max_num_seqs as usize,
                isa: Isa::detect(),
            },
            progress,
        )?;
        let summary = CpuSummary {
            weight_bytes: model.weight_bytes() as u64,
            kv_bytes: model.kv_bytes() as u64,
            num_kv_blocks: policy.num_blocks,
            max_model_len: policy.max_total_len(),
            num_threads,
        };
        let executor = CpuExecutor::start(
            model,
            CpuExecutorOptions {
                max_num_seqs: policy.max_num_seqs as usize,
                max_model_len: policy.max_total_len() as usize,
                eos_ids: config.eos_token_ids.clone(),
            },
        )
        .map_err(CpuStartError::Thread)?;
        let geometry = RingGeometry {
            num_slots: policy.num_slots,
            ..RingGeometry::default()
        };
        let (transport, ring) = InProcess::create(&RingOptions {
            geometry,
            epoch: now_ns(),
            ..RingOptions::default()
        })?;
        let engine_options = EngineOptions {
            policy,
            placement: options.placement,
            seed: options.seed,
            vocab_size: config.vocab_size as u32,
            model_name: options.model_name.clone(),
            hardware: options.hardware.clone(),
            mask_timeout: DEFAULT_MASK_TIMEOUT,
            study: options.study.clone(),
        };
        let engine = Engine::start(engine_options, ring, Box::new(executor))?;
        Ok(Self {
            engine,
            transport,
            summary,
        })
    }
}

/// Sizes of the policy: what was chosen, and for the rest what model and memory suggest.
fn policy_config(model: &ModelConfig, options: &CpuEngineOptions) -> Result<Config, SizeError> {
    let wishes = Wishes {
        block_size: options.block_size.max(1),
        max_model_len: options.max_model_len,
        max_num_seqs: options.max_num_seqs,
        max_num_batched_tokens: options.max_num_batched_tokens,
        prefix_caching: options.prefix_caching,
        chunked_prefill: options.chunked_prefill,
    };
    let wanted_len = wishes.longest(model)?;
    let num_blocks = options
        .num_kv_blocks
        .unwrap_or_else(|| default_num_blocks(model, options, wanted_len));
    wishes.config(model, num_blocks)
}

/// Enough blocks for every running sequence at full length, or what the memory allows, but at least one sequence.
fn default_num_blocks(model: &ModelConfig, options: &CpuEngineOptions, max_model_len: u32) -> u32 {
    let element_bytes = if options.arithmetic == Arithmetic::F32 {
        4
    } else {
        2
    };
    let token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * element_bytes;
    let block_bytes = token_bytes as u64 * u64::from(options.block_size.max(1));
    let allowed_bytes = available_memory().map_or(KV_MEMORY_LIMIT, |available| {
        KV_MEMORY_LIMIT.min((available as f64 * KV_MEMORY_SHARE) as u64)
    });
    let per_sequence = u64::from(max_model_len.div_ceil(options.block_size.max(1)));
    let wanted = per_sequence * u64::from(options.max_num_seqs);
    let num_blocks = wanted.min(allowed_bytes / block_bytes).max(per_sequence);
    // More than the policy takes could never be addressed.
    num_blocks.min((1 << 30) - 1) as u32
}

/// Bytes that the system could give out without swapping; `None` where it does not say.
fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
