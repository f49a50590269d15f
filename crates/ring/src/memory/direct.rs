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
    /// Where what front ends wrote (records, input arena) is read from: the region, or a copy of its beginning.
    submitted: NonNull<u8>,
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
            submitted: base,
        }
    }

    /// The same region, for an engine to which its own copy of what front ends submit is nearer: request records and the
    /// input arena are read from `copy`, at the same offsets, everything else from the region. The engine copies a slot's
    /// record, and the spans it names, before [`EngineRing::claim`](crate::EngineRing::claim).
    ///
    /// # Safety
    /// `copy` is 8-byte aligned, and as many bytes as lie before the output arena are readable, initialised and unwritten
    /// while this value or a clone of it reads them.
    #[must_use]
    pub const unsafe fn reading_submissions_from(self, copy: NonNull<u8>) -> Self {
        Self {
            submitted: copy,
            ..self
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

    /// `num_words` words from `offset` on, checked once for a loop over them.
    pub(crate) fn words(&self, offset: u64, num_words: usize) -> Words<'_> {
        if num_words == 0 {
            return Words(&[]);
        }
        assert!(offset.is_multiple_of(8) && self.check(offset, 8 * num_words as u64).is_ok());
        // SAFETY: in bounds and 8-byte aligned (checked above, the base is page aligned); otherwise as
        // for `word`: mapped, initialised, shared by atomics only.
        Words(unsafe {
            let first = self.base.as_ptr().add(offset as usize).cast();
            core::slice::from_raw_parts(first, num_words)
        })
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

    /// Relaxed, whole words where they are aligned; the caller orders the whole.
    pub(super) fn copy_out(&self, offset: u64, dst: &mut [u8]) {
        let (head, num_words) = split(offset, dst.len());
        let (head, rest) = dst.split_at_mut(head);
        let (chunks, tail) = rest.as_chunks_mut::<8>();
        let (words_at, tail_at) = (
            offset + head.len() as u64,
            offset + (head.len() + 8 * num_words) as u64,
        );
        for (chunk, word) in chunks.iter_mut().zip(self.words(words_at, num_words).0) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        for (at, bytes) in [(offset, head), (tail_at, tail)] {
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = self.byte(at + i as u64).load(Ordering::Relaxed);
            }
        }
    }

    /// Relaxed, whole words where they are aligned; the caller orders the whole.
    pub(super) fn copy_in(&self, offset: u64, src: &[u8]) {
        let (head, num_words) = split(offset, src.len());
        let (head, rest) = src.split_at(head);
        let (chunks, tail) = rest.as_chunks::<8>();
        let (words_at, tail_at) = (
            offset + head.len() as u64,
            offset + (head.len() + 8 * num_words) as u64,
        );
        for (chunk, word) in chunks.iter().zip(self.words(words_at, num_words).0) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        for (at, bytes) in [(offset, head), (tail_at, tail)] {
            for (i, byte) in bytes.iter().enumerate() {
                self.byte(at + i as u64).store(*byte, Ordering::Relaxed);
            }
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
                self.submitted.as_ptr().add(offset as usize).cast(),
                len as usize,
            )
        }
    }

    /// Copies a submitted record out.
    pub(super) fn copy_record(&self, offset: u64, dst: &mut [u8]) {
        if self.submitted == self.base {
            return self.copy_out(offset, dst);
        }
        assert!(self.check(offset, dst.len() as u64).is_ok());
        // SAFETY: in bounds (checked above: records lie before the output arena); readable, initialised and unwritten, promised
        // at `reading_submissions_from`; `dst` is somebody else's memory.
        unsafe {
            let from = self.submitted.as_ptr().add(offset as usize);
            core::ptr::copy_nonoverlapping(from, dst.as_mut_ptr(), dst.len());
        }
    }
}

/// Words in a row; each may change at any time.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a>(&'a [AtomicU64]);

impl<'a> Words<'a> {
    pub(crate) fn get(self, index: usize) -> &'a AtomicU64 {
        &self.0[index]
    }
}

/// How `len` bytes at `offset` split: bytes up to the first aligned word, and whole words after them.
const fn split(offset: u64, len: usize) -> (usize, usize) {
    let to_a_word = (offset.wrapping_neg() % 8) as usize;
    let head = if to_a_word < len { to_a_word } else { len };
    (head, (len - head) / 8)
}
