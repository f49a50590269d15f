//! Sequences over an executor without a scheduler, and the CPU's logits for them.

use std::time::Duration;

use izar_engine::cpu::{Arithmetic, Batch, BatchEntry, CpuModel, CpuOptions, LogitsOf};
use izar_engine::cuda::{CudaExecutor, CudaExecutorOptions};
use izar_engine::driver::{Executor, RowBinding, StepEntry, StepWork, StopLimits};
use izar_engine::sampling::SamplingParams;
use izar_model::Checkpoint;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Blocks of a sequence.
pub const BLOCKS_PER_SEQ: usize = 20;

/// An executor with room for `num_seqs` sequences, whose blocks are handed out scattered.
pub struct Harness {
    executor: CudaExecutor,
    block_tables: Vec<Vec<u32>>,
    step: u64,
}

/// One sequence's part of a step.
#[derive(Clone, Debug)]
pub struct Part {
    pub row: usize,
    pub start: usize,
    /// What to compute; `None` for a decode, whose token is what its row sampled last.
    pub tokens: Option<Vec<u32>>,
    pub samples: bool,
}

impl Part {
    pub fn decode(row: usize, start: usize) -> Self {
        Self {
            row,
            start,
            tokens: None,
            samples: true,
        }
    }

    pub fn prefill(row: usize, start: usize, tokens: &[u32], samples: bool) -> Self {
        Self {
            row,
            start,
            tokens: Some(tokens.to_vec()),
            samples,
        }
    }
}

impl Harness {
    pub fn new(checkpoint: &Checkpoint, num_seqs: u32, max_tokens: u32) -> Self {
        let num_blocks = num_seqs * BLOCKS_PER_SEQ as u32;
        let options = CudaExecutorOptions {
            gpu_memory_utilization: 0.5,
            num_kv_blocks: Some(num_blocks),
            max_model_len: BLOCKS_PER_SEQ as u32 * 16,
            max_num_seqs: num_seqs,
            max_num_batched_tokens: max_tokens,
        };
        let executor = CudaExecutor::start(checkpoint, &options, &mut |_, _| {}).unwrap();
        // A permutation of all blocks: 37 and the number of blocks have no common factor.
        assert_ne!(num_blocks % 37, 0);
        let scattered: Vec<u32> = (0..num_blocks)
            .map(|i| (i * 37 + 11) % num_blocks)
            .collect();
        let block_tables = scattered.chunks(BLOCKS_PER_SEQ).map(<[u32]>::to_vec);
        Self {
            executor,
            block_tables: block_tables.collect(),
            step: 0,
        }
    }

    /// Binds `rows` to greedy sequences that end by themselves never, and launches a step.
    pub fn launch(&mut self, bind: &[(usize, &[u32])], parts: &[Part]) {
        self.step += 1;
        let mut work = StepWork {
            step: self.step,
            blocks_per_row: BLOCKS_PER_SEQ,
            ..StepWork::default()
        };
        for &(row, prompt) in bind {
            let binding = work.next_binding();
            *binding = RowBinding {
                row: row as u32,
                params: SamplingParams::greedy(),
                limits: StopLimits {
                    ignore_eos: true,
                    max_tokens: 10_000,
                    prompt_len: prompt.len() as u32,
                },
                history: prompt.to_vec(),
                ..RowBinding::default()
            };
        }
        for part in parts {
            let tokens = part.tokens.as_deref().unwrap_or(&[0]);
            let end = part.start + tokens.len();
            work.entries.push(StepEntry {
                slot: part.row as u32,
                row: part.row as u32,
                start: part.start as u32,
                num_tokens: tokens.len() as u32,
                num_blocks: end.div_ceil(16) as u32,
                samples: part.samples,
                is_decode: part.tokens.is_none(),
            });
            work.tokens.extend(tokens);
            work.block_tables.extend(&self.block_tables[part.row]);
        }
        self.executor.launch(Box::new(work)).unwrap();
    }

    /// Sets every byte of the cache and of all activations.
    pub fn poison(&mut self, byte: u8) {
        self.executor.poison(byte).unwrap();
    }

    /// The tokens that the oldest step sampled, in the order of its parts.
    pub fn wait(&mut self) -> Vec<u32> {
        let work = self.executor.wait(TIMEOUT).unwrap();
        let work = work.expect("a step takes less than half a minute");
        assert!(work.output.finished_ns >= work.output.started_ns);
        let samples = work.output.samples.iter();
        samples.map(|sample| sample.token.unwrap()).collect()
    }

    /// Launches and waits; returns tokens and the logits they were sampled from.
    pub fn step(&mut self, bind: &[(usize, &[u32])], parts: &[Part]) -> Vec<(u32, Vec<f32>)> {
        self.launch(bind, parts);
        let tokens = self.wait();
        let logits = self.executor.logits(tokens.len()).unwrap();
        let vocab = logits.len() / tokens.len().max(1);
        let rows = logits.chunks(vocab.max(1)).map(<[f32]>::to_vec);
        tokens.into_iter().zip(rows).collect()
    }
}

/// Logits after every one of `tokens` on the CPU in f32.
pub fn oracle(checkpoint: &Checkpoint, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut options = CpuOptions::new(checkpoint.config());
    options.arithmetic = Arithmetic::F32;
    options.max_model_len = BLOCKS_PER_SEQ * 16;
    options.max_num_seqs = 1;
    options.max_num_batched_tokens = tokens.len();
    options.max_logit_rows = tokens.len();
    options.num_kv_blocks = BLOCKS_PER_SEQ;
    let mut model = CpuModel::load(checkpoint, options, &mut |_, _| {}).unwrap();
    let entry = BatchEntry {
        row: 0,
        start_pos: 0,
        num_tokens: tokens.len() as u32,
        logits: LogitsOf::All,
    };
    let blocks: Vec<u32> = (0..BLOCKS_PER_SEQ as u32).collect();
    let vocab = checkpoint.config().vocab_size;
    let logits = model.forward(&Batch {
        entries: &[entry],
        tokens,
        block_tables: &blocks,
        blocks_per_row: BLOCKS_PER_SEQ,
    });
    logits.chunks(vocab).map(<[f32]>::to_vec).collect()
}

/// A prompt that depends on `seed`.
pub fn prompt(seed: u32, len: usize, vocab: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % vocab as u32
        })
        .collect()
}

/// How far the largest logit is above the second.
pub fn margin(logits: &[f32]) -> f32 {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted[0] - sorted[1]
}

/// Index of the largest logit.
pub fn best(logits: &[f32]) -> u32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&x| x == largest).unwrap() as u32
}
