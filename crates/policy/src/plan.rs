//! The plan of one step: what the executor gets.
//!
//! A plan is written once by `plan` into memory the caller owns (two of them, used in turn, in optimistic use) and
//! not touched afterwards. Entries are ordered for kernels: decodes first (one token each), then prefill chunks.
//!
//! Of a sequence of which `start` tokens have KV, an entry computes the tokens at positions
//! `[start, start + num_tokens)`. Their KV goes to `kv_slot(p) = table[row][p / block_size] * block_size + p % block_size`,
//! and their attention reads the KV of positions `[0, p]` through the same table row.

/// One sequence's part of a step. 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PlanEntry {
    /// Ring slot, which is the sequence's id.
    pub slot: u32,
    /// Batch row, which is the row of the block tables. Stays the same from admission until the sequence leaves or is preempted.
    pub row: u32,
    /// Position of the first token to compute.
    pub start: u32,
    /// Tokens to compute, at least 1.
    pub num_tokens: u32,
    /// Bits of [`entry_flags`].
    pub flags: u32,
    /// Valid entries of the table row: `ceil((start + num_tokens) / block_size)`.
    pub num_blocks: u32,
    /// How many of them this plan appended: the last `num_new_blocks` of the row's first `num_blocks` (all of them, cached
    /// blocks included, when the sequence is admitted). An executor with its own copy of the tables copies just these.
    pub num_new_blocks: u32,
    /// Index among the sequence's generated tokens of the one sampled here (0 for the first); meaningful with [`entry_flags::SAMPLES`].
    pub output_idx: u32,
}

const _: () = assert!(core::mem::size_of::<PlanEntry>() == 32);

/// Bits of [`PlanEntry::flags`].
pub mod entry_flags {
    /// The logits of the last token are sampled: a decode, or the last chunk of a prompt.
    pub const SAMPLES: u32 = 1;
    /// A chunk of a prompt (or of a recomputation).
    pub const PREFILL: u32 = 2;
    /// The sequence's first entry ever.
    pub const FIRST: u32 = 4;
    /// The sequence's first entry after a preemption. Its tokens from `start` on are computed again; the executor reads prompt and generated tokens from their history.
    pub const RESUMED: u32 = 8;
    /// The token at `start` is sampled by the step before, which had not completed when this plan was made: take it from
    /// what that step's sampler wrote for the same row (Albireo §5, early-feedback backfill). Only on decodes.
    pub const BACKFILL: u32 = 16;
}

impl PlanEntry {
    /// Whether the last token's logits are sampled.
    #[inline]
    pub fn samples(&self) -> bool {
        self.flags & entry_flags::SAMPLES != 0
    }

    /// Whether this is a prefill chunk, not a decode.
    #[inline]
    pub fn is_prefill(&self) -> bool {
        self.flags & entry_flags::PREFILL != 0
    }
}

/// Totals of one plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PlanHeader {
    /// Number of the step, from 1. Only meaningful when the plan is not empty: an empty plan is no step.
    pub step: u64,
    /// The clock value given to `plan`.
    pub planned_ns: u64,
    /// Entries, decodes and prefills.
    pub num_entries: u32,
    /// The first `num_decodes` entries are decodes.
    pub num_decodes: u32,
    /// Sum of `num_tokens`; at most `max_num_batched_tokens`.
    pub num_tokens: u32,
    /// Entries that sample.
    pub num_samples: u32,
    /// Sequences admitted by this plan (first time or again).
    pub num_admitted: u32,
    /// Sequences preempted by this plan.
    pub num_preempted: u32,
}

/// A plan in memory that the caller owns: `max_num_seqs` entries and as many preempted slots.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Totals.
    pub header: &'a mut PlanHeader,
    /// Room for `max_num_seqs` entries; the first `header.num_entries` are valid.
    pub entries: &'a mut [PlanEntry],
    /// Room for `max_num_seqs` slots; the first `header.num_preempted` are valid.
    pub preempted: &'a mut [u32],
}

impl Plan<'_> {
    /// The valid entries.
    pub fn entries(&self) -> &[PlanEntry] {
        &self.entries[..self.header.num_entries as usize]
    }

    /// Slots of the sequences that this plan preempted: they pause until an entry with [`entry_flags::RESUMED`].
    pub fn preempted(&self) -> &[u32] {
        &self.preempted[..self.header.num_preempted as usize]
    }

    /// Whether there is nothing to run. An empty plan is not a step and is not completed.
    pub fn is_empty(&self) -> bool {
        self.header.num_entries == 0
    }
}
