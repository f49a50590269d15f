//! The ring against its model: the same random operations on both, the same answers from both.
mod model;

use std::cell::RefCell;

use crate::common::{OPTIONS, SMALL, engine, events, output};
use crate::heap::Heap;
use izar_ring::*;
use model::Model;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// One thing that happens, to a slot or lease chosen by index. `skew` makes a word speak of another
/// generation than the current one, `stale` of a former lease.
#[derive(Clone, Debug)]
enum Op {
    ClaimLease(usize),
    ReleaseLease(usize),
    Beat(usize),
    Submit {
        slot: usize,
        skew: u32,
        stale: bool,
        bell: bool,
    },
    Cancel {
        slot: usize,
        skew: u32,
        stale: bool,
    },
    Recycle {
        slot: usize,
        skew: u32,
        stale: bool,
    },
    Scan,
    Reap {
        passed_ns: u64,
    },
    Claim(usize),
    Publish {
        slot: usize,
        token: u32,
    },
    Pause {
        slot: usize,
        paused: bool,
    },
    Complete {
        slot: usize,
        reason: FinishReason,
    },
    Deliver {
        slot: usize,
        skew: u32,
        mask: Option<u64>,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let slot = || 0..SMALL.num_slots as usize;
    let lease = || 0..SMALL.num_leases as usize;
    let skew = || prop_oneof![8 => Just(0u32), 1 => Just(1u32), 1 => Just(u32::MAX)];
    let stale = || prop::bool::weighted(0.1);
    let reason = prop_oneof![
        Just(FinishReason::Stop),
        Just(FinishReason::Length),
        Just(FinishReason::Cancelled),
        Just(FinishReason::Error(EngineError::NeverFits)),
    ];
    let submit = (slot(), skew(), stale(), prop::bool::weighted(0.8));
    prop_oneof![
        3 => lease().prop_map(Op::ClaimLease),
        1 => lease().prop_map(Op::ReleaseLease),
        4 => lease().prop_map(Op::Beat),
        8 => submit.prop_map(|(slot, skew, stale, bell)| Op::Submit { slot, skew, stale, bell }),
        3 => (slot(), skew(), stale()).prop_map(|(slot, skew, stale)| Op::Cancel { slot, skew, stale }),
        6 => (slot(), skew(), stale()).prop_map(|(slot, skew, stale)| Op::Recycle { slot, skew, stale }),
        14 => Just(Op::Scan),
        4 => (0..600u64).prop_map(|passed_ns| Op::Reap { passed_ns }),
        6 => slot().prop_map(Op::Claim),
        6 => (slot(), 0..100u32).prop_map(|(slot, token)| Op::Publish { slot, token }),
        2 => (slot(), any::<bool>()).prop_map(|(slot, paused)| Op::Pause { slot, paused }),
        5 => (slot(), reason).prop_map(|(slot, reason)| Op::Complete { slot, reason }),
        8 => (slot(), skew(), any::<Option<u64>>()).prop_map(|(slot, skew, mask)| Op::Deliver { slot, skew, mask }),
    ]
}

struct World {
    engine: EngineRing,
    memory: RingMemory,
    layout: RingLayout,
    model: Model,
    now_ns: u64,
    events: Vec<SlotEvent>,
    num_refused: u32,
    // Last: the memory points into it.
    _heap: Heap,
}

impl World {
    fn new() -> Self {
        let heap = Heap::new(RingLayout::new(SMALL).unwrap().total_bytes());
        let memory = heap.memory();
        let engine = engine(memory.clone());
        let layout = *engine.layout();
        let (slots, leases) = (SMALL.num_slots as usize, SMALL.num_leases as usize);
        let model = Model::new(slots, leases, OPTIONS.lease_timeout_ns);
        Self {
            engine,
            memory,
            layout,
            model,
            now_ns: 0,
            events: Vec::new(),
            num_refused: 0,
            _heap: heap,
        }
    }

    fn store(&self, offset: u64, value: u64) {
        self.memory.write_flag(offset, value).unwrap();
    }

    fn ring_bell(&mut self, lease: LeaseIdx) {
        let offset = self.layout.lease_offset(lease) + LEASE_DOORBELL;
        self.store(offset, self.memory.read_word(offset).unwrap() + 1);
        self.model.leases[lease.0 as usize].bell_rung = true;
    }

    /// The tagged word a front end writes about `slot`.
    fn word(&self, slot: usize, generation: u32, stale: bool) -> (u32, u32) {
        let lease = self.model.lease_of(slot).0 as usize;
        (
            generation,
            self.model.leases[lease]
                .claim
                .0
                .wrapping_sub(u32::from(stale)),
        )
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::ClaimLease(index) => self.claim_lease(index),
            Op::ReleaseLease(index) => self.release_lease(index),
            Op::Beat(index) => {
                let lease = &mut self.model.leases[index];
                lease.beat += 1;
                let beat = lease.beat;
                self.store(
                    self.layout.lease_offset(LeaseIdx(index as u32)) + LEASE_HEARTBEAT,
                    beat,
                );
            }
            Op::Submit {
                slot,
                skew,
                stale,
                bell,
            } => self.submit(slot, skew, stale, bell),
            Op::Cancel { slot, skew, stale } => {
                let word = self.word(slot, self.model.current(slot).wrapping_add(skew), stale);
                self.model.slots[slot].cancel = word;
                self.store_word(self.layout.cancel_offset(SlotIdx(slot as u32)), word);
                self.ring_bell(self.model.lease_of(slot));
            }
            Op::Recycle { slot, skew, stale } => {
                let word = self.word(slot, self.model.current(slot).wrapping_add(skew), stale);
                self.model.slots[slot].recycle = word;
                self.store_word(self.layout.recycle_offset(SlotIdx(slot as u32)), word);
                self.ring_bell(self.model.lease_of(slot));
            }
            Op::Scan => {
                let seen = events(|f| self.engine.scan(f));
                assert_eq!(seen, self.model.scan());
                self.events.extend(seen);
            }
            Op::Reap { passed_ns } => {
                self.now_ns += passed_ns;
                let seen = events(|f| self.engine.reap_expired_leases(self.now_ns, f));
                assert_eq!(seen, self.model.reap(passed_ns));
                self.events.extend(seen);
            }
            Op::Claim(slot) => self.claim(slot),
            Op::Publish { slot, token } => self.publish(slot, token),
            Op::Pause { slot, paused } => self.pause(slot, paused),
            Op::Deliver { slot, skew, mask } => self.deliver(slot, skew, mask),
            Op::Complete { slot, reason } => {
                let live = self.model.slots[slot].pending || self.is_running(slot);
                if live {
                    self.engine
                        .complete(SlotIdx(slot as u32), reason, &SlotResult::default());
                    self.model.complete(slot, reason);
                }
            }
        }
    }

    fn store_word(&self, offset: u64, (generation, lease): (u32, u32)) {
        self.store(offset, SlotWord { generation, lease }.pack());
    }

    fn claim_lease(&mut self, index: usize) {
        let base = self.layout.lease_offset(LeaseIdx(index as u32));
        let was = self.memory.read_word(base + LEASE_CLAIM).unwrap();
        let verdict = LeaseVerdict::unpack(self.memory.read_word(base + LEASE_VERDICT).unwrap());
        let next = LeaseClaim::unpack(was).next(verdict);
        let lease = &mut self.model.leases[index];
        let free = lease.verdict.drained == lease.claim.0;
        assert_eq!(next.is_some(), free);
        if let Some(next) = next {
            lease.claim = (lease.claim.0 + 1, true);
            assert_eq!((next.generation, next.held), lease.claim);
            self.store(base + LEASE_CLAIM, next.pack());
        }
    }

    fn release_lease(&mut self, index: usize) {
        self.model.leases[index].claim.1 = false;
        let claim = LeaseClaim {
            generation: self.model.leases[index].claim.0,
            held: false,
        };
        self.store(
            self.layout.lease_offset(LeaseIdx(index as u32)) + LEASE_CLAIM,
            claim.pack(),
        );
        self.ring_bell(LeaseIdx(index as u32));
    }

    /// Submits as an honest front end does: only into a slot that reads empty and has no submission
    /// of this lease waiting.
    fn submit(&mut self, slot: usize, skew: u32, stale: bool, bell: bool) {
        let model = &self.model.slots[slot];
        let lease = &self.model.leases[self.model.lease_of(slot).0 as usize];
        let waiting = model.submit == (model.generation + 1, lease.claim.0);
        if model.state != State::Empty || model.pending || waiting {
            return;
        }
        let word = self.word(slot, (model.generation + 1).wrapping_add(skew), stale);
        self.model.slots[slot].submit = word;
        self.model.slots[slot].num_masks = 0;
        let idx = SlotIdx(slot as u32);
        let lease = self.layout.lease_of(idx);
        let share = u64::from(idx.0 - self.layout.lease_slots(lease).start) * crate::common::SHARE;
        let prompt = Span {
            offset: self.layout.lease_input(lease).start + share,
            len: 2,
            reserved: 0,
        };
        let record = RequestRecord {
            generation: word.0,
            prompt,
            output_offset: self.layout.lease_output(lease).start + share,
            output_capacity: 4,
            max_tokens: 4,
            flags: REQUEST_MASKED,
            masks: Span {
                offset: prompt.offset + 16,
                len: 4,
                reserved: 0,
            },
            ..RequestRecord::default()
        };
        let ids = [word.0 % 100, word.1 % 100].map(u32::to_le_bytes).concat();
        self.memory.write(prompt.offset, &ids).unwrap();
        self.memory
            .write(self.layout.request_offset(idx), &record.encode())
            .unwrap();
        self.store_word(self.layout.submit_offset(idx), word);
        if bell {
            self.ring_bell(lease);
        }
    }

    /// Delivers the next mask if the slot's tokens so far allow it; with a skew, a word that speaks of another generation.
    fn deliver(&mut self, slot: usize, skew: u32, mask: Option<u64>) {
        let model = &mut self.model.slots[slot];
        if matches!(model.state, State::Empty | State::DecodeCompleted)
            || model.num_masks as usize > model.tokens.len()
        {
            return;
        }
        let (idx, buffer) = (SlotIdx(slot as u32), (model.num_masks % 2) as usize);
        model.num_masks += 1;
        model.mask_word.0 = model.generation.wrapping_add(skew);
        model.mask_word.1 = model.num_masks;
        model.mask_word.2[buffer] = mask.is_none();
        if let Some(mask) = mask {
            model.masks[buffer] = mask;
            let lease = self.layout.lease_of(idx);
            let share =
                u64::from(idx.0 - self.layout.lease_slots(lease).start) * crate::common::SHARE;
            let area = self.layout.lease_input(lease).start + share + 16;
            let bytes = [mask, !mask].map(u64::to_le_bytes).concat();
            self.memory
                .write(area + 16 * buffer as u64, &bytes)
                .unwrap();
        }
        let word = MaskWord {
            generation: model.mask_word.0,
            num_delivered: model.mask_word.1,
            is_open: model.mask_word.2,
        };
        // SYNC mask-delivered: pairs with the acquire load in `MaskSource::load`.
        self.store(self.layout.mask_offset(idx), word.pack());
    }

    fn claim(&mut self, slot: usize) {
        if !self.model.slots[slot].pending {
            return;
        }
        let (generation, tag) = self.model.slots[slot].submit;
        let claimed = self.engine.claim(SlotIdx(slot as u32), self.now_ns);
        if self.model.claim(slot) {
            assert_eq!(claimed.unwrap().generation, generation);
            assert_eq!(
                self.engine.prompt(SlotIdx(slot as u32)),
                [generation % 100, tag % 100]
            );
        } else {
            assert_eq!(claimed, Err(BadRequest::LeaseRevoked));
            self.num_refused += 1;
        }
    }

    fn is_running(&self, slot: usize) -> bool {
        !matches!(
            self.model.slots[slot].state,
            State::Empty | State::DecodeCompleted
        )
    }

    fn publish(&mut self, slot: usize, token: u32) {
        if self.is_running(slot) && self.model.slots[slot].tokens.len() < 4 {
            self.engine
                .publish_token(SlotIdx(slot as u32), output(token), None);
            self.model.publish(slot, token);
        }
    }

    fn pause(&mut self, slot: usize, paused: bool) {
        if !self.is_running(slot) {
            return;
        }
        let state = if paused {
            State::DecodePaused
        } else {
            State::DecodeProcessing
        };
        self.engine.set_state(SlotIdx(slot as u32), state);
        if !self.model.slots[slot].tokens.is_empty() {
            self.model.slots[slot].state = state;
        }
    }

    fn count(&self, reached: &mut Reached) {
        for event in &self.events {
            match event {
                SlotEvent::Submitted { .. } => reached.submitted += 1,
                SlotEvent::Cancelled { .. } => reached.cancelled += 1,
                SlotEvent::Recycled { .. } => reached.recycled += 1,
            }
        }
        for slot in 0..self.model.slots.len() {
            let ready = self.model.mask(slot).0 != MaskState::Awaited;
            reached.masked += u32::from(self.is_running(slot) && ready);
        }
        reached.refused_orphans += self.num_refused;
        for lease in &self.model.leases {
            reached.revoked += u32::from(lease.verdict.revoked > 0);
        }
        for slot in &self.model.slots {
            reached.second_generations += u32::from(slot.generation > 1);
        }
    }

    /// Everything either side can see agrees with the model.
    fn check(&self) {
        for index in 0..self.model.slots.len() {
            let slot = SlotIdx(index as u32);
            let mut bytes = [0; 16];
            self.memory
                .read(self.layout.progress_offset(slot), &mut bytes)
                .unwrap();
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let current = self.model.slots[index].generation;
            for generation in [current.wrapping_sub(1), current, current + 1, current + 2] {
                let seen = observe(word(0), word(8), generation);
                assert_eq!(
                    seen,
                    self.model.observe(index, generation),
                    "slot {index} generation {generation}"
                );
            }
            if self.is_running(index) {
                let tokens: Vec<u32> = self.engine.generated(slot).collect();
                assert_eq!(tokens, self.model.slots[index].tokens);
                self.check_mask(slot, tokens.len() as u32);
            }
        }
        for (index, lease) in self.model.leases.iter().enumerate() {
            let offset = self.layout.lease_offset(LeaseIdx(index as u32)) + LEASE_VERDICT;
            assert_eq!(
                LeaseVerdict::unpack(self.memory.read_word(offset).unwrap()),
                lease.verdict
            );
        }
    }
}

impl World {
    fn check_mask(&self, slot: SlotIdx, next: u32) {
        let (state, mask) = self.model.mask(slot.0 as usize);
        let source = self.engine.mask_source(slot).expect("all are masked");
        let mut got = [0; 4];
        assert_eq!(source.load(next, &mut got), state);
        if state == MaskState::Ready {
            let words = [mask as u32, (mask >> 32) as u32];
            assert_eq!(got, [words[0], words[1], !words[0], !words[1]]);
        }
    }
}

/// What the generated runs got to; a generator that stops reaching something must not go unnoticed.
#[derive(Default)]
struct Reached {
    submitted: u32,
    cancelled: u32,
    recycled: u32,
    revoked: u32,
    refused_orphans: u32,
    second_generations: u32,
    masked: u32,
}

#[test]
fn ring_does_what_its_model_does() {
    let cases = if cfg!(miri) { 8 } else { 1_000 };
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let reached = RefCell::new(Reached::default());
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let run = runner.run(&prop::collection::vec(op(), 1..300), |ops| {
        let mut world = World::new();
        // Most runs should get somewhere: start with both leases held.
        world.apply(&Op::ClaimLease(0));
        world.apply(&Op::ClaimLease(1));
        world.check();
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.count(&mut reached.borrow_mut());
        Ok(())
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
    let r = reached.into_inner();
    if !cfg!(miri) {
        assert!(r.submitted > 1_000 && r.cancelled > 300 && r.recycled > 300);
        assert!(r.revoked > 100 && r.refused_orphans > 20 && r.second_generations > 200);
        assert!(r.masked > 100, "{}", r.masked);
    }
}
