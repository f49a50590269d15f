//! A region of memory that holds a ring, as somebody in whose address space it is mapped sees it.
//!
//! [`RingMemory`] offers what a network card would (one-sided `read`, `write`, `write_flag`,
//! `read_word`, `compare_and_swap`, each with its ordering stated) and, inside this crate, what the
//! engine needs on top. It owns nothing: whoever mapped the region keeps it mapped.
//!
//! All access is by whole-word atomics where both sides may be at it at once, so that racing reads are
//! merely stale, never undefined. Under `cfg(loom)` the words are loom's and payload accesses are
//! checked for races.

#[cfg(not(loom))]
mod direct;
#[cfg(loom)]
mod modelled;

use core::fmt;

#[cfg(not(loom))]
pub use direct::RingMemory;
#[cfg(not(loom))]
pub(crate) use direct::Words;
#[cfg(loom)]
pub use modelled::RingMemory;
#[cfg(loom)]
pub(crate) use modelled::Words;

use crate::sync::{Ordering, fence};

/// A one-sided access that does not lie inside the region, or is not aligned to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// Byte offset asked for.
    pub offset: u64,
    /// Bytes asked for.
    pub len: u64,
    /// Size of the region.
    pub region_bytes: u64,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offset,
            len,
            region_bytes,
        } = self;
        write!(
            f,
            "access to {len} bytes at offset {offset} of a ring of {region_bytes} bytes"
        )
    }
}

impl core::error::Error for OutOfBounds {}

impl RingMemory {
    fn check(&self, offset: u64, len: u64) -> Result<(), OutOfBounds> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(OutOfBounds {
                offset,
                len,
                region_bytes: self.len(),
            }),
        }
    }

    fn check_word(&self, offset: u64) -> Result<(), OutOfBounds> {
        if offset.is_multiple_of(8) {
            self.check(offset, 8)
        } else {
            Err(OutOfBounds {
                offset,
                len: 8,
                region_bytes: self.len(),
            })
        }
    }

    /// Copies bytes out. Nothing the caller reads later is read before them; aligned 8-byte words
    /// inside the range are read whole, in no particular order.
    ///
    /// # Errors
    /// When the range does not lie inside the region.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), OutOfBounds> {
        self.check(offset, dst.len() as u64)?;
        self.copy_out(offset, dst);
        // Every pair whose reading end is a bulk read: makes what was stored before any word just
        // read visible to what is read next (SYNC token-published, slot-completed, slot-emptied).
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Copies bytes in. Payload: visible to the other side once a later
    /// [`write_flag`](Self::write_flag) is.
    ///
    /// # Errors
    /// When the range does not lie inside the region.
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), OutOfBounds> {
        self.check(offset, src.len() as u64)?;
        self.copy_in(offset, src);
        Ok(())
    }

    /// Loads one word. Nothing the caller reads later is read before it.
    ///
    /// # Errors
    /// When `offset` is not that of a word inside the region.
    pub fn read_word(&self, offset: u64) -> Result<u64, OutOfBounds> {
        self.check_word(offset)?;
        // SYNC engine-state, lease-drained: the reading end of the engine's single words.
        Ok(self.word(offset).load(Ordering::Acquire))
    }

    /// Stores one word after everything the caller read or wrote before.
    ///
    /// # Errors
    /// When `offset` is not that of a word inside the region.
    pub fn write_flag(&self, offset: u64, value: u64) -> Result<(), OutOfBounds> {
        self.check_word(offset)?;
        // SYNC slot-submitted, slot-cancelled, slot-read-out, doorbell-rung, lease-claimed,
        // mask-delivered: the writing end of the front end's words.
        self.word(offset).store(value, Ordering::Release);
        Ok(())
    }

    /// Replaces the word by `new` if it is `current`; returns what it was. Ordered both ways. Only
    /// for front ends of one host among themselves (the claim word of a lease).
    ///
    /// # Errors
    /// When `offset` is not that of a word inside the region.
    pub fn compare_and_swap(
        &self,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<u64, OutOfBounds> {
        self.check_word(offset)?;
        // SYNC lease-claimed: pairs with the acquire load in `EngineRing::notice_claim`; the acquire
        // half pairs with another front end's swap.
        let swapped =
            self.word(offset)
                .compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(swapped.unwrap_or_else(|was| was))
    }

    /// Copies a record out, for the engine, after the word that announced it was acquired.
    pub(crate) fn record<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.copy_record(offset, &mut bytes);
        bytes
    }
}
