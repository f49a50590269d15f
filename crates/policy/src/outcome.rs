//! What goes in and out besides plans: refusals, step results, departures, errors.

use core::fmt;

/// Why `add` refuses a sequence. It never becomes part of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The prompt has no tokens.
    EmptyPrompt,
    /// `max_total_len` leaves no token to generate.
    NothingToGenerate,
    /// The prompt alone fills the model's length.
    TooLong {
        /// Tokens of the prompt.
        prompt_len: u32,
        /// The model's limit, prompt and output.
        max_model_len: u32,
    },
    /// The prompt's KV is larger than the whole pool.
    NeverFits {
        /// Blocks the prompt needs.
        num_blocks: u32,
        /// Blocks there are.
        pool_blocks: u32,
    },
    /// The slot is not below `num_slots`.
    UnknownSlot,
    /// The slot already holds a sequence.
    SlotBusy,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyPrompt => write!(f, "the prompt has no tokens"),
            Self::NothingToGenerate => write!(f, "the length limit leaves no token to generate"),
            Self::TooLong {
                prompt_len,
                max_model_len,
            } => {
                write!(
                    f,
                    "the prompt has {prompt_len} tokens, but prompt and output together may have {max_model_len}"
                )
            }
            Self::NeverFits {
                num_blocks,
                pool_blocks,
            } => {
                write!(
                    f,
                    "the prompt needs {num_blocks} KV blocks, but the pool has {pool_blocks}"
                )
            }
            Self::UnknownSlot => write!(f, "the slot is out of range"),
            Self::SlotBusy => write!(f, "the slot already holds a sequence"),
        }
    }
}

impl core::error::Error for Refusal {}

/// What the driver decided about a sampled token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Verdict {
    /// The sequence goes on, unless this token reaches its length limit.
    #[default]
    Continue = 0,
    /// The token ends the sequence (end-of-sequence, stop id, …).
    Stop = 1,
    /// The step failed for this sequence alone (non-finite logits): it leaves, the token does not count and what it cached is forgotten.
    Fail = 2,
    /// Nothing was sampled: what the sample depends on (a token mask) is not there yet. The sequence stays where it was and the
    /// same position is planned again; what a step in flight has of it beyond that is dropped.
    Defer = 3,
}

/// The outcome of one sampling entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct StepResult {
    /// The entry's slot.
    pub slot: u32,
    /// The sampled token.
    pub token: u32,
    /// What it means for the sequence.
    pub verdict: Verdict,
}

/// Why a sequence left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Cause {
    /// [`Verdict::Stop`].
    Stopped = 0,
    /// `max_total_len` or the largest length this engine allows.
    Length = 1,
    /// `cancel`.
    Cancelled = 2,
    /// [`Verdict::Fail`].
    Failed = 3,
}

/// A sequence that left. Its slot can be added again at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Departure {
    /// Its slot.
    pub slot: u32,
    /// Why.
    pub cause: Cause,
    /// Tokens it generated.
    pub num_generated: u32,
    /// Prompt tokens that its first admission took from the prefix cache.
    pub num_cached_tokens: u32,
    /// Times it was preempted.
    pub num_preemptions: u32,
    /// Clock value of the plan that first had it; `u64::MAX` when none had.
    pub first_planned_ns: u64,
}

/// Why `plan` made no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// Two steps are planned and not completed: only one may be in flight while the next is planned.
    TooFarAhead {
        /// The step to complete first.
        incomplete_step: u64,
    },
    /// The plan's arrays are shorter than `max_num_seqs`.
    TooSmall {
        /// Entries needed.
        expected: u32,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFarAhead { incomplete_step } => {
                write!(f, "complete step {incomplete_step} before planning another")
            }
            Self::TooSmall { expected } => {
                write!(f, "the plan's arrays must have {expected} entries")
            }
        }
    }
}

impl core::error::Error for PlanError {}

/// Why `complete_step` did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteError {
    /// Steps complete once each, in order, after they were planned.
    OutOfOrder {
        /// The next step to complete.
        expected: u64,
        /// The step given.
        got: u64,
    },
}

impl fmt::Display for CompleteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::OutOfOrder { expected, got } = self;
        write!(f, "step {got} was completed, but step {expected} is next")
    }
}

impl core::error::Error for CompleteError {}

/// Figures for metrics. Gauges are of now; `*_total` only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Gauges {
    /// Steps planned.
    pub num_steps_total: u64,
    /// Preemptions.
    pub num_preemptions_total: u64,
    /// Tokens of first-time admissions that were looked up in the prefix cache.
    pub prefix_query_tokens_total: u64,
    /// Of those, tokens found.
    pub prefix_hit_tokens_total: u64,
    /// Cached blocks overwritten because the pool had no free one.
    pub num_evictions_total: u64,
    /// Tokens computed, prompt and decode, recomputation included.
    pub num_computed_tokens_total: u64,
    /// [`Verdict::Defer`]s taken in.
    pub num_deferrals_total: u64,
    /// Sequences that own a row.
    pub num_running: u32,
    /// Sequences that wait, preempted ones included.
    pub num_waiting: u32,
    /// KV blocks in the pool.
    pub kv_blocks_total: u32,
    /// Blocks that running sequences use.
    pub kv_blocks_used: u32,
    /// Blocks nobody uses whose content can still be hit.
    pub kv_blocks_cached: u32,
    /// Blocks nobody uses, with nothing to hit.
    pub kv_blocks_free: u32,
}
