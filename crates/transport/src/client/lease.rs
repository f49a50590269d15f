//! This front end's lease: a share of the slots and arenas, and the words that it may write.
//!
//! Claiming is a compare-and-swap among front ends of one host; everything else is plain stores of words that nobody else
//! writes while the lease is held. All words carry the lease's generation, so what a former holder writes late is ignored.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use izar_ring::{
    LEASE_CLAIM, LEASE_DOORBELL, LEASE_HEARTBEAT, LEASE_OWNER, LEASE_VERDICT, LeaseClaim, LeaseIdx,
    LeaseVerdict, RingLayout, SlotIdx, SlotWord,
};

use super::outcome::ConnectError;
use crate::{Transport, TransportError};

/// A held lease.
pub(super) struct Lease {
    transport: Arc<dyn Transport>,
    layout: RingLayout,
    idx: LeaseIdx,
    generation: u32,
    /// Last value of the doorbell word. The lock also orders the stores of several threads, so that the engine, having seen
    /// one value, has seen all that was written before earlier values.
    doorbell: Mutex<u64>,
    heartbeat: AtomicU64,
}

impl Lease {
    /// Claims the first lease that is free.
    pub(super) fn claim(
        transport: Arc<dyn Transport>,
        layout: RingLayout,
        owner: u64,
    ) -> Result<Lease, ConnectError> {
        for idx in (0..layout.num_leases()).map(LeaseIdx) {
            let at = layout.lease_offset(idx);
            let word = transport.read_word(at + LEASE_CLAIM)?;
            let verdict = LeaseVerdict::unpack(transport.read_word(at + LEASE_VERDICT)?);
            let Some(claim) = LeaseClaim::unpack(word).next(verdict) else {
                continue;
            };
            // SYNC lease-claimed: pairs with the engine's acquire load when it notices the claim.
            if transport.compare_and_swap(at + LEASE_CLAIM, word, claim.pack())? != word {
                continue;
            }
            let doorbell = Mutex::new(transport.read_word(at + LEASE_DOORBELL)?);
            let heartbeat = AtomicU64::new(transport.read_word(at + LEASE_HEARTBEAT)?);
            let lease = Lease {
                transport,
                layout,
                idx,
                generation: claim.generation,
                doorbell,
                heartbeat,
            };
            lease.transport.write_flag(at + LEASE_OWNER, owner)?;
            lease.beat()?;
            lease.ring()?;
            return Ok(lease);
        }
        Err(ConnectError::NoLease(layout.num_leases()))
    }

    /// The layout of the ring.
    pub(super) fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Which lease it is.
    pub(super) fn idx(&self) -> LeaseIdx {
        self.idx
    }

    fn word(&self, generation: u32) -> u64 {
        SlotWord {
            generation,
            lease: self.generation,
        }
        .pack()
    }

    fn at(&self, word: u64) -> u64 {
        self.layout.lease_offset(self.idx) + word
    }

    /// Hands a slot with its record and payload to the engine.
    pub(super) fn submit(&self, slot: u32, generation: u32) -> Result<(), TransportError> {
        // SYNC slot-submitted: pairs with the engine's acquire load of the submit word.
        self.transport.write_flag(
            self.layout.submit_offset(SlotIdx(slot)),
            self.word(generation),
        )?;
        self.ring()
    }

    /// Asks the engine to end a slot's request.
    pub(super) fn cancel(&self, slot: u32, generation: u32) -> Result<(), TransportError> {
        // SYNC slot-cancelled: pairs with the engine's acquire load of the cancel word.
        self.transport.write_flag(
            self.layout.cancel_offset(SlotIdx(slot)),
            self.word(generation),
        )?;
        self.ring()
    }

    /// Tells the engine that everything of a completed slot has been read. Call [`Lease::ring`] after the last of several.
    pub(super) fn recycle(&self, slot: u32, generation: u32) -> Result<(), TransportError> {
        // SYNC slot-read-out: pairs with the engine's acquire load of the recycle word.
        self.transport.write_flag(
            self.layout.recycle_offset(SlotIdx(slot)),
            self.word(generation),
        )
    }

    /// Moves the doorbell word and wakes the engine if it sleeps in this process.
    pub(super) fn ring(&self) -> Result<(), TransportError> {
        {
            // A counter cannot be left half-changed, so a panic elsewhere does not spoil it.
            let mut doorbell = self.doorbell.lock().unwrap_or_else(PoisonError::into_inner);
            *doorbell = doorbell.wrapping_add(1);
            // SYNC doorbell-rung: pairs with the engine's acquire load of the doorbell word.
            self.transport
                .write_flag(self.at(LEASE_DOORBELL), *doorbell)?;
        }
        if let Some(event) = self.transport.engine_event() {
            event.raise();
        }
        Ok(())
    }

    /// Shows the engine that this front end lives.
    pub(super) fn beat(&self) -> Result<(), TransportError> {
        // Relaxed: any new value will do.
        let beat = self
            .heartbeat
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        self.transport.write_flag(self.at(LEASE_HEARTBEAT), beat)
    }

    /// Whether the engine has taken the lease away.
    pub(super) fn is_revoked(&self) -> Result<bool, TransportError> {
        let verdict = LeaseVerdict::unpack(self.transport.read_word(self.at(LEASE_VERDICT))?);
        Ok(verdict.revoked == self.generation)
    }

    /// Lets go: the engine ends what still runs under it. No word of the lease may be written afterwards.
    pub(super) fn release(&self) -> Result<(), TransportError> {
        let claim = LeaseClaim {
            generation: self.generation,
            held: false,
        };
        // SYNC lease-claimed: pairs with the engine's acquire load when it notices that the holder let go.
        self.transport
            .write_flag(self.at(LEASE_CLAIM), claim.pack())?;
        self.ring()
    }
}
