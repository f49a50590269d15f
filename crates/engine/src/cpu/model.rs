//! A loaded model: weights, KV cache and every buffer a step needs.
//!
//! All memory is reserved by [`CpuModel::load`] for the largest step the options allow, and committed by the system when
//! first touched; [`CpuModel::forward`] allocates nothing. The model owns its team; between steps the caller may use it for work of its own
//! on the logits ([`CpuModel::team_and_logits`]).

use izar_model::{Checkpoint, ModelConfig};

use super::acts::{Acts, Precision};
use super::batch::Batch;
use super::error::LoadError;
use super::format::GROUP;
use super::kv::{KvCache, KvShape};
use super::memory::Buffer;
use super::moe::MoeBuffers;
use super::simd::{Isa, LANES};
use super::step::{self, Plan};
use super::team::Team;
use super::weights::{Ffn, Weights};

/// The arithmetic of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// The fastest for the weights: quantised weights are multiplied by activations rounded to 8 bits per group of 32,
    /// float weights by f32 activations; the KV cache is f16.
    #[default]
    Auto,
    /// f32 throughout, KV cache included: exact up to f32 rounding. The oracle of other back ends.
    F32,
}

/// Sizes and choices of a [`CpuModel`].
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// The arithmetic.
    pub arithmetic: Arithmetic,
    /// Threads of the team, the caller's included.
    pub num_threads: usize,
    /// The longest sequence, tokens; decides the frequency set of LongRoPE models.
    pub max_model_len: usize,
    /// Blocks of the KV cache.
    pub num_kv_blocks: usize,
    /// Tokens in a block, a multiple of 16.
    pub block_size: usize,
    /// Largest number of tokens in a step.
    pub max_num_batched_tokens: usize,
    /// Largest number of entries in a step.
    pub max_num_seqs: usize,
    /// Largest number of rows of logits in a step; at least `max_num_seqs` is usual.
    pub max_logit_rows: usize,
    /// Instruction set of the kernels.
    pub isa: Isa,
}

impl CpuOptions {
    /// Options for a model: all cores, its own context length, KV for one such sequence, 16 sequences, 512 tokens a step.
    pub fn new(config: &ModelConfig) -> Self {
        let max_model_len = config.max_model_len();
        Self {
            arithmetic: Arithmetic::Auto,
            num_threads: std::thread::available_parallelism().map_or(1, usize::from),
            max_model_len,
            num_kv_blocks: max_model_len.div_ceil(16),
            block_size: 16,
            max_num_batched_tokens: 512,
            max_num_seqs: 16,
            max_logit_rows: 16,
            isa: Isa::detect(),
        }
    }
}

/// The widest head that the attention kernels take.
const MAX_HEAD_DIM: usize = 16 * LANES;

/// A model ready to compute steps.
pub struct CpuModel {
    pub(super) config: ModelConfig,
    pub(super) options: CpuOptions,
    pub(super) team: Team,
    pub(super) weights: Weights,
    pub(super) kv: KvCache,
    pub(super) buffers: Buffers,
    pub(super) plan: Plan,
    pub(super) rope: izar_model::RopeFrequencies,
    logits: Buffer<f32>,
}

/// Activations of a step.
pub(super) struct Buffers {
    /// Residual stream, `[token][hidden padded to groups]`.
    pub(super) residual: Buffer<f32>,
    /// Normed residual: input of the projections, of the feed-forward part and of the head.
    pub(super) normed: Acts,
    /// Queries, `[token][head][padded head_dim]`.
    pub(super) queries: Buffer<f32>,
    /// Attention output.
    pub(super) attended: Acts,
    /// Attention output in f32, `[token][q size padded to groups]`, where a head is not a whole number of groups.
    pub(super) attended_rows: Buffer<f32>,
    /// SwiGLU output of a dense layer.
    pub(super) inner: Acts,
    /// Cosines and sines, `[token][rotary_dim]`.
    pub(super) angles: Buffer<f32>,
    /// `[rank][SCRATCH]`.
    pub(super) scratch: Buffer<f32>,
    pub(super) moe: Option<MoeBuffers>,
}

/// Floats of scratch per rank: 16 tokens × up to 16 tiles, or attention rows of heads up to 1024 wide.
pub(super) const SCRATCH: usize = 16 * 16 * LANES;

impl CpuModel {
    /// Packs a checkpoint's weights and reserves all memory. The checkpoint is not needed afterwards.
    /// `progress(done, total)` is told bytes of packed weights.
    ///
    /// # Errors
    /// See [`LoadError`].
    ///
    /// # Panics
    /// If an option is 0.
    pub fn load(
        checkpoint: &Checkpoint,
        options: CpuOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let config = checkpoint.config().clone();
        if options.block_size == 0 || !options.block_size.is_multiple_of(LANES) {
            return Err(LoadError::BlockSize(options.block_size));
        }
        if config.head_dim > MAX_HEAD_DIM {
            return Err(LoadError::HeadDim {
                got: config.head_dim,
                max: MAX_HEAD_DIM,
            });
        }
        let threads = options.num_threads;
        let mut team =
            Team::new(threads).map_err(|source| LoadError::Threads { threads, source })?;
        let weights = Weights::load(checkpoint, &mut team, progress)?;
        let shape = KvShape {
            num_layers: config.num_layers,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            num_blocks: options.num_kv_blocks,
            block_size: options.block_size,
        };
        let exact = options.arithmetic == Arithmetic::F32;
        Ok(Self {
            kv: KvCache::new(shape, exact).map_err(LoadError::Memory)?,
            buffers: Buffers::new(&config, &options, &weights).map_err(LoadError::Memory)?,
            logits: Buffer::zeroed(options.max_logit_rows * config.vocab_size)
                .map_err(LoadError::Memory)?,
            plan: Plan::new(&options),
            rope: config.rope.frequencies(options.max_model_len),
            config,
            options,
            team,
            weights,
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The options it was loaded with.
    pub fn options(&self) -> &CpuOptions {
        &self.options
    }

    /// Bytes of packed weights.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Bytes the KV cache can grow to.
    pub fn kv_bytes(&self) -> usize {
        self.kv.bytes()
    }

    /// Computes a step: writes the KV of every token and returns the logits `[num_logit_rows, vocab_size]`, row-major,
    /// in entry order.
    ///
    /// A token's KV and logits are a function of its sequence alone: the same bits whatever else is in the batch,
    /// however the prompt was cut into chunks, wherever its blocks lie, and on any number of threads.
    ///
    /// # Panics
    /// If the batch is inconsistent or exceeds the options: the scheduler's invariants, not input errors.
    pub fn forward(&mut self, batch: &Batch<'_>) -> &mut [f32] {
        self.plan.prepare(batch, &self.config, &self.options);
        let rows = self.plan.logit_tokens.len();
        let logits = self.logits.shared();
        step::run(self, batch, logits);
        &mut self.logits[..rows * self.config.vocab_size]
    }

    /// Logits of tokens `tokens` of the step that [`forward`](Self::forward) computed last, `[tokens.len(), vocab_size]`, with
    /// the same bits that it would have given them. They take the place of its own.
    ///
    /// # Panics
    /// If the step had fewer tokens, or the options allow fewer rows.
    pub fn logits_again(&mut self, tokens: std::ops::Range<u32>) -> &mut [f32] {
        assert!(tokens.end as usize <= self.plan.positions.len());
        assert!(tokens.len() <= self.options.max_logit_rows);
        let rows = tokens.len();
        self.plan.logit_tokens.clear();
        self.plan.logit_tokens.extend(tokens);
        let logits = self.logits.shared();
        step::run_head(self, logits);
        &mut self.logits[..rows * self.config.vocab_size]
    }

    /// The team and the logits of the last step, `[max_logit_rows, vocab_size]`, for sampling in parallel.
    pub fn team_and_logits(&mut self) -> (&mut Team, &mut [f32]) {
        (&mut self.team, &mut self.logits)
    }
}

impl Buffers {
    fn new(config: &ModelConfig, options: &CpuOptions, weights: &Weights) -> std::io::Result<Self> {
        let tokens = options.max_num_batched_tokens;
        let hidden = config.hidden_size.next_multiple_of(GROUP);
        let (normed, attended, inner) = precisions(weights, options.arithmetic);
        let padded_dim = config.head_dim.next_multiple_of(LANES);
        let in_rows = if config.head_dim.is_multiple_of(GROUP) {
            0
        } else {
            config.q_size().next_multiple_of(GROUP)
        };
        Ok(Self {
            residual: Buffer::zeroed(tokens * hidden)?,
            normed: Acts::new(
                tokens.max(options.max_logit_rows),
                config.hidden_size,
                normed,
            )?,
            queries: Buffer::zeroed(tokens * config.num_heads * padded_dim)?,
            attended: Acts::new(tokens, config.q_size(), attended)?,
            attended_rows: Buffer::zeroed(tokens * in_rows)?,
            inner: Acts::new(tokens, config.intermediate_size, inner)?,
            angles: Buffer::zeroed(tokens * config.rope.rotary_dim)?,
            scratch: Buffer::zeroed(options.num_threads * SCRATCH)?,
            moe: match &config.moe {
                Some(moe) => Some(MoeBuffers::new(
                    moe,
                    config.hidden_size,
                    tokens,
                    normed,
                    inner,
                )?),
                None => None,
            },
        })
    }
}

/// Whether a matrix is multiplied in integers.
pub(super) fn is_integer(matrix: &super::pack::Matrix, arithmetic: Arithmetic) -> bool {
    arithmetic == Arithmetic::Auto && matrix.is_quantized()
}

/// What the readers of the normed, attended and inner activations need.
fn precisions(weights: &Weights, arithmetic: Arithmetic) -> (Precision, Precision, Precision) {
    let mut all = [Precision::default(); 3];
    let mut note = |which: usize, matrix: &super::pack::Matrix| {
        if is_integer(matrix, arithmetic) {
            all[which].codes = true;
        } else {
            all[which].values = true;
        }
    };
    note(0, &weights.head);
    for layer in &weights.layers {
        [&layer.q, &layer.k, &layer.v]
            .into_iter()
            .for_each(|p| note(0, &p.matrix));
        note(1, &layer.output);
        let mlps = match &layer.ffn {
            Ffn::Dense(mlp) => std::slice::from_ref(mlp),
            Ffn::Moe { router, experts } => {
                note(0, router);
                experts
            }
        };
        for mlp in mlps {
            note(0, &mlp.gate);
            note(0, &mlp.up);
            note(2, &mlp.down);
        }
    }
    let [normed, attended, inner] = all;
    (normed, attended, inner)
}
