//! Leases: who may use which slots and arena bytes.
//!
//! The ranges of lease `i` follow from the geometry ([`RingLayout::lease_slots`](crate::RingLayout::lease_slots)
//! and its siblings), so they are disjoint by construction and nobody can claim more than its share.
//! A lease is three lines: what the holder says about itself, the doorbell, and the engine's verdict.

use crate::words::GENERATION_SHIFT;

/// Byte offset of the claim word in a lease.
pub const LEASE_CLAIM: u64 = 0;
/// Byte offset of the holder's id in a lease.
pub const LEASE_OWNER: u64 = 8;
/// Byte offset of the heartbeat word in a lease.
pub const LEASE_HEARTBEAT: u64 = 16;
/// Byte offset of the doorbell word in a lease.
pub const LEASE_DOORBELL: u64 = 128;
/// Byte offset of the verdict word in a lease.
pub const LEASE_VERDICT: u64 = 256;

/// Layout of one lease, for the C header; code goes through the offsets.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LeaseRecord {
    /// [`LeaseClaim`]; written by front ends, by compare-and-swap where several share a host.
    pub claim: u64,
    /// Free-form id of the holder (a process id, say), for people; written by the holder.
    pub owner: u64,
    /// Any value that differs from the last one; written by the holder. The engine only watches it
    /// change, on the engine's own clock, so the two clocks need not agree.
    pub heartbeat: u64,
    /// Zero.
    pub reserved0: [u8; 104],
    /// Changed by the holder after it stored a submit, cancel or recycle word.
    pub doorbell: u64,
    /// Zero.
    pub reserved1: [u8; 120],
    /// [`LeaseVerdict`]; written by the engine.
    pub verdict: u64,
    /// Zero.
    pub reserved2: [u8; 248],
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<LeaseRecord>() as u64 == crate::layout::LEASE_BYTES);
    assert!(offset_of!(LeaseRecord, claim) as u64 == LEASE_CLAIM);
    assert!(offset_of!(LeaseRecord, owner) as u64 == LEASE_OWNER);
    assert!(offset_of!(LeaseRecord, heartbeat) as u64 == LEASE_HEARTBEAT);
    assert!(offset_of!(LeaseRecord, doorbell) as u64 == LEASE_DOORBELL);
    assert!(offset_of!(LeaseRecord, verdict) as u64 == LEASE_VERDICT);
    assert!(LEASE_DOORBELL - LEASE_CLAIM >= crate::layout::LINE_BYTES);
    assert!(LEASE_VERDICT - LEASE_DOORBELL >= crate::layout::LINE_BYTES);
};

/// Claim word: `generation << 32 | held`. A fresh ring has generation 0, not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseClaim {
    /// Generation of the lease; the tag of every word its holder writes.
    pub generation: u32,
    /// False once the holder has let go.
    pub held: bool,
}

impl LeaseClaim {
    /// The word as stored.
    pub const fn pack(self) -> u64 {
        (self.generation as u64) << GENERATION_SHIFT | self.held as u64
    }

    /// The word stored as `word`.
    pub const fn unpack(word: u64) -> Self {
        Self {
            generation: (word >> GENERATION_SHIFT) as u32,
            held: word & 1 != 0,
        }
    }

    /// The claim a front end may put in place of this one: `Some` when the engine has drained this
    /// generation, whether its holder let go or died.
    pub const fn next(self, verdict: LeaseVerdict) -> Option<Self> {
        if verdict.drained == self.generation {
            Some(Self {
                generation: next_lease_generation(self.generation),
                held: true,
            })
        } else {
            None
        }
    }
}

/// The generation after `generation`. Skips 0, the tag of words nobody ever wrote.
pub const fn next_lease_generation(generation: u32) -> u32 {
    match generation.wrapping_add(1) {
        0 => 1,
        next => next,
    }
}

/// Verdict word: `revoked << 32 | drained`, written by the engine only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseVerdict {
    /// Last generation the engine took away from its holder. A holder that reads its own generation
    /// here must stop writing at once.
    pub revoked: u32,
    /// Last generation of which no slot is in use any more: the lease may be claimed by the next.
    pub drained: u32,
}

impl LeaseVerdict {
    /// The word as stored.
    pub const fn pack(self) -> u64 {
        (self.revoked as u64) << GENERATION_SHIFT | self.drained as u64
    }

    /// The word stored as `word`.
    pub const fn unpack(word: u64) -> Self {
        Self {
            revoked: (word >> GENERATION_SHIFT) as u32,
            drained: word as u32,
        }
    }
}
