//! The region as plain mapped memory.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU8;

use crate::sync::{AtomicU64, Ordering};

/// A mapped region that holds a ring. See the module for what it offers.
#[derive(Clone, Debug)]
pub struct RingMemory {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: the region is shared memory by nature; every access that can race is atomic, and `new` makes
// its caller promise the rest for every clone on every thread.
unsafe impl Send for RingMemory {}
// SAFETY: as for `Send`; no method touches state of its own.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Views `len` bytes at `base` as a ring's region.
    ///
    /// # Safety
    /// `base` is 4096-byte aligned, and `len` bytes from it stay mapped, readable, writable and
    /// initialised for as long as this value or a clone of it exists. Nothing reaches them except
    /// through `RingMemory` or by another process or device that follows the protocol. Whoever
    /// calls [`write`](Self::write) follows it too: in particular never into the arena ranges of a
    /// submitted request before its slot is empty again, for the engine borrows those.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self {
            base,
            len: len as u64,
        }
    }

    /// Size of the region in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Address of the region's first byte, for registering it with a device.
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && self.len >= 8 && offset <= self.len - 8,
            "no word at offset {offset}"
        );
        // SAFETY: in bounds and 8-byte aligned (checked above, the base is page aligned); mapped and
        // initialised for the life of `self` and shared by atomics only, both promised at `new`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset as usize).cast()) }
    }

    fn byte(&self, offset: u64) -> &AtomicU8 {
        assert!(offset < self.len, "no byte at offset {offset}");
        // SAFETY: in bounds (checked above); otherwise as for `word`.
        unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(offset as usize)) }
    }

    /// Loads a payload word. Relaxed: the caller acquired, or is, its writer.
    pub(crate) fn load_payload(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    /// Stores a payload word. Relaxed: a flag stored with release follows.
    pub(crate) fn store_payload(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    /// Zeroes whole words.
    pub(crate) fn zero(&self, range: Range<u64>) {
        for offset in range.step_by(8) {
            self.store_payload(offset, 0);
        }
    }

    /// Relaxed word by word; the caller orders the whole.
    pub(super) fn copy_out(&self, offset: u64, dst: &mut [u8]) {
        let mut at = offset;
        let mut rest = dst;
        while !rest.is_empty() {
            let skip = (at % 8) as usize;
            let take = (8 - skip).min(rest.len());
            let (head, tail) = rest.split_at_mut(take);
            if take == 8 {
                head.copy_from_slice(&self.load_payload(at).to_le_bytes());
            } else {
                for (i, byte) in head.iter_mut().enumerate() {
                    *byte = self.byte(at + i as u64).load(Ordering::Relaxed);
                }
            }
            at += take as u64;
            rest = tail;
        }
    }

    /// Relaxed word by word; the caller orders the whole.
    pub(super) fn copy_in(&self, offset: u64, src: &[u8]) {
        let mut at = offset;
        let mut rest = src;
        while !rest.is_empty() {
            let skip = (at % 8) as usize;
            let take = (8 - skip).min(rest.len());
            let (head, tail) = rest.split_at(take);
            match <[u8; 8]>::try_from(head) {
                Ok(word) => self.store_payload(at, u64::from_le_bytes(word)),
                Err(_) => {
                    for (i, byte) in head.iter().enumerate() {
                        self.byte(at + i as u64).store(*byte, Ordering::Relaxed);
                    }
                }
            }
            at += take as u64;
            rest = tail;
        }
    }

    /// Borrows `len` elements at `offset`.
    ///
    /// # Safety
    /// `T` has no padding and every bit pattern is a `T`. The front end has handed the range over (it
    /// lies in a claimed request's arena ranges), so nobody writes it while the borrow lives.
    ///
    /// # Panics
    /// When the range is misaligned or out of bounds: the caller has validated it.
    pub(crate) unsafe fn slice<T>(&self, offset: u64, len: u32) -> &[T] {
        if len == 0 {
            return &[];
        }
        let bytes = u64::from(len) * size_of::<T>() as u64;
        assert!(offset.is_multiple_of(align_of::<T>() as u64) && self.check(offset, bytes).is_ok());
        // SAFETY: in bounds and aligned (checked above, the base is page aligned), mapped and
        // initialised as promised at `new`, any bits are a `T`, and not written meanwhile: promised
        // by the caller and, for the other side, by the protocol.
        unsafe {
            core::slice::from_raw_parts(
                self.base.as_ptr().add(offset as usize).cast(),
                len as usize,
            )
        }
    }
}
