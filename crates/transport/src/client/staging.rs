//! Where tokens land on the front end's side: a private mirror of the lease's output range.
//!
//! What the engine writes at an offset of the ring is copied to the same place here, by large contiguous reads, straight
//! from the transport (over a network: one registered buffer). So space for a request's tokens is taken once, by the output
//! arena's allocator, and nothing is allocated per token. Pages are committed when they are first touched.
//!
//! Who may touch what: the token reader writes a range before it publishes it; the request's handle reads it afterwards;
//! nobody touches a range outside the extent of a live request. The counter in `Stream` is what publishes.

use std::io;
use std::ops::Range;

use memmap2::{MmapOptions, MmapRaw};

/// The mirror.
pub(super) struct Staging {
    map: MmapRaw,
    /// The part of the ring's region that is mirrored.
    range: Range<u64>,
}

impl Staging {
    /// An empty mirror of `range`, byte offsets in the region.
    pub(super) fn new(range: Range<u64>) -> io::Result<Staging> {
        let len =
            usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
        Ok(Staging {
            map: map.into(),
            range,
        })
    }

    /// Address of `len` bytes at region offset `offset`.
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        assert!(
            self.range.start <= offset && offset + len as u64 <= self.range.end,
            "outside the mirrored range"
        );
        // SAFETY: the assertion keeps the result inside the mapping.
        unsafe {
            self.map
                .as_mut_ptr()
                .add((offset - self.range.start) as usize)
        }
    }

    /// Bytes that were published.
    ///
    /// # Safety
    /// The range was published to the caller and lies in an extent that outlives the result.
    pub(super) unsafe fn published(&self, offset: u64, len: usize) -> &[u8] {
        // SAFETY: mapped and initialised (zero at least); not written any more, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.at(offset, len), len) }
    }

    /// Bytes that are not published yet, to be filled.
    ///
    /// # Safety
    /// Only for the token reader, for a range that it has not published, in an extent that outlives the result; one slice
    /// at a time for any byte.
    #[expect(
        clippy::mut_from_ref,
        reason = "the mirror is shared memory; the contract above makes ranges exclusive"
    )]
    pub(super) unsafe fn unpublished(&self, offset: u64, len: usize) -> &mut [u8] {
        // SAFETY: mapped and initialised (zero at least); nobody else has it, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.at(offset, len), len) }
    }
}
