//! Looking for what front ends want: submissions, cancellations, recycled slots.

use super::leases::LeaseTracker;
use super::{EngineRing, EngineSlot};
use crate::layout::{LeaseIdx, SlotIdx};
use crate::lease::LEASE_DOORBELL;
use crate::memory::Words;
use crate::sync::Ordering;
use crate::words::{GENERATION_SHIFT, SlotWord, State};

/// The words of slots in a row that a scan looks at.
#[derive(Clone, Copy)]
struct SlotWords<'a> {
    /// Status and count of each.
    progress: Words<'a>,
    submit: Words<'a>,
    cancel: Words<'a>,
    recycle: Words<'a>,
}

/// What happened to a slot. Each is reported once per generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotEvent {
    /// A request waits to be [claimed](EngineRing::claim) (or completed unclaimed).
    Submitted {
        /// The slot.
        slot: SlotIdx,
    },
    /// The front end does not want the rest, or is gone: complete the slot with `Cancelled`. Only for
    /// slots that are submitted and not complete.
    Cancelled {
        /// The slot.
        slot: SlotIdx,
    },
    /// The front end has read everything; the slot is empty.
    Recycled {
        /// The slot.
        slot: SlotIdx,
    },
}

impl<M: AsRef<[EngineSlot]> + AsMut<[EngineSlot]>> EngineRing<M> {
    /// Whether a doorbell has moved since the last scan: one load per lease. For an engine that waits for work.
    pub fn has_news(&self) -> bool {
        (0..self.layout.num_leases()).any(|lease| {
            let word = self
                .memory
                .word(self.layout.lease_offset(LeaseIdx(lease)) + LEASE_DOORBELL);
            // Relaxed: only a hint; the scan that follows acquires.
            self.leases[lease as usize].doorbell != Some(word.load(Ordering::Relaxed))
        })
    }

    /// Reports what is new since the last scan. One load per lease when no doorbell has moved; two
    /// loads per slot of a lease whose doorbell has.
    pub fn scan(&mut self, f: &mut (impl FnMut(SlotEvent) + ?Sized)) {
        for lease in (0..self.layout.num_leases()).map(LeaseIdx) {
            if self.notice_doorbell(lease, f) {
                self.scan_lease(lease, f);
            }
        }
    }

    /// Follows a lease's doorbell; whether it has moved since the last time, so that the lease's slots may have news.
    pub fn notice_doorbell(
        &mut self,
        lease: LeaseIdx,
        f: &mut (impl FnMut(SlotEvent) + ?Sized),
    ) -> bool {
        let word = self
            .memory
            .word(self.layout.lease_offset(lease) + LEASE_DOORBELL);
        // SYNC doorbell-rung: pairs with the front end's `write_flag` of the doorbell.
        // Makes the submit, cancel, recycle and claim words it stored before visible.
        let doorbell = Some(word.load(Ordering::Acquire));
        let has_moved = self.leases[lease.0 as usize].doorbell != doorbell;
        if has_moved {
            self.leases[lease.0 as usize].doorbell = doorbell;
            self.notice_claim(lease, f);
        }
        has_moved
    }

    fn scan_lease(&mut self, lease: LeaseIdx, f: &mut (impl FnMut(SlotEvent) + ?Sized)) {
        let LeaseTracker {
            held,
            generation: tag,
            ..
        } = self.leases[lease.0 as usize];
        if !held {
            return;
        }
        let memory = self.memory.clone();
        let slots = self.layout.lease_slots(lease);
        let (first, count) = (SlotIdx(slots.start), slots.len());
        let words = SlotWords {
            progress: memory.words(self.layout.progress_offset(first), 2 * count),
            submit: memory.words(self.layout.submit_offset(first), count),
            cancel: memory.words(self.layout.cancel_offset(first), count),
            recycle: memory.words(self.layout.recycle_offset(first), count),
        };
        for (i, slot) in slots.map(SlotIdx).enumerate() {
            self.look_at(slot, words, i, tag, f);
        }
    }

    /// Reports what is new in one slot: for an engine that finds slots that may have news by itself.
    pub fn scan_slot(&mut self, slot: SlotIdx, f: &mut (impl FnMut(SlotEvent) + ?Sized)) {
        let lease = self.layout.lease_of(slot);
        let LeaseTracker {
            held,
            generation: tag,
            ..
        } = self.leases[lease.0 as usize];
        if !held {
            return;
        }
        let memory = self.memory.clone();
        let words = SlotWords {
            progress: memory.words(self.layout.progress_offset(slot), 2),
            submit: memory.words(self.layout.submit_offset(slot), 1),
            cancel: memory.words(self.layout.cancel_offset(slot), 1),
            recycle: memory.words(self.layout.recycle_offset(slot), 1),
        };
        self.look_at(slot, words, 0, tag, f);
    }

    /// Looks at the words of `slot`, which are the `i`-th of `words`. `tag` is the generation of the lease, which is held.
    fn look_at(
        &mut self,
        slot: SlotIdx,
        words: SlotWords<'_>,
        i: usize,
        tag: u32,
        f: &mut (impl FnMut(SlotEvent) + ?Sized),
    ) {
        // Relaxed: the engine wrote the status word itself. It is read here rather than the
        // private table because it is a tenth as much memory.
        let status = words.progress.get(2 * i).load(Ordering::Relaxed);
        let generation = (status >> GENERATION_SHIFT) as u32;
        let word = |generation| {
            SlotWord {
                generation,
                lease: tag,
            }
            .pack()
        };
        // SYNC slot-submitted, slot-cancelled, slot-read-out: pairs with the front end's
        // `write_flag` of the submit, cancel or recycle word. Makes the request record and its
        // payload visible to `claim`; keeps a cancellation behind its submission; orders the
        // front end's last read of the slot's output before the engine's next write of it.
        match State::from_u8(status as u8) {
            Some(State::Empty) => {
                let next = generation.wrapping_add(1);
                if words.submit.get(i).load(Ordering::Acquire) == word(next) {
                    self.announce_submission(slot, next, f);
                    if words.cancel.get(i).load(Ordering::Acquire) == word(next) {
                        self.announce_cancel(slot, f);
                    }
                }
            }
            Some(State::DecodeCompleted) => {
                if words.recycle.get(i).load(Ordering::Acquire) == word(generation) {
                    self.empty(slot);
                    f(SlotEvent::Recycled { slot });
                }
            }
            _ => {
                if words.cancel.get(i).load(Ordering::Acquire) == word(generation) {
                    self.announce_cancel(slot, f);
                }
            }
        }
    }

    fn announce_submission(
        &mut self,
        slot: SlotIdx,
        generation: u32,
        f: &mut (impl FnMut(SlotEvent) + ?Sized),
    ) {
        let local = self.slot_mut(slot);
        if local.state == State::Empty {
            local.generation = generation;
            local.state = State::PrefillPending;
            let lease = self.layout.lease_of(slot);
            self.leases[lease.0 as usize].num_live += 1;
            f(SlotEvent::Submitted { slot });
        }
    }

    pub(super) fn announce_cancel(
        &mut self,
        slot: SlotIdx,
        f: &mut (impl FnMut(SlotEvent) + ?Sized),
    ) {
        let local = self.slot_mut(slot);
        if !local.cancelled {
            local.cancelled = true;
            f(SlotEvent::Cancelled { slot });
        }
    }
}
