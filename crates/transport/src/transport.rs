//! The [`Transport`] trait: one-sided reads and writes of a remote region.
//!
//! "One-sided" means that the other side's processor takes no part: no message, no handler. What an implementation must
//! keep, and what the conformance suite checks:
//! - payload before flag: a reader that sees a value stored by [`Transport::write_flag`] also sees every byte that the
//!   same thread (or a thread that happened before it) wrote earlier;
//! - an aligned 8-byte word is never torn, whether it is read by [`Transport::read_word`] or inside a bulk
//!   [`Transport::read`]; nothing wider is promised;
//! - an access outside the region is refused and changes nothing.

use crate::wake::EventCount;

/// One piece of a [`Transport::read_batch`]: fill `dst` from `offset` on.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// Byte offset in the region.
    pub offset: u64,
    /// Destination; its length is the number of bytes read.
    pub dst: &'a mut [u8],
}

/// One-sided access to a region of `len()` bytes. All calls may come from any thread at any time.
pub trait Transport: Send + Sync {
    /// Size of the region in bytes.
    fn len(&self) -> u64;

    /// Whether the region has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `dst.len()` bytes at `offset` out of the region.
    ///
    /// Acquire: nothing that the caller reads afterwards is read before this. Words inside one call are read in no
    /// particular order, each aligned 8-byte word whole.
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), TransportError>;

    /// Runs many reads and returns when all are done; a transport with latency has them in flight together.
    ///
    /// Acquire, as [`Transport::read`]; the reads are in no particular order among themselves.
    fn read_batch(&self, ops: &mut [ReadOp<'_>]) -> Result<(), TransportError> {
        ops.iter_mut()
            .try_for_each(|op| self.read(op.offset, op.dst))
    }

    /// Copies `src` into the region at `offset`: payload, not ordered against other payload.
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), TransportError>;

    /// Stores one aligned word. Release: every earlier write of this thread is visible to whoever reads `value`.
    fn write_flag(&self, offset: u64, value: u64) -> Result<(), TransportError>;

    /// Loads one aligned word. Acquire, as [`Transport::read`].
    fn read_word(&self, offset: u64) -> Result<u64, TransportError>;

    /// Replaces the aligned word at `offset` by `new` if it holds `current`; returns what it held.
    ///
    /// Only for words that front ends of one side share among themselves (leases): it is atomic against other calls of
    /// this function, never against the engine. Acquire and release.
    fn compare_and_swap(&self, offset: u64, current: u64, new: u64) -> Result<u64, TransportError>;

    /// The event on which the engine sleeps, if it lives in this process: raised after every submit, cancel and recycle.
    fn engine_event(&self) -> Option<&EventCount> {
        None
    }

    /// The event that the engine raises after it published something, if it lives in this process and does so.
    fn reader_event(&self) -> Option<&EventCount> {
        None
    }
}

/// Why a one-sided access did not happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The range is not inside the region, or a word access is not 8-byte aligned.
    #[error("cannot reach {len} bytes at offset {offset} of a ring of {region_len} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Number of bytes asked for.
        len: u64,
        /// Size of the region.
        region_len: u64,
    },
    /// The connection to the engine's memory is gone.
    #[error("the connection to the engine is lost: {0}")]
    Disconnected(String),
}
