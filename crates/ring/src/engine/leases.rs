//! Leases as the engine follows them: noticing new holders, taking back what dead ones leave.

use super::{EngineRing, EngineSlot, SlotEvent, SlotResult};
use crate::error::EngineError;
use crate::layout::{LeaseIdx, SlotIdx};
use crate::lease::{
    LEASE_CLAIM, LEASE_HEARTBEAT, LEASE_VERDICT, LeaseClaim, LeaseVerdict, next_lease_generation,
};
use crate::sync::Ordering;
use crate::words::{CountWord, State, StatusWord};

/// What the engine knows about a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTracker {
    /// Generation of the current holder, or of the last one.
    pub(super) generation: u32,
    pub(super) held: bool,
    /// Slots that are announced, running or complete.
    pub(super) num_live: u32,
    /// Last doorbell acted on; `None` before the first scan.
    pub(super) doorbell: Option<u64>,
    /// Heartbeat last seen and how long it has stood still, ns.
    heartbeat: Option<(u64, u64)>,
    verdict: LeaseVerdict,
}

impl LeaseTracker {
    pub(super) const FRESH: Self = Self {
        generation: 0,
        held: false,
        num_live: 0,
        doorbell: None,
        heartbeat: None,
        verdict: LeaseVerdict {
            revoked: 0,
            drained: 0,
        },
    };
}

impl<M: AsRef<[EngineSlot]> + AsMut<[EngineSlot]>> EngineRing<M> {
    /// Revokes the leases of front ends that have died and reports what was running for them as
    /// cancelled; their slots come back as those are completed. `now_ns` is the engine clock; call
    /// it several times per lease timeout.
    ///
    /// A front end is dead when its heartbeat word has stood still for the lease timeout. Whatever
    /// the word says is fine, so the clocks of the two sides need not agree. Of the time between two
    /// calls at most a quarter of the timeout counts: an engine that was itself stopped for long
    /// looks at least five times before it calls anybody dead.
    pub fn reap_expired_leases(&mut self, now_ns: u64, f: &mut (impl FnMut(SlotEvent) + ?Sized)) {
        let since_last = now_ns.saturating_sub(self.reaped_ns);
        let passed_ns = since_last.min(self.lease_timeout_ns.div_ceil(4));
        self.reaped_ns = now_ns;
        for lease in (0..self.layout.num_leases()).map(LeaseIdx) {
            self.notice_claim(lease, f);
            if self.leases[lease.0 as usize].held && self.has_expired(lease, passed_ns) {
                let tracker = &mut self.leases[lease.0 as usize];
                tracker.verdict.revoked = tracker.generation;
                self.store_verdict(lease);
                self.abandon(lease, f);
            }
        }
    }

    fn has_expired(&mut self, lease: LeaseIdx, passed_ns: u64) -> bool {
        let word = self
            .memory
            .word(self.layout.lease_offset(lease) + LEASE_HEARTBEAT);
        // Relaxed: only its changing matters, it announces nothing.
        let heartbeat = word.load(Ordering::Relaxed);
        let tracker = &mut self.leases[lease.0 as usize];
        let stale_ns = match tracker.heartbeat {
            Some((seen, stale_ns)) if seen == heartbeat => stale_ns + passed_ns,
            _ => 0,
        };
        tracker.heartbeat = Some((heartbeat, stale_ns));
        stale_ns > self.lease_timeout_ns
    }

    /// Follows the claim word: a holder that let go (or was pushed out) leaves orphans; a successor is
    /// accepted once the lease is drained.
    pub(super) fn notice_claim(
        &mut self,
        lease: LeaseIdx,
        f: &mut (impl FnMut(SlotEvent) + ?Sized),
    ) {
        let word = self
            .memory
            .word(self.layout.lease_offset(lease) + LEASE_CLAIM);
        // SYNC lease-claimed: pairs with the front end's `compare_and_swap` or `write_flag` of the
        // claim word. Makes the end of a former holder's writes visible before a successor's.
        let claim = LeaseClaim::unpack(word.load(Ordering::Acquire));
        let tracker = &self.leases[lease.0 as usize];
        if tracker.held
            && claim
                != (LeaseClaim {
                    generation: tracker.generation,
                    held: true,
                })
        {
            self.abandon(lease, f);
        }
        let tracker = &mut self.leases[lease.0 as usize];
        let drained = !tracker.held && tracker.num_live == 0;
        if drained && claim.generation == next_lease_generation(tracker.generation) {
            tracker.generation = claim.generation;
            tracker.held = claim.held;
            tracker.heartbeat = None;
            self.drain_if_unused(lease);
        }
    }

    /// The holder is gone: what runs is cancelled, what is complete is emptied unread.
    fn abandon(&mut self, lease: LeaseIdx, f: &mut (impl FnMut(SlotEvent) + ?Sized)) {
        self.leases[lease.0 as usize].held = false;
        for slot in self.layout.lease_slots(lease) {
            let slot = SlotIdx(slot);
            match self.slot(slot).state {
                State::Empty => {}
                State::DecodeCompleted => self.empty(slot),
                _ => {
                    self.slot_mut(slot).orphaned = true;
                    self.announce_cancel(slot, f);
                }
            }
        }
        self.drain_if_unused(lease);
    }

    /// Lets the next holder in once the last one has left and nothing of it remains.
    pub(super) fn drain_if_unused(&mut self, lease: LeaseIdx) {
        let tracker = &mut self.leases[lease.0 as usize];
        if !tracker.held && tracker.num_live == 0 && tracker.verdict.drained != tracker.generation {
            tracker.verdict.drained = tracker.generation;
            self.store_verdict(lease);
        }
    }

    fn store_verdict(&self, lease: LeaseIdx) {
        let word = self
            .memory
            .word(self.layout.lease_offset(lease) + LEASE_VERDICT);
        // SYNC lease-drained: pairs with a front end's acquire read of the verdict word.
        // Ends the engine's use of the former holder's arena ranges before the next holder's begins.
        word.store(
            self.leases[lease.0 as usize].verdict.pack(),
            Ordering::Release,
        );
    }

    /// Rebuilds the private state of a slot another engine left, and ends what it was running.
    pub(super) fn adopt_slot(&mut self, slot: SlotIdx) {
        let at = self.layout.progress_offset(slot);
        // Acquire: the former engine may have been another process.
        let status = StatusWord::unpack(self.memory.word(at).load(Ordering::Acquire));
        let count = CountWord::unpack(self.memory.word(at + 8).load(Ordering::Acquire));
        let (generation, state) = status.map_or((count.generation, State::DecodePaused), |s| {
            (s.generation, s.state)
        });
        let num_generated = if count.generation == generation {
            count.num_generated
        } else {
            0
        };
        *self.slot_mut(slot) = EngineSlot {
            generation,
            state,
            num_generated,
            ..EngineSlot::EMPTY
        };
        if state == State::Empty {
            return;
        }
        let lease = self.layout.lease_of(slot);
        self.leases[lease.0 as usize].num_live += 1;
        if state != State::DecodeCompleted {
            self.complete(slot, EngineError::EngineRestarted, &SlotResult::default());
        }
    }

    /// Rebuilds what the engine knows about a lease; a holder that is gone is abandoned.
    pub(super) fn adopt_lease(&mut self, lease: LeaseIdx) {
        let base = self.layout.lease_offset(lease);
        // SYNC lease-claimed: as in `notice_claim`.
        let claim =
            LeaseClaim::unpack(self.memory.word(base + LEASE_CLAIM).load(Ordering::Acquire));
        // Relaxed: only engines write it, and the former one is gone.
        let verdict = LeaseVerdict::unpack(
            self.memory
                .word(base + LEASE_VERDICT)
                .load(Ordering::Relaxed),
        );
        let tracker = &mut self.leases[lease.0 as usize];
        tracker.verdict = verdict;
        tracker.generation = next_lease_generation(verdict.drained);
        tracker.held = claim
            == (LeaseClaim {
                generation: tracker.generation,
                held: true,
            });
        if claim.generation == verdict.drained {
            // Nobody has claimed it since it was drained.
            tracker.generation = verdict.drained;
        }
        if !tracker.held || verdict.revoked == tracker.generation {
            self.abandon(lease, &mut |_| {});
        }
    }
}
