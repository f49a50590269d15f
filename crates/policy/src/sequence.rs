//! What the policy knows of one sequence.

use crate::hash::BlockHasher;

/// The slot holds no sequence.
pub(crate) const VACANT: u32 = 0;
/// The sequence is in the waiting queue: new, or preempted.
pub(crate) const WAITING: u32 = 1;
/// The sequence owns a row.
pub(crate) const RUNNING: u32 = 2;

/// One entry of the sequence table. Opaque outside the crate; zeroed memory is a table of vacant slots.
///
/// Lengths, all in tokens: `num_computed <= len`, `known_len <= len <= known_len + 2`, `len <= max_len`.
/// A sequence decodes when only the newest of its tokens is without KV and its prefill is over, so
/// `num_computed >= prefill_end` means `num_computed == len - 1`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Sequence {
    /// The block after the last hashed one, as far as its tokens are known.
    pub(crate) hasher: BlockHasher,
    pub(crate) arrival_ns: u64,
    /// Number of the `add` that made it; breaks ties of `arrival_ns`, and tells sequences of one slot apart.
    pub(crate) order: u64,
    /// First step whose result counts. Results of earlier steps belong to the slot's previous sequence, or were planned behind a
    /// sample that was deferred.
    pub(crate) first_step: u64,
    /// Last step planned with it.
    pub(crate) last_step: u64,
    pub(crate) first_planned_ns: u64,
    pub(crate) phase: u32,
    pub(crate) row: u32,
    pub(crate) priority: i32,
    pub(crate) prompt_len: u32,
    /// Length at which it stops by itself.
    pub(crate) max_len: u32,
    /// Prompt and generated tokens whose ids the policy was told.
    pub(crate) known_len: u32,
    /// Length once every planned step is done, if nobody stops: `known_len` and the samples in flight.
    pub(crate) len: u32,
    /// Tokens with KV once every planned step is done.
    pub(crate) num_computed: u32,
    /// `len` at its last admission: where prefill ends and decode begins.
    pub(crate) prefill_end: u32,
    /// Valid entries of its table row.
    pub(crate) num_blocks: u32,
    /// Leading blocks already offered to the prefix table.
    pub(crate) num_registered: u32,
    /// Leading blocks whose hash is stored.
    pub(crate) num_hashes: u32,
    /// No hash page was left: the rest is not cached.
    pub(crate) unhashable: u32,
    /// Its prompt is computed, not taken from the prefix cache.
    pub(crate) computes_all: u32,
    /// Where it is in the waiting heap.
    pub(crate) heap_idx: u32,
    pub(crate) num_cached_tokens: u32,
    pub(crate) num_preemptions: u32,
}

impl Sequence {
    /// Order of service: priority, then arrival, then order of `add`. The smallest runs first and is preempted last.
    #[inline]
    pub(crate) fn key(&self) -> (i32, u64, u64) {
        (self.priority, self.arrival_ns, self.order)
    }

    #[inline]
    pub(crate) fn is_prefilling(&self) -> bool {
        self.num_computed < self.prefill_end
    }

    /// A token that `step` sampled for this slot is this sequence's next.
    #[inline]
    pub(crate) fn accepts(&self, step: u64) -> bool {
        self.phase != VACANT && self.known_len < self.len && self.first_step <= step
    }

    /// Its last token, by length, is in flight: nothing more to plan.
    #[inline]
    pub(crate) fn ends_in_flight(&self) -> bool {
        self.len >= self.max_len
    }
}
