//! What the ring should do, said without words, offsets or memory: plain values and plain rules.

use izar_ring::{
    FinishReason, LeaseIdx, LeaseVerdict, MaskState, Observation, SlotEvent, SlotIdx, State,
};

/// (generation, lease generation) of a front end's word.
pub type Tagged = (u32, u32);

#[derive(Clone, Debug)]
pub struct Slot {
    pub submit: Tagged,
    pub cancel: Tagged,
    pub recycle: Tagged,
    /// Generation of the status word.
    pub generation: u32,
    pub state: State,
    /// Announced and not claimed: the status word still says empty.
    pub pending: bool,
    pub cancelled: bool,
    pub orphaned: bool,
    pub reason: Option<FinishReason>,
    pub tokens: Vec<u32>,
    /// Masks delivered by the submission's owner.
    pub num_masks: u32,
    /// Generation, count and flags of the mask word, and what lies in the buffers.
    pub mask_word: (u32, u32, [bool; 2]),
    pub masks: [u64; 2],
}

#[derive(Clone, Debug)]
pub struct Lease {
    /// (generation, held) of the claim word.
    pub claim: (u32, bool),
    /// The holder the engine knows, or the last one.
    pub known: u32,
    pub known_held: bool,
    pub verdict: LeaseVerdict,
    pub bell_rung: bool,
    pub beat: u64,
    /// (beat last seen, how long it stood still).
    pub seen: Option<(u64, u64)>,
}

pub struct Model {
    pub slots: Vec<Slot>,
    pub leases: Vec<Lease>,
    pub timeout_ns: u64,
}

impl Model {
    pub fn new(num_slots: usize, num_leases: usize, timeout_ns: u64) -> Self {
        let slot = Slot {
            submit: (0, 0),
            cancel: (0, 0),
            recycle: (0, 0),
            generation: 0,
            state: State::Empty,
            pending: false,
            cancelled: false,
            orphaned: false,
            reason: None,
            tokens: Vec::new(),
            num_masks: 0,
            mask_word: (0, 0, [false; 2]),
            masks: [0; 2],
        };
        let lease = Lease {
            claim: (0, false),
            known: 0,
            known_held: false,
            verdict: LeaseVerdict {
                revoked: 0,
                drained: 0,
            },
            // A new engine looks everywhere once.
            bell_rung: true,
            beat: 0,
            seen: None,
        };
        Self {
            slots: vec![slot; num_slots],
            leases: vec![lease; num_leases],
            timeout_ns,
        }
    }

    fn lease_slots(&self, lease: usize) -> std::ops::Range<usize> {
        let share = self.slots.len() / self.leases.len();
        lease * share..(lease + 1) * share
    }

    pub fn lease_of(&self, slot: usize) -> LeaseIdx {
        LeaseIdx((slot * self.leases.len() / self.slots.len()) as u32)
    }

    /// The generation in progress: the announced one if there is one.
    pub fn current(&self, slot: usize) -> u32 {
        self.slots[slot].generation + u32::from(self.slots[slot].pending)
    }

    pub fn scan(&mut self) -> Vec<SlotEvent> {
        let mut events = Vec::new();
        for lease in 0..self.leases.len() {
            if !std::mem::take(&mut self.leases[lease].bell_rung) {
                continue;
            }
            self.notice(lease, &mut events);
            if self.leases[lease].known_held {
                for slot in self.lease_slots(lease) {
                    self.scan_slot(slot, self.leases[lease].known, &mut events);
                }
            }
        }
        events
    }

    fn scan_slot(&mut self, index: usize, tag: u32, events: &mut Vec<SlotEvent>) {
        let slot = &mut self.slots[index];
        let idx = SlotIdx(index as u32);
        if slot.state == State::DecodeCompleted {
            if slot.recycle == (slot.generation, tag) {
                self.empty(index);
                events.push(SlotEvent::Recycled { slot: idx });
            }
            return;
        }
        if slot.state == State::Empty && !slot.pending && slot.submit == (slot.generation + 1, tag)
        {
            slot.pending = true;
            events.push(SlotEvent::Submitted { slot: idx });
        }
        let live = slot.pending || slot.state != State::Empty;
        let current = slot.generation + u32::from(slot.pending);
        // A resubmission of a pending slot under another tag hides its cancellation: nobody does that.
        if live && slot.cancel == (current, tag) && !slot.cancelled {
            slot.cancelled = true;
            events.push(SlotEvent::Cancelled { slot: idx });
        }
    }

    fn notice(&mut self, lease: usize, events: &mut Vec<SlotEvent>) {
        let (generation, held) = self.leases[lease].claim;
        if self.leases[lease].known_held && (generation, held) != (self.leases[lease].known, true) {
            self.abandon(lease, events);
        }
        let drained = self.leases[lease].verdict.drained == self.leases[lease].known;
        if drained && generation == self.leases[lease].known + 1 {
            self.leases[lease].known = generation;
            self.leases[lease].known_held = held;
            self.leases[lease].seen = None;
            self.drain(lease);
        }
    }

    fn abandon(&mut self, lease: usize, events: &mut Vec<SlotEvent>) {
        self.leases[lease].known_held = false;
        for index in self.lease_slots(lease) {
            let slot = &mut self.slots[index];
            if slot.state == State::DecodeCompleted {
                self.empty(index);
            } else if slot.pending || slot.state != State::Empty {
                slot.orphaned = true;
                if !slot.cancelled {
                    slot.cancelled = true;
                    events.push(SlotEvent::Cancelled {
                        slot: SlotIdx(index as u32),
                    });
                }
            }
        }
        self.drain(lease);
    }

    fn drain(&mut self, lease: usize) {
        let idle = self
            .lease_slots(lease)
            .all(|i| self.slots[i].state == State::Empty && !self.slots[i].pending);
        if idle && !self.leases[lease].known_held {
            self.leases[lease].verdict.drained = self.leases[lease].known;
        }
    }

    fn empty(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.state = State::Empty;
        slot.pending = false;
        slot.cancelled = false;
        slot.orphaned = false;
        slot.reason = None;
        slot.tokens.clear();
        self.drain(self.lease_of(index).0 as usize);
    }

    pub fn reap(&mut self, passed_ns: u64) -> Vec<SlotEvent> {
        let mut events = Vec::new();
        for index in 0..self.leases.len() {
            self.notice(index, &mut events);
            let lease = &mut self.leases[index];
            if !lease.known_held {
                continue;
            }
            let still = match lease.seen {
                Some((beat, still)) if beat == lease.beat => {
                    still + passed_ns.min(self.timeout_ns / 4)
                }
                _ => 0,
            };
            lease.seen = Some((lease.beat, still));
            if still > self.timeout_ns {
                lease.verdict.revoked = lease.known;
                self.abandon(index, &mut events);
            }
        }
        events
    }

    /// True if the claim succeeds; false if the lease is gone.
    pub fn claim(&mut self, index: usize) -> bool {
        let slot = &mut self.slots[index];
        slot.generation += 1;
        slot.pending = false;
        if slot.orphaned {
            self.empty(index);
            return false;
        }
        slot.state = State::PrefillProcessing;
        true
    }

    pub fn publish(&mut self, index: usize, token: u32) {
        let slot = &mut self.slots[index];
        slot.tokens.push(token);
        if slot.tokens.len() == 1 {
            slot.state = State::DecodeProcessing;
        }
    }

    pub fn complete(&mut self, index: usize, reason: FinishReason) {
        let slot = &mut self.slots[index];
        slot.generation += u32::from(slot.pending);
        slot.pending = false;
        slot.state = State::DecodeCompleted;
        slot.reason = Some(reason);
        if slot.orphaned {
            self.empty(index);
        }
    }

    /// What the engine must see of the mask of the next token.
    pub fn mask(&self, index: usize) -> (MaskState, u64) {
        let slot = &self.slots[index];
        let (next, (generation, count, is_open)) = (slot.tokens.len(), slot.mask_word);
        if generation != slot.generation || count as usize <= next {
            (MaskState::Awaited, 0)
        } else if is_open[next % 2] {
            (MaskState::Open, 0)
        } else {
            (MaskState::Ready, slot.masks[next % 2])
        }
    }

    /// What a front end must see of `generation`.
    pub fn observe(&self, index: usize, generation: u32) -> Observation {
        let slot = &self.slots[index];
        let num_generated = slot.tokens.len() as u32;
        if generation == slot.generation + 1 && slot.state == State::Empty {
            return Observation::Unclaimed;
        }
        if generation != slot.generation {
            return Observation::Lost;
        }
        match (slot.state, slot.reason) {
            (State::Empty, _) => Observation::Emptied,
            (State::DecodeCompleted, Some(reason)) => Observation::Completed {
                reason,
                num_generated,
            },
            (state, _) => Observation::Running {
                state,
                num_generated,
            },
        }
    }
}
