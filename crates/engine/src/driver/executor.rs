//! What a placement drives: an executor takes a step's batch, computes and samples it, and hands back what it sampled.
//!
//! Work travels in boxes that go round: the scheduler fills a [`StepWork`], `launch` passes it to the executor, `wait` returns
//! it with the output filled in, and the scheduler uses the same box again. Nothing is allocated per step.
//!
//! Steps run in launch order. A second step may be launched while the first runs: its decode tokens are then not
//! known to the scheduler and come from what the executor sampled last for the same row (early-feedback backfill,
//! Albireo §5), so the scheduler never passes decode tokens at all.

use std::time::Duration;

use izar_ring::{EngineError, LogitBias, LogprobEntry};
use izar_transport::TokenMasks;
use thiserror::Error;

use crate::sampling::SamplingParams;
use crate::sampling::stop::FinishReason;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepEntry {
    /// Ring slot of the sequence.
    pub slot: u32,
    /// Batch row that holds its sampler state.
    pub row: u32,
    /// Position of the first token.
    pub start: u32,
    /// Tokens to compute, at least 1.
    pub num_tokens: u32,
    /// Valid block ids in this entry's row of [`StepWork::block_tables`].
    pub num_blocks: u32,
    /// Sample the logits of the last token.
    pub samples: bool,
    /// A decode: its one token is the row's newest, which was sampled for it last or ends the history it was bound with.
    pub is_decode: bool,
}

/// A sequence that takes a row before the step runs, new or resumed after a preemption.
#[derive(Clone, Debug, Default)]
pub struct RowBinding {
    /// The row.
    pub row: u32,
    /// Numbers of its request.
    pub params: SamplingParams,
    /// What ends it.
    pub limits: StopLimits,
    /// The request's own stop tokens.
    pub stop_ids: Vec<u32>,
    /// Tokens the request restricts itself to; empty for all.
    pub allowed_ids: Vec<u32>,
    /// Where each of its tokens finds its mask, if it is masked: that of output index `k` must be there when `k` is sampled.
    pub masks: Option<TokenMasks>,
    /// Log-probabilities wanted of its prompt's tokens but the first: of so many likely ones besides the token itself.
    pub prompt_logprobs: Option<u32>,
    /// Token id and addend.
    pub logit_bias: Vec<LogitBias>,
    /// Banned token sequences, each its length followed by its ids.
    pub bad_words: Vec<u32>,
    /// Prompt tokens and then the tokens generated so far.
    pub history: Vec<u32>,
}

/// Lengths that end a sequence. In tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StopLimits {
    /// Treat end-of-sequence tokens as ordinary ones.
    pub ignore_eos: bool,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Prompt tokens.
    pub prompt_len: u32,
}

/// Why a row has no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoToken {
    /// It has to wait: its mask is not there, or the token before this one was itself put off. The row is as it was; the
    /// scheduler plans the same position again. Other rows never wait for it.
    Deferred,
    /// It cannot be sampled: this sequence ends, the others go on.
    Failed(EngineError),
}

impl From<EngineError> for NoToken {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

/// Log-probabilities of one prompt token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptLogprobs {
    /// Ring slot of the sequence.
    pub slot: u32,
    /// Position of the token, at least 1.
    pub position: u32,
    /// Its rank among the logits at the position before, 1 for the largest.
    pub rank: u32,
    /// Where its entries start in [`StepOutput::logprobs`].
    pub first_logprob: u32,
    /// How many there are: the token's, then the most likely ones'.
    pub num_logprobs: u32,
}

/// What one row sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowSample {
    /// Ring slot of the sequence.
    pub slot: u32,
    /// The token, or why there is none.
    pub token: Result<u32, NoToken>,
    /// Whether the token ends the sequence.
    pub finish: Option<FinishReason>,
    /// Rank of the token among the raw logits, 1 for the largest; 0 when no log-probabilities were asked for.
    pub rank: u32,
    /// Where its entries start in [`StepOutput::logprobs`].
    pub first_logprob: u32,
    /// How many there are: the sampled token's, then the most likely ones'.
    pub num_logprobs: u32,
}

/// What a step produced.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// One for each entry that samples, in entry order.
    pub samples: Vec<RowSample>,
    /// One for each prompt token that the step computed for a row that wants its prompt's log-probabilities.
    pub prompt_logprobs: Vec<PromptLogprobs>,
    /// Log-probabilities of all samples and prompt tokens that asked for them.
    pub logprobs: Vec<LogprobEntry>,
    /// When the executor began the step. Nanoseconds of the engine's clock.
    pub started_ns: u64,
    /// When the last token was sampled.
    pub finished_ns: u64,
    /// Of that, time spent sampling.
    pub sampling_ns: u64,
}

/// A step on its way to the executor and back.
#[derive(Clone, Debug, Default)]
pub struct StepWork {
    /// Number of the step.
    pub step: u64,
    /// Rows that change hands before the step.
    pub bindings: Vec<RowBinding>,
    /// Valid bindings; the rest keep their memory for later steps.
    pub num_bindings: usize,
    /// What to compute: decodes first.
    pub entries: Vec<StepEntry>,
    /// Token ids of all entries, concatenated; a decode's is filled in by the executor.
    pub tokens: Vec<u32>,
    /// Block ids `[entries, blocks_per_row]`, row-major.
    pub block_tables: Vec<u32>,
    /// Row stride of `block_tables`.
    pub blocks_per_row: usize,
    /// Filled by the executor.
    pub output: StepOutput,
}

/// The executor is gone: its thread panicked or its device failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the step executor failed: {0}")]
pub struct ExecutorFailed(pub String);

/// Computes steps, one after the other, in launch order.
pub trait Executor: Send {
    /// Passes a step on. Returns at once; at most two steps may be launched and not waited for.
    ///
    /// # Errors
    /// [`ExecutorFailed`]; the work is lost.
    fn launch(&mut self, work: Box<StepWork>) -> Result<(), ExecutorFailed>;

    /// The oldest launched step with its output, or nothing when `timeout` passes first.
    ///
    /// # Errors
    /// [`ExecutorFailed`].
    fn wait(&mut self, timeout: Duration) -> Result<Option<Box<StepWork>>, ExecutorFailed>;
}

impl StepWork {
    /// Work with room for any step of `max_num_seqs` entries, `max_num_tokens` tokens and `max_blocks_per_seq` blocks an
    /// entry, so that filling it does not allocate.
    pub fn with_capacity(
        max_num_seqs: usize,
        max_num_tokens: usize,
        max_blocks_per_seq: usize,
    ) -> Self {
        Self {
            entries: Vec::with_capacity(max_num_seqs),
            tokens: Vec::with_capacity(max_num_tokens),
            block_tables: Vec::with_capacity(max_num_seqs * max_blocks_per_seq),
            output: StepOutput {
                samples: Vec::with_capacity(max_num_seqs),
                ..StepOutput::default()
            },
            ..Self::default()
        }
    }

    /// Empties the work for another step; nothing is freed.
    pub fn clear(&mut self) {
        self.num_bindings = 0;
        self.entries.clear();
        self.tokens.clear();
        self.block_tables.clear();
        self.output.samples.clear();
        self.output.prompt_logprobs.clear();
        self.output.logprobs.clear();
    }

    /// The next binding to fill, emptied; its vectors keep their memory.
    pub fn next_binding(&mut self) -> &mut RowBinding {
        if self.num_bindings == self.bindings.len() {
            self.bindings.push(RowBinding::default());
        }
        let binding = &mut self.bindings[self.num_bindings];
        self.num_bindings += 1;
        binding.stop_ids.clear();
        binding.allowed_ids.clear();
        binding.masks = None;
        binding.prompt_logprobs = None;
        binding.logit_bias.clear();
        binding.bad_words.clear();
        binding.history.clear();
        binding
    }
}
