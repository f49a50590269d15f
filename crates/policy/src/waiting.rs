//! The waiting queue: a binary heap of slots, first in order of service on top.
//!
//! Each waiting sequence knows its place (`heap_idx`), so one in the middle is taken out in O(log n) too. Preempted
//! sequences come back with their old key and so stand before everybody who arrived later.

use crate::sequence::Sequence;

#[derive(Debug)]
pub(crate) struct WaitingQueue<'a> {
    pub(crate) heap: &'a mut [u32],
    pub(crate) len: &'a mut u32,
}

impl WaitingQueue<'_> {
    /// The slot that is first in line.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        if *self.len == 0 {
            None
        } else {
            Some(self.heap[0])
        }
    }

    pub(crate) fn push(&mut self, sequences: &mut [Sequence], slot: u32) {
        let idx = *self.len;
        *self.len += 1;
        self.put(sequences, idx, slot);
        self.sift_up(sequences, idx);
    }

    pub(crate) fn remove(&mut self, sequences: &mut [Sequence], slot: u32) {
        let idx = sequences[slot as usize].heap_idx;
        *self.len -= 1;
        if idx == *self.len {
            return;
        }
        let moved = self.heap[*self.len as usize];
        self.put(sequences, idx, moved);
        let idx = self.sift_up(sequences, idx);
        self.sift_down(sequences, idx);
    }

    fn put(&mut self, sequences: &mut [Sequence], idx: u32, slot: u32) {
        self.heap[idx as usize] = slot;
        sequences[slot as usize].heap_idx = idx;
    }

    fn swap(&mut self, sequences: &mut [Sequence], a: u32, b: u32) {
        let (slot_a, slot_b) = (self.heap[a as usize], self.heap[b as usize]);
        self.put(sequences, a, slot_b);
        self.put(sequences, b, slot_a);
    }

    fn before(&self, sequences: &[Sequence], a: u32, b: u32) -> bool {
        let (slot_a, slot_b) = (self.heap[a as usize], self.heap[b as usize]);
        sequences[slot_a as usize].key() < sequences[slot_b as usize].key()
    }

    fn sift_up(&mut self, sequences: &mut [Sequence], mut idx: u32) -> u32 {
        while idx > 0 {
            let parent = (idx - 1) / 2;
            if !self.before(sequences, idx, parent) {
                break;
            }
            self.swap(sequences, idx, parent);
            idx = parent;
        }
        idx
    }

    fn sift_down(&mut self, sequences: &mut [Sequence], mut idx: u32) {
        loop {
            let left = 2 * idx + 1;
            if left >= *self.len {
                return;
            }
            let right = left + 1;
            let child = if right < *self.len && self.before(sequences, right, left) {
                right
            } else {
                left
            };
            if !self.before(sequences, child, idx) {
                return;
            }
            self.swap(sequences, child, idx);
            idx = child;
        }
    }
}
