//! How long steps take, and which of their parts.
//!
//! A step is captured for its own shape and replayed on one plan, back to back: what is measured is the device alone. What a
//! part costs is what the step takes less without it. KV caches hold random numbers.

use half::bf16;
use izar_kernels::{
    CudaError, DeviceBuffer, Event, Graph, GraphExec, Stream, fill_random, read_stream,
};
use izar_model::{Checkpoint, ModelConfig};

use super::executor::{CudaExecutor, CudaExecutorOptions, ExecutorError};
use super::grid::{Bucket, StepKind};
use super::memory::BLOCK_SIZE;
use super::stages::{Stage, Variant};
use super::step;
use crate::driver::{RowBinding, StepEntry, StepWork, StopLimits};
use crate::sampling::SamplingParams;

/// Bytes that the read rate is measured on.
const READ_BYTES: usize = 4 << 30;
/// Measurements, of which the median counts.
const ROUNDS: usize = 5;
/// A measurement takes about this long.
const ROUND_MS: f32 = 40.0;

/// What a step computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// `batch` sequences, each `context` tokens long once the step has run.
    Decode {
        /// Sequences.
        batch: u32,
        /// Tokens of each in the cache.
        context: u32,
    },
    /// `tokens` tokens of one prompt from position `start` on.
    Prefill {
        /// Tokens before.
        start: u32,
        /// Tokens.
        tokens: u32,
    },
}

impl Load {
    fn bucket(self) -> Bucket {
        let (kind, num_tokens, num_seqs) = match self {
            Self::Decode { batch, .. } => (StepKind::Decode, batch, batch),
            Self::Prefill { tokens, .. } => (StepKind::Mixed, tokens, 1),
        };
        Bucket {
            kind,
            num_tokens,
            num_seqs,
        }
    }
}

/// An executor and memory to measure with.
pub struct StepBench {
    executor: CudaExecutor,
    blocks_per_seq: u32,
    num_blocks: u32,
    read_rate: f64,
    step: u64,
}

impl StepBench {
    /// Loads the model with room for `max_batch` sequences of `max_context` tokens and steps of `max_tokens` tokens.
    ///
    /// # Errors
    /// Those of starting an executor.
    pub fn start(
        checkpoint: &Checkpoint,
        max_batch: u32,
        max_context: u32,
        max_tokens: u32,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, ExecutorError> {
        let read_rate = read_rate()?;
        let blocks_per_seq = max_context.div_ceil(BLOCK_SIZE);
        // Scattered by a stride, so any number that it does not divide.
        let num_blocks = (max_batch * blocks_per_seq).next_multiple_of(2) + 1;
        let options = CudaExecutorOptions {
            gpu_memory_utilization: 0.95,
            num_kv_blocks: Some(num_blocks),
            max_model_len: max_context,
            max_num_seqs: max_batch,
            max_num_batched_tokens: max_tokens.max(max_batch),
        };
        let mut executor = CudaExecutor::start_uncaptured(checkpoint, &options, None, progress)?;
        executor.model.fill_cache(&executor.stream)?;
        let rows: Vec<RowBinding> = (0..max_batch).map(binding).collect();
        executor.model.sampler.bind(&executor.stream, 0, &rows)?;
        executor.stream.synchronize()?;
        Ok(Self {
            executor,
            blocks_per_seq,
            num_blocks,
            read_rate,
            step: 0,
        })
    }

    /// Bytes a second that the memory was read at, on this device today.
    pub fn read_rate(&self) -> f64 {
        self.read_rate
    }

    /// Experts that the tokens of the last step chose together, in its last layer; 0 for a model without.
    ///
    /// # Errors
    /// Those of the copy.
    pub fn distinct_experts(&self) -> Result<u32, ExecutorError> {
        let CudaExecutor { model, stream, .. } = &self.executor;
        Ok(model.num_distinct_experts(stream)?)
    }

    /// Microseconds of the device for one step.
    ///
    /// # Errors
    /// Those of recording and running it.
    ///
    /// # Panics
    /// If the load is larger than the bench was made for.
    pub fn step_us(&mut self, load: Load, variant: Variant) -> Result<f32, ExecutorError> {
        self.step += 1;
        let work = self.work(load);
        let CudaExecutor {
            model,
            halves,
            stream,
            ..
        } = &mut self.executor;
        halves[0].send(&work, self.step, stream, stream)?;
        // Once without leaving anything out: what the parts read is there.
        for recorded in [Variant::FULL, variant] {
            let bucket = load.bucket();
            let half = &halves[0];
            let graph = Graph::capture(stream, |stream| {
                step::record(model, stream, bucket, half, recorded)
            })?;
            let exec = graph.instantiate()?;
            let once = launch_ms(stream, &exec, 1)?;
            if recorded == variant {
                let repeats = (ROUND_MS / once).clamp(4.0, 200.0) as u32;
                launch_ms(stream, &exec, repeats)?;
                let mut times = Vec::with_capacity(ROUNDS);
                for _ in 0..ROUNDS {
                    times.push(launch_ms(stream, &exec, repeats)? * 1e3);
                }
                times.sort_by(f32::total_cmp);
                return Ok(times[ROUNDS / 2]);
            }
            launch_ms(stream, &exec, 1)?;
        }
        unreachable!("the variant is the last that is recorded")
    }

    fn work(&self, load: Load) -> StepWork {
        let mut work = StepWork {
            blocks_per_row: self.blocks_per_seq as usize,
            ..StepWork::default()
        };
        let (num_seqs, start, tokens) = match load {
            Load::Decode { batch, context } => (batch, context - 1, 1),
            Load::Prefill { start, tokens } => (1, start, tokens),
        };
        for row in 0..num_seqs {
            work.entries.push(StepEntry {
                slot: row,
                row,
                start,
                num_tokens: tokens,
                num_blocks: (start + tokens).div_ceil(BLOCK_SIZE),
                samples: true,
                is_decode: matches!(load, Load::Decode { .. }),
            });
            work.tokens
                .extend((0..tokens).map(|i| (row * 7 + i * 13) % 1000));
            let first = row * self.blocks_per_seq;
            let blocks = first..first + self.blocks_per_seq;
            work.block_tables
                .extend(blocks.map(|block| scattered(block, self.num_blocks)));
        }
        work
    }
}

/// A permutation of the blocks: neighbours lie far apart.
fn scattered(block: u32, num_blocks: u32) -> u32 {
    // The number of blocks is odd, so a power of two has no factor in common with it.
    ((u64::from(block) * 4096) % u64::from(num_blocks)) as u32
}

fn binding(row: u32) -> RowBinding {
    RowBinding {
        row,
        params: SamplingParams::greedy(),
        limits: StopLimits {
            ignore_eos: true,
            max_tokens: u32::MAX,
            prompt_len: 1,
        },
        history: vec![1],
        ..RowBinding::default()
    }
}

/// Milliseconds a launch.
fn launch_ms(stream: &Stream, exec: &GraphExec, repeats: u32) -> Result<f32, CudaError> {
    let (start, end) = (Event::new(stream.device())?, Event::new(stream.device())?);
    start.record(stream)?;
    for _ in 0..repeats {
        // SAFETY: the executor owns every buffer and is borrowed.
        unsafe { exec.launch(stream)? };
    }
    end.record(stream)?;
    end.synchronize()?;
    Ok(end.ms_since(&start)? / repeats as f32)
}

/// Bytes a second of a read-only stream.
fn read_rate() -> Result<f64, CudaError> {
    let device = izar_kernels::Device::open(0)?;
    let stream = Stream::new(&device)?;
    let input = DeviceBuffer::<bf16>::new(&device, READ_BYTES / 2)?;
    fill_random(&stream, &input, 1, 1.0)?;
    let sink = DeviceBuffer::new(&device, 1)?;
    let mut best = f32::MAX;
    for _ in 0..8 {
        let (start, end) = (Event::new(&device)?, Event::new(&device)?);
        start.record(&stream)?;
        read_stream(&stream, &input, &sink)?;
        end.record(&stream)?;
        end.synchronize()?;
        best = best.min(end.ms_since(&start)?);
    }
    Ok(READ_BYTES as f64 / (f64::from(best) / 1e3))
}

/// Bytes that a stage must read from the device's memory, activations left out: they stay in its cache. Of the experts,
/// those that the tokens chose: `distinct_experts` in each layer ([`StepBench::distinct_experts`]).
pub fn stage_bytes(config: &ModelConfig, stage: Stage, load: Load, distinct_experts: u32) -> u64 {
    let (num_moe, expert_bytes, router_bytes) = match &config.moe {
        Some(moe) => (
            moe.moe_layers.iter().filter(|&&is_moe| is_moe).count(),
            6 * (moe.moe_intermediate_size * config.hidden_size) as u64,
            2 * (moe.num_experts * config.hidden_size) as u64,
        ),
        None => (0, 0, 0),
    };
    let num_dense = config.num_layers - num_moe;
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let (q, kv, layers) = (config.q_size(), config.kv_size(), config.num_layers);
    let matrix = |rows: usize, cols: usize| 2 * (rows * cols) as u64;
    let cache = |tokens: u64| tokens * 4 * (kv * layers) as u64;
    match (stage, load) {
        (Stage::Qkv, _) => layers as u64 * matrix(q + 2 * kv, hidden),
        (Stage::Output, _) => layers as u64 * matrix(hidden, q),
        (Stage::GateUp, _) => num_dense as u64 * matrix(2 * inner, hidden),
        (Stage::Down, _) => num_dense as u64 * matrix(hidden, inner),
        (Stage::Experts, _) => {
            num_moe as u64 * (router_bytes + u64::from(distinct_experts) * expert_bytes)
        }
        (Stage::Head, _) => matrix(config.vocab_size, hidden),
        (Stage::DecodeAttention, Load::Decode { batch, context }) => {
            cache(u64::from(batch) * u64::from(context))
        }
        (Stage::PrefillAttention, Load::Prefill { start, tokens }) => {
            cache(u64::from(start) + u64::from(tokens))
        }
        _ => 0,
    }
}

/// Floating-point operations of the projections of a layer stack for so many tokens: two for each weight and token.
pub fn projection_flops(config: &ModelConfig, tokens: u32) -> f64 {
    let load = Load::Prefill { start: 0, tokens };
    let bytes: u64 = Stage::PROJECTIONS
        .into_iter()
        .map(|stage| stage_bytes(config, stage, load, 0))
        .sum();
    // A token goes through a few experts, whatever others need.
    let experts = config.moe.as_ref().map_or(0, |moe| moe.num_experts_per_tok);
    let experts = stage_bytes(config, Stage::Experts, load, experts as u32);
    (bytes + experts) as f64 * f64::from(tokens)
}

/// Floating-point operations of causal attention for a chunk: two products with every key in sight.
pub fn attention_flops(config: &ModelConfig, start: u32, tokens: u32) -> f64 {
    let (start, tokens) = (f64::from(start), f64::from(tokens));
    let pairs = tokens * start + tokens * (tokens + 1.0) / 2.0;
    4.0 * pairs * (config.q_size() * config.num_layers) as f64
}
