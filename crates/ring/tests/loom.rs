//! The protocol under every interleaving and every reordering the memory model allows.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p izar-ring --test loom --release`. Words are loom's
//! atomics; payload bytes are shadowed by loom cells, so a payload that is read before the edge that
//! publishes it fails the test even if its bytes happen to be right. The loops yield because loom
//! prunes orders in which a thread loads a word that its own next store conflicts over.
#![cfg(loom)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{FrontEnd, INFO, OPTIONS, events, output};
use izar_ring::*;
use loom::thread::{Builder, JoinHandle, yield_now};

/// One lease of one slot: enough for every edge between one front end and the engine.
const GEOMETRY: RingGeometry = RingGeometry {
    num_slots: 1,
    num_leases: 1,
    input_arena_bytes: 4096,
    output_arena_bytes: 4096,
};
const LEASE: LeaseIdx = LeaseIdx(0);
const SLOT: SlotIdx = SlotIdx(0);

fn engine() -> EngineRing {
    let layout = RingLayout::new(GEOMETRY).unwrap();
    let options = RingOptions {
        geometry: GEOMETRY,
        ..OPTIONS
    };
    let mut engine =
        EngineRing::create(RingMemory::modelled(&layout), &options, slot_table(1)).unwrap();
    engine.describe(&INFO);
    engine
}

/// Whether any execution got to a place. Not loom's: it lives across executions.
struct Reached(AtomicBool);

impl Reached {
    const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn mark(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails if no execution got there: the test would show nothing.
    fn assert(&self) {
        assert!(
            self.0.load(Ordering::Relaxed),
            "no execution got to what this test is about"
        );
    }
}

/// Explores `body` with at most `preemptions` forced switches per execution, on a stack an engine fits.
fn explore(preemptions: usize, body: fn()) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || spawn(body).join().unwrap());
}

/// Spawns a thread with room for an engine on its stack.
fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().stack_size(16 << 10).spawn(f).unwrap()
}

/// A front end holding the lease, known to the engine.
fn front_end(engine: &mut EngineRing) -> FrontEnd {
    let front_end = FrontEnd::claim(engine.memory(), engine.layout(), LEASE).unwrap();
    assert_eq!(front_end.slot(0), SLOT);
    front_end.beat(1);
    engine.scan(&mut |_| ());
    front_end
}

#[test]
fn claimed_request_is_complete() {
    static REACHED: Reached = Reached::new();
    explore(4, || {
        let mut engine = engine();
        let mut front_end = front_end(&mut engine);
        let submitter = spawn(move || {
            // A doorbell rung for nothing: the submit word must carry its payload by itself.
            front_end.ring_doorbell();
            front_end.submit(SLOT)
        });
        let mut submitted = false;
        for _ in 0..2 {
            submitted |= !events(|f| engine.scan(f)).is_empty();
            yield_now();
        }
        if submitted {
            REACHED.mark();
            assert_eq!(engine.claim(SLOT, 0).unwrap().request_id, 1001);
            assert_eq!(engine.prompt(SLOT), [3, 4]);
        }
        submitter.join().unwrap();
        if !submitted {
            assert_eq!(
                events(|f| engine.scan(f)),
                [SlotEvent::Submitted { slot: SLOT }]
            );
        }
    });
    REACHED.assert();
}

#[test]
fn published_tokens_are_readable_and_the_final_state_brings_the_final_count() {
    static REACHED: Reached = Reached::new();
    explore(3, || {
        let mut engine = engine();
        let mut front_end = front_end(&mut engine);
        let generation = front_end.submit(SLOT);
        engine.scan(&mut |_| ());
        let reader = spawn(move || {
            if read_twice(&front_end, generation) {
                REACHED.mark();
            }
        });
        engine.claim(SLOT, 5).unwrap();
        engine.publish_token(SLOT, output(7), None);
        engine.publish_token(SLOT, output(8), None);
        let result = SlotResult {
            completed_ns: 9,
            ..SlotResult::default()
        };
        engine.complete(SLOT, FinishReason::Length, &result);
        reader.join().unwrap();
    });
    REACHED.assert();
}

/// Looks at a request that produces 7 and 8, reads whatever it may, and says whether it saw the end.
fn read_twice(front_end: &FrontEnd, generation: u32) -> bool {
    let mut least = 0;
    let mut seen_end = false;
    for _ in 0..2 {
        let (num_generated, completed) = match front_end.observe(SLOT, generation) {
            Observation::Unclaimed => (0, false),
            Observation::Running { num_generated, .. } => (num_generated, false),
            Observation::Completed {
                reason,
                num_generated,
            } => {
                assert_eq!((reason, num_generated), (FinishReason::Length, 2));
                (num_generated, true)
            }
            other => panic!("{other:?}"),
        };
        assert!(num_generated >= least, "tokens are never taken back");
        least = num_generated;
        for index in 0..num_generated {
            assert_eq!(front_end.token(SLOT, index).token, 7 + index);
        }
        if completed {
            assert_eq!(front_end.result(SLOT).completed_ns, 9);
            seen_end = true;
        }
        yield_now();
    }
    seen_end
}

#[test]
fn recycled_slot_is_reused_without_touching_what_is_still_read() {
    static REACHED: Reached = Reached::new();
    explore(3, || {
        let mut engine = engine();
        let mut front_end = front_end(&mut engine);
        let generation = front_end.submit(SLOT);
        engine.scan(&mut |_| ());
        engine.claim(SLOT, 0).unwrap();
        engine.publish_token(SLOT, output(7), None);
        engine.complete(SLOT, FinishReason::Stop, &SlotResult::default());
        let reader = spawn(move || {
            assert_eq!(front_end.token(SLOT, 0).token, 7);
            assert_eq!(front_end.result(SLOT).generation, generation);
            front_end.recycle(SLOT, generation);
            // Reuse at once if the engine has been quick: new record, new prompt, same bytes.
            for _ in 0..2 {
                if front_end.next_generation(SLOT) == Some(2) {
                    assert_eq!(front_end.submit(SLOT), 2);
                    REACHED.mark();
                    break;
                }
                yield_now();
            }
            front_end
        });
        // The slot is the engine's until it says EMPTY: reading the prompt here is no race.
        assert_eq!(engine.prompt(SLOT), [3, 4]);
        for _ in 0..2 {
            serve(&mut engine, 20);
            yield_now();
        }
        let mut front_end = reader.join().unwrap();
        serve(&mut engine, 20);
        if front_end.next_generation(SLOT).is_some() {
            front_end.submit(SLOT);
            serve(&mut engine, 20);
        }
        assert_eq!(
            front_end.observe(SLOT, 1),
            Observation::Lost,
            "generation 2 is not generation 1"
        );
        let completed = Observation::Completed {
            reason: FinishReason::Stop,
            num_generated: 1,
        };
        assert_eq!(front_end.observe(SLOT, 2), completed);
        assert_eq!(front_end.token(SLOT, 0).token, 20);
    });
    REACHED.assert();
}

/// One round of an engine that finishes every request with one token.
fn serve(engine: &mut EngineRing, token: u32) {
    let submitted = events(|f| engine.scan(f)).contains(&SlotEvent::Submitted { slot: SLOT });
    if submitted {
        engine.claim(SLOT, 0).unwrap();
        engine.publish_token(SLOT, output(token), None);
        engine.complete(SLOT, FinishReason::Stop, &SlotResult::default());
    }
}

#[test]
fn late_reader_never_takes_one_generation_for_another() {
    static REACHED: Reached = Reached::new();
    explore(3, || {
        let mut engine = engine();
        let mut owner = front_end(&mut engine);
        owner.submit(SLOT);
        serve(&mut engine, 7);
        let reader = FrontEndView::of(&owner);
        let late = spawn(move || {
            for status_first in [true, false] {
                match reader.observe(1, status_first) {
                    Observation::Completed {
                        reason,
                        num_generated,
                    } => {
                        assert_eq!((reason, num_generated), (FinishReason::Stop, 1));
                    }
                    // The final count is gone already: the slot only looks unfinished.
                    Observation::Running { num_generated, .. } => assert_eq!(num_generated, 0),
                    Observation::Emptied => (),
                    Observation::Lost => REACHED.mark(),
                    other => panic!("{other:?}"),
                }
                yield_now();
            }
        });
        owner.recycle(SLOT, 1);
        engine.scan(&mut |_| ());
        owner.submit(SLOT);
        engine.scan(&mut |_| ());
        engine.claim(SLOT, 0).unwrap();
        engine.publish_token(SLOT, output(8), None);
        engine.publish_token(SLOT, output(9), None);
        engine.complete(SLOT, FinishReason::Length, &SlotResult::default());
        late.join().unwrap();
    });
    REACHED.assert();
}

/// Somebody who reads progress and has no say in the slot.
struct FrontEndView {
    memory: RingMemory,
    offset: u64,
}

impl FrontEndView {
    fn of(front_end: &FrontEnd) -> Self {
        Self {
            memory: front_end.memory.clone(),
            offset: front_end.layout.progress_offset(SLOT),
        }
    }

    /// Reads the two words separately, in one order or the other, as a torn bulk read may.
    fn observe(&self, generation: u32, status_first: bool) -> Observation {
        let read = |offset| self.memory.read_word(offset).unwrap();
        let (status, count) = (self.offset, self.offset + 8);
        if status_first {
            let status = read(status);
            yield_now();
            observe(status, read(count), generation)
        } else {
            let count = read(count);
            yield_now();
            observe(read(status), count, generation)
        }
    }
}

#[test]
fn cancellation_is_seen_once_or_came_too_late() {
    static REACHED: Reached = Reached::new();
    explore(4, || {
        let mut engine = engine();
        let mut front_end = front_end(&mut engine);
        let generation = front_end.submit(SLOT);
        engine.scan(&mut |_| ());
        engine.claim(SLOT, 0).unwrap();
        let canceller = spawn(move || {
            front_end.cancel(SLOT, generation);
            front_end
        });
        let mut num_cancelled = 0;
        for _ in 0..2 {
            num_cancelled += events(|f| engine.scan(f)).len();
            yield_now();
        }
        let reason = if num_cancelled > 0 {
            REACHED.mark();
            FinishReason::Cancelled
        } else {
            FinishReason::Stop
        };
        engine.complete(SLOT, reason, &SlotResult::default());
        let mut front_end = canceller.join().unwrap();
        num_cancelled += events(|f| engine.scan(f)).len();
        assert!(num_cancelled <= 1);
        let completed = Observation::Completed {
            reason,
            num_generated: 0,
        };
        assert_eq!(front_end.observe(SLOT, generation), completed);
        front_end.recycle(SLOT, generation);
        assert_eq!(
            events(|f| engine.scan(f)),
            [SlotEvent::Recycled { slot: SLOT }]
        );
    });
    REACHED.assert();
}

#[test]
fn lease_passes_on_without_sharing_the_arena() {
    static REACHED: Reached = Reached::new();
    explore(3, || {
        let mut engine = engine();
        let mut first = front_end(&mut engine);
        first.submit(SLOT);
        engine.scan(&mut |_| ());
        engine.claim(SLOT, 0).unwrap();
        let (memory, layout) = (engine.memory().clone(), *engine.layout());
        let heir = spawn(move || {
            first.release();
            for _ in 0..2 {
                if let Some(mut heir) = FrontEnd::claim(&memory, &layout, LEASE) {
                    // Loom fails this write if the engine can still publish the orphan's token.
                    heir.submit(SLOT);
                    REACHED.mark();
                    return Some(heir);
                }
                yield_now();
            }
            None
        });
        let mut cancelled = false;
        for _ in 0..2 {
            engine.scan(&mut |event| cancelled |= event == SlotEvent::Cancelled { slot: SLOT });
            if cancelled {
                break;
            }
            assert_eq!(engine.prompt(SLOT), [3, 4]);
            yield_now();
        }
        engine.publish_token(SLOT, output(7), None);
        engine.complete(SLOT, FinishReason::Cancelled, &SlotResult::default());
        let heir = heir.join().unwrap();
        let submitted = events(|f| engine.scan(f)).contains(&SlotEvent::Submitted { slot: SLOT });
        assert_eq!(submitted, heir.is_some());
    });
    REACHED.assert();
}

#[test]
fn two_front_ends_never_hold_one_lease() {
    explore(4, || {
        let engine = engine();
        let (memory, layout) = (engine.memory().clone(), *engine.layout());
        let other = spawn(move || FrontEnd::claim(&memory, &layout, LEASE).is_some());
        let mine = FrontEnd::claim(engine.memory(), engine.layout(), LEASE).is_some();
        assert!(mine ^ other.join().unwrap());
    });
}

#[test]
fn front_end_that_finds_the_magic_finds_the_ring() {
    static REACHED: Reached = Reached::new();
    explore(4, || {
        let layout = RingLayout::new(GEOMETRY).unwrap();
        let memory = RingMemory::modelled(&layout);
        let theirs = memory.clone();
        let connecting = spawn(move || {
            if theirs.read_word(0).unwrap() == RING_MAGIC {
                REACHED.mark();
                let mut bytes = [0; HEADER_BYTES as usize];
                theirs.read(0, &mut bytes).unwrap();
                let header = Header::decode(&bytes);
                assert_eq!(header.layout(theirs.len()), Ok(layout));
            }
        });
        let options = RingOptions {
            geometry: GEOMETRY,
            ..OPTIONS
        };
        EngineRing::create(memory, &options, slot_table(1)).unwrap();
        connecting.join().unwrap();
    });
    REACHED.assert();
}

#[test]
fn submission_that_races_with_its_leases_end_is_refused_or_ignored() {
    static REACHED: Reached = Reached::new();
    explore(3, || {
        let mut engine = engine();
        let mut doomed = front_end(&mut engine);
        let submitter = spawn(move || doomed.submit(SLOT));
        let mut seen = events(|f| engine.scan(f));
        yield_now();
        for look in 1..=8 {
            let now_ns = look * OPTIONS.lease_timeout_ns / 4;
            seen.extend(events(|f| engine.reap_expired_leases(now_ns, f)));
        }
        submitter.join().unwrap();
        seen.extend(events(|f| engine.scan(f)));
        // Otherwise ignored: the slot never left EMPTY.
        if !seen.is_empty() {
            let slot = SLOT;
            REACHED.mark();
            assert_eq!(
                seen,
                [SlotEvent::Submitted { slot }, SlotEvent::Cancelled { slot }]
            );
            assert_eq!(engine.claim(SLOT, 0), Err(BadRequest::LeaseRevoked));
        }
        let mut heir = FrontEnd::claim(engine.memory(), engine.layout(), LEASE).unwrap();
        let generation = heir.submit(SLOT);
        serve(&mut engine, 20);
        let completed = Observation::Completed {
            reason: FinishReason::Stop,
            num_generated: 1,
        };
        assert_eq!(heir.observe(SLOT, generation), completed);
    });
    REACHED.assert();
}

#[test]
fn delivered_mask_is_whole_and_its_buffer_is_free_two_tokens_later() {
    static REACHED: Reached = Reached::new();
    explore(3, || {
        let mut engine = engine();
        let mut front_end = front_end(&mut engine);
        let generation = front_end.submit_masked(SLOT);
        engine.scan(&mut |_| ());
        engine.claim(SLOT, 0).unwrap();
        let source = engine.mask_source(SLOT).unwrap();
        let writer = spawn(move || {
            front_end.deliver(SLOT, generation, 0, 0xa);
            front_end.deliver(SLOT, generation, 1, 0xb);
            for _ in 0..2 {
                // Token 1 was sampled under mask 1, after mask 0 was used: its buffer is free.
                if let Observation::Running {
                    num_generated: 2, ..
                } = front_end.observe(SLOT, generation)
                {
                    REACHED.mark();
                    front_end.deliver(SLOT, generation, 2, 0xc);
                    return;
                }
                yield_now();
            }
        });
        let mut next = 0;
        for _ in 0..3 {
            let mut mask = [0; 4];
            if next < 2 && source.load(next, &mut mask) == MaskState::Ready {
                assert_eq!(
                    mask,
                    [0xa + next, 0, 0, 0],
                    "loom fails a racing copy itself"
                );
                engine.publish_token(SLOT, output(7), None);
                next += 1;
            }
            yield_now();
        }
        writer.join().unwrap();
    });
    REACHED.assert();
}

impl FrontEnd {
    /// Submits the plain request with a mask area behind its prompt.
    fn submit_masked(&mut self, slot: SlotIdx) -> u32 {
        let generation = self.next_generation(slot).expect("slot is empty");
        let record = RequestRecord {
            flags: REQUEST_MASKED,
            masks: Span {
                offset: self.input_offset(slot) + 16,
                len: 4,
                reserved: 0,
            },
            ..self.record(slot, generation)
        };
        self.write_request(slot, &record, [3, 4]);
        self.store_submit(slot, generation);
        self.ring_doorbell();
        generation
    }

    /// Delivers mask `index`, whose first word is `low`.
    fn deliver(&self, slot: SlotIdx, generation: u32, index: u32, low: u64) {
        let area = self.input_offset(slot) + 16 + u64::from(index % 2) * 16;
        let bytes = [low, 0].map(u64::to_le_bytes).concat();
        self.memory.write(area, &bytes).unwrap();
        let word = MaskWord {
            generation,
            num_delivered: index + 1,
            is_open: [false; 2],
        };
        // SYNC mask-delivered: pairs with the acquire load in `MaskSource::load`.
        self.memory
            .write_flag(self.layout.mask_offset(slot), word.pack())
            .unwrap();
    }
}
