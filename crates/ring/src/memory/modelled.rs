//! The region as loom sees it: words are loom atomics, payload accesses are checked for races.
//!
//! Bytes of records and arenas live in plain memory; every access to them is mirrored by an access to
//! a loom cell, one per granule, so that loom reports a payload that is read without the edge that
//! should have published it. Built for small geometries: loom tracks every word and granule.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::{boxed::Box, vec};

use loom::cell::UnsafeCell;

use crate::layout::{
    HEADER_BYTES, LeaseIdx, OUTPUT_BYTES, REQUEST_BYTES, RESULT_BYTES, RingLayout, SlotIdx,
};
use crate::lease::{LEASE_CLAIM, LEASE_DOORBELL, LEASE_HEARTBEAT, LEASE_VERDICT};
use crate::sync::{AtomicU64, Ordering};

/// A region that loom watches. See the module for what it offers.
#[derive(Clone, Debug)]
pub struct RingMemory(Arc<Modelled>);

#[derive(Debug)]
struct Modelled {
    base: NonNull<[u64]>,
    words: BTreeMap<u64, AtomicU64>,
    /// Start of each payload granule; a granule reaches to the next one's start.
    granules: BTreeMap<u64, UnsafeCell<()>>,
}

// SAFETY: the bytes are only accessed along with the granule's loom cell, which reports races.
unsafe impl Send for Modelled {}
// SAFETY: as for `Send`.
unsafe impl Sync for Modelled {}

impl Drop for Modelled {
    fn drop(&mut self) {
        // SAFETY: `modelled` leaked this box, and this is its only owner.
        drop(unsafe { Box::from_raw(self.base.as_ptr()) });
    }
}

impl RingMemory {
    /// A zeroed region for `layout`, all of its bytes owned.
    pub fn modelled(layout: &RingLayout) -> Self {
        let mut words = BTreeMap::new();
        let mut word = |offset| words.insert(offset, AtomicU64::new(0));
        let mut granules = BTreeMap::new();
        let mut granule = |offset| granules.insert(offset, UnsafeCell::new(()));
        word(0);
        word(crate::header::HEADER_STATE);
        word(crate::header::HEADER_HEARTBEAT);
        granule(8);
        granule(HEADER_BYTES);
        word(layout.step_log_head());
        for lease in 0..layout.num_leases() {
            let base = layout.lease_offset(LeaseIdx(lease));
            for line in [LEASE_CLAIM, LEASE_HEARTBEAT, LEASE_DOORBELL, LEASE_VERDICT] {
                word(base + line);
            }
        }
        for slot in (0..layout.num_slots()).map(SlotIdx) {
            word(layout.submit_offset(slot));
            word(layout.cancel_offset(slot));
            word(layout.recycle_offset(slot));
            word(layout.mask_offset(slot));
            word(layout.progress_offset(slot));
            word(layout.progress_offset(slot) + 8);
            granule(layout.request_offset(slot));
            granule(layout.request_offset(slot) + REQUEST_BYTES);
            granule(layout.result_offset(slot));
            granule(layout.result_offset(slot) + RESULT_BYTES);
            // The tests put each slot's payload at these places.
            for piece in 0..4 {
                let offset = u64::from(slot.0) * 64 + piece * 16;
                granule(layout.input_arena().start + offset);
            }
            for record in 0..4 {
                let offset = u64::from(slot.0) * 64 + record * OUTPUT_BYTES;
                granule(layout.output_arena().start + offset);
            }
        }
        let bytes = vec![0; (layout.total_bytes() / 8) as usize].into_boxed_slice();
        Self(Arc::new(Modelled {
            base: NonNull::from(Box::leak(bytes)),
            words,
            granules,
        }))
    }

    /// Size of the region in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        8 * self.0.base.len() as u64
    }

    pub(crate) fn word(&self, offset: u64) -> &AtomicU64 {
        self.0
            .words
            .get(&offset)
            .unwrap_or_else(|| panic!("no shared word at offset {offset}"))
    }

    pub(crate) fn words(&self, offset: u64, _num_words: usize) -> Words<'_> {
        Words {
            memory: self,
            offset,
        }
    }

    /// Tells loom that the bytes are read or written now.
    fn touch(&self, range: Range<u64>, write: bool) {
        let first = self.0.granules.range(..=range.start).next_back();
        let start = first.map_or(range.start, |(start, _)| *start);
        for cell in self
            .0
            .granules
            .range(start..range.end)
            .map(|(_, cell)| cell)
        {
            if write {
                cell.with_mut(|_| ())
            } else {
                cell.with(|_| ())
            }
        }
    }

    fn payload(&self, offset: u64) -> *mut u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len());
        self.0
            .base
            .as_ptr()
            .cast::<u64>()
            .wrapping_add((offset / 8) as usize)
    }

    pub(crate) fn load_payload(&self, offset: u64) -> u64 {
        self.touch(offset..offset + 8, false);
        // SAFETY: in bounds (`payload` checks); loom has just vouched that nobody writes it.
        unsafe { self.payload(offset).read() }
    }

    pub(crate) fn store_payload(&self, offset: u64, value: u64) {
        self.touch(offset..offset + 8, true);
        // SAFETY: in bounds (`payload` checks); loom has just vouched that nobody else uses it.
        unsafe { self.payload(offset).write(value) }
    }

    /// A new model's bytes are zero already.
    pub(crate) fn zero(&self, _range: Range<u64>) {}

    pub(super) fn copy_out(&self, offset: u64, dst: &mut [u8]) {
        for (i, chunk) in dst.chunks_exact_mut(8).enumerate() {
            let at = offset + 8 * i as u64;
            let word = match self.0.words.get(&at) {
                Some(word) => word.load(Ordering::Relaxed),
                None => self.load_payload(at),
            };
            chunk.copy_from_slice(&word.to_le_bytes());
        }
    }

    pub(super) fn copy_record(&self, offset: u64, dst: &mut [u8]) {
        self.copy_out(offset, dst);
    }

    pub(super) fn copy_in(&self, offset: u64, src: &[u8]) {
        for (i, chunk) in src.chunks_exact(8).enumerate() {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.store_payload(offset + 8 * i as u64, u64::from_le_bytes(word));
        }
    }

    /// Borrows `len` elements at `offset`.
    ///
    /// # Safety
    /// `T` has no padding and every bit pattern is a `T`; nobody writes the range while the borrow
    /// lives.
    ///
    /// # Panics
    /// When the range is misaligned or out of bounds.
    pub(crate) unsafe fn slice<T>(&self, offset: u64, len: u32) -> &[T] {
        if len == 0 {
            return &[];
        }
        let bytes = u64::from(len) * size_of::<T>() as u64;
        assert!(offset.is_multiple_of(8) && self.check(offset, bytes).is_ok());
        self.touch(offset..offset + bytes, false);
        // SAFETY: in bounds and aligned (checked above), alive as long as `self`, any bits are a
        // `T`; promised not to be written meanwhile.
        unsafe { core::slice::from_raw_parts(self.payload(offset).cast(), len as usize) }
    }
}

/// Words in a row.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a> {
    memory: &'a RingMemory,
    offset: u64,
}

impl<'a> Words<'a> {
    pub(crate) fn get(self, index: usize) -> &'a AtomicU64 {
        self.memory.word(self.offset + 8 * index as u64)
    }
}
