//! Sequences over a model without a scheduler: each gets its own blocks, handed out in a scattered order.

use std::path::{Path, PathBuf};

use izar_engine::cpu::{Arithmetic, Batch, BatchEntry, CpuModel, CpuOptions, LogitsOf};
use izar_model::Checkpoint;

/// Blocks a sequence of the harness may own.
pub const BLOCKS_PER_SEQ: usize = 64;

/// One sequence's tokens in a step.
pub struct Chunk<'a> {
    pub row: usize,
    pub start: usize,
    pub tokens: &'a [u32],
    pub logits: LogitsOf,
}

/// A model with room for `num_seqs` sequences.
pub struct Harness {
    pub model: CpuModel,
    block_tables: Vec<u32>,
}

impl Harness {
    pub fn new(checkpoint: &Checkpoint, num_seqs: usize, arithmetic: Arithmetic) -> Self {
        Self::with(checkpoint, num_seqs, |options| {
            options.arithmetic = arithmetic
        })
    }

    pub fn with(
        checkpoint: &Checkpoint,
        num_seqs: usize,
        change: impl FnOnce(&mut CpuOptions),
    ) -> Self {
        let mut options = CpuOptions::new(checkpoint.config());
        options.num_threads = 2;
        options.max_num_seqs = num_seqs;
        options.num_kv_blocks = num_seqs * BLOCKS_PER_SEQ;
        options.max_logit_rows = options.max_num_batched_tokens;
        change(&mut options);
        let model = CpuModel::load(checkpoint, options, &mut |_, _| {}).unwrap();
        // A permutation of all blocks: neighbours in a table are far apart in memory.
        let blocks = options.num_kv_blocks as u32;
        let block_tables = (0..blocks).map(|i| (i * 37 + 11) % blocks).collect();
        Self {
            model,
            block_tables,
        }
    }

    pub fn vocab(&self) -> usize {
        self.model.config().vocab_size
    }

    /// One step; the rows of logits.
    pub fn step(&mut self, chunks: &[Chunk<'_>]) -> Vec<Vec<f32>> {
        let entries: Vec<BatchEntry> = chunks
            .iter()
            .map(|chunk| BatchEntry {
                row: chunk.row as u32,
                start_pos: chunk.start as u32,
                num_tokens: chunk.tokens.len() as u32,
                logits: chunk.logits,
            })
            .collect();
        let tokens: Vec<u32> = chunks
            .iter()
            .flat_map(|chunk| chunk.tokens)
            .copied()
            .collect();
        let vocab = self.vocab();
        let batch = Batch {
            entries: &entries,
            tokens: &tokens,
            block_tables: &self.block_tables,
            blocks_per_row: BLOCKS_PER_SEQ,
        };
        self.model
            .forward(&batch)
            .chunks(vocab)
            .map(<[f32]>::to_vec)
            .collect()
    }

    /// Logits of every position of a prompt, in one chunk.
    pub fn prompt(&mut self, row: usize, tokens: &[u32]) -> Vec<Vec<f32>> {
        self.step(&[Chunk {
            row,
            start: 0,
            tokens,
            logits: LogitsOf::All,
        }])
    }

    /// Prefills `prompt`, then feeds back the best token `num` times; the logits of every generated step.
    pub fn greedy(&mut self, row: usize, prompt: &[u32], num: usize) -> Vec<Vec<f32>> {
        let mut rows = self.step(&[Chunk {
            row,
            start: 0,
            tokens: prompt,
            logits: LogitsOf::Last,
        }]);
        while rows.len() < num {
            let token = best(rows.last().unwrap());
            let start = prompt.len() + rows.len() - 1;
            rows.extend(self.step(&[Chunk {
                row,
                start,
                tokens: &[token],
                logits: LogitsOf::Last,
            }]));
        }
        rows
    }
}

/// Index of the largest logit, the lowest among equals.
pub fn best(logits: &[f32]) -> u32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&x| x == largest).unwrap() as u32
}

/// The bits of rows of logits, to compare exactly.
pub fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter()
        .map(|row| row.iter().map(|x| x.to_bits()).collect())
        .collect()
}

/// `fixtures/` of the workspace.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// The checkpoint of a fixture.
pub fn open(name: &str) -> Checkpoint {
    let dir = fixtures().join(name);
    let gguf = dir.join("model.gguf");
    Checkpoint::open(if gguf.exists() { &gguf } else { &dir }).unwrap()
}
