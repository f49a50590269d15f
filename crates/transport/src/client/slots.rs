//! The slot tracker: which slots of the lease are free, and at which generation (Blink §4.4).
//!
//! A local cache: the ring is not read before a submission. A slot leaves the cache when it is taken and comes back when the
//! token reader has seen the engine write EMPTY for it. The search for a free one goes round from where the last one ended,
//! so it is O(1) amortised and neighbouring requests sit in neighbouring slots.

const BITS: u32 = u64::BITS;

/// Free slots of one lease.
#[derive(Debug)]
pub(crate) struct SlotTracker {
    first: u32,
    generations: Vec<u32>,
    free: Vec<u64>,
    num_free: u32,
    hint: usize,
}

/// A slot that the caller now owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TakenSlot {
    /// Slot index in the ring.
    pub(crate) slot: u32,
    /// Generation of the last request that used it.
    pub(crate) last_generation: u32,
}

impl SlotTracker {
    /// Slots `first..first + num_slots`, none of them known to be free.
    pub(crate) fn new(first: u32, num_slots: u32) -> SlotTracker {
        SlotTracker {
            first,
            generations: vec![0; num_slots as usize],
            free: vec![0; num_slots.div_ceil(BITS) as usize],
            num_free: 0,
            hint: 0,
        }
    }

    /// Takes the next free slot in turn.
    pub(crate) fn take(&mut self) -> Option<TakenSlot> {
        if self.num_free == 0 {
            return None;
        }
        let num_words = self.free.len();
        let word = (0..num_words)
            .map(|i| (self.hint + i) % num_words)
            .find(|&w| self.free[w] != 0)?;
        let bit = self.free[word].trailing_zeros();
        self.free[word] &= !(1 << bit);
        self.num_free -= 1;
        self.hint = word;
        let idx = word as u32 * BITS + bit;
        Some(TakenSlot {
            slot: self.first + idx,
            last_generation: self.generations[idx as usize],
        })
    }

    /// The engine says that `slot` is EMPTY after `generation`.
    pub(crate) fn put_back(&mut self, slot: u32, generation: u32) {
        let idx = slot - self.first;
        let mask = 1 << (idx % BITS);
        let word = &mut self.free[(idx / BITS) as usize];
        assert_eq!(*word & mask, 0, "slot {slot} given back twice");
        *word |= mask;
        self.generations[idx as usize] = generation;
        self.num_free += 1;
    }

    /// Slots of the lease.
    pub(crate) fn num_slots(&self) -> u32 {
        self.generations.len() as u32
    }

    /// Slots that can be taken now.
    pub(crate) fn num_free(&self) -> u32 {
        self.num_free
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn all_free(first: u32, num_slots: u32) -> SlotTracker {
        let mut tracker = SlotTracker::new(first, num_slots);
        (first..first + num_slots).for_each(|slot| tracker.put_back(slot, 0));
        tracker
    }

    #[test]
    fn every_slot_is_handed_out_once_and_then_none() {
        let mut tracker = all_free(100, 200);
        let taken: HashSet<u32> = std::iter::from_fn(|| tracker.take())
            .map(|t| t.slot)
            .collect();
        assert_eq!(taken, (100..300).collect());
        assert_eq!(
            (tracker.num_free(), tracker.num_slots(), tracker.take()),
            (0, 200, None)
        );
    }

    #[test]
    fn a_returned_slot_carries_its_generation() {
        let mut tracker = all_free(0, 1);
        let first = tracker.take().expect("free");
        tracker.put_back(first.slot, 41);
        assert_eq!(
            tracker.take(),
            Some(TakenSlot {
                slot: 0,
                last_generation: 41
            })
        );
    }

    #[test]
    fn slots_of_unknown_state_are_not_handed_out() {
        let mut tracker = SlotTracker::new(0, 64);
        assert_eq!(tracker.take(), None);
        tracker.put_back(63, 5);
        assert_eq!(tracker.take().map(|t| t.slot), Some(63));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_a_broken_invariant() {
        all_free(0, 8).put_back(3, 1);
    }
}
