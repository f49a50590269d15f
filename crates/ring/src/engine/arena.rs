//! A claimed request's variable-length parts, borrowed from the arenas.

use super::{EngineRing, EngineSlot};
use crate::layout::{OUTPUT_BYTES, SlotIdx};
use crate::memory::RingMemory;
use crate::request::{BadWords, LogitBias, Span};

impl<M: AsRef<[EngineSlot]> + AsMut<[EngineSlot]>> EngineRing<M> {
    /// Token ids of the prompt.
    pub fn prompt(&self, slot: SlotIdx) -> &[u32] {
        self.ids(self.slot(slot).record.prompt)
    }

    /// Token ids that stop the sequence.
    pub fn stop_ids(&self, slot: SlotIdx) -> &[u32] {
        self.ids(self.slot(slot).record.stop_ids)
    }

    /// Token sequences that must not appear.
    pub fn bad_words(&self, slot: SlotIdx) -> BadWords<'_> {
        BadWords::new(self.ids(self.slot(slot).record.bad_words))
    }

    /// If not empty, the only token ids allowed.
    pub fn allowed_ids(&self, slot: SlotIdx) -> &[u32] {
        self.ids(self.slot(slot).record.allowed_ids)
    }

    /// Pairs of a token id and what is added to its logit.
    pub fn logit_bias(&self, slot: SlotIdx) -> &[LogitBias] {
        self.biases(self.slot(slot).record.logit_bias)
    }

    /// Token ids produced so far, oldest first, read from the output arena.
    pub fn generated(&self, slot: SlotIdx) -> Generated<'_> {
        let local = self.slot(slot);
        Generated {
            memory: &self.memory,
            offset: local.record.output_offset,
            front: 0,
            back: local.num_generated,
        }
    }

    /// Number of tokens produced so far.
    pub fn num_generated(&self, slot: SlotIdx) -> u32 {
        self.slot(slot).num_generated
    }

    pub(super) fn ids(&self, span: Span) -> &[u32] {
        // SAFETY: any bits are a `u32`; the span belongs to a submitted request, whose arena ranges
        // the front end has handed over until the slot is empty again, and the borrow of `self`
        // ends before the engine can empty it.
        unsafe { self.memory.slice(span.offset, span.len) }
    }

    pub(super) fn biases(&self, span: Span) -> &[LogitBias] {
        // SAFETY: two 4-byte numbers without padding, any bits are such a pair; otherwise as in `ids`.
        unsafe { self.memory.slice(span.offset, span.len) }
    }
}

/// Token ids a sequence has produced, oldest first. Random access by [`get`](Self::get).
#[derive(Clone, Debug)]
pub struct Generated<'a> {
    memory: &'a RingMemory,
    offset: u64,
    front: u32,
    back: u32,
}

impl Generated<'_> {
    /// The `index`-th of the ids not yet iterated over.
    pub fn get(&self, index: u32) -> Option<u32> {
        (index < self.back - self.front).then(|| self.at(self.front + index))
    }

    fn at(&self, index: u32) -> u32 {
        // The id is the low half of an output record's first word.
        self.memory
            .load_payload(self.offset + u64::from(index) * OUTPUT_BYTES) as u32
    }
}

impl Iterator for Generated<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let token = self.get(0)?;
        self.front += 1;
        Some(token)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.back - self.front) as usize;
        (left, Some(left))
    }
}

impl DoubleEndedIterator for Generated<'_> {
    fn next_back(&mut self) -> Option<u32> {
        if self.front == self.back {
            return None;
        }
        self.back -= 1;
        Some(self.at(self.back))
    }
}

impl ExactSizeIterator for Generated<'_> {}
