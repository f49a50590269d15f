//! Who may use which slots: claiming, letting go, dying, and an engine that is replaced.
use crate::common::{FrontEnd, OPTIONS, SMALL, engine, events, output};
use crate::heap::Heap;
use izar_ring::*;

const LEASE: LeaseIdx = LeaseIdx(1);
const TIMEOUT_NS: u64 = OPTIONS.lease_timeout_ns;

fn heap() -> Heap {
    Heap::new(RingLayout::new(SMALL).unwrap().total_bytes())
}

fn claim(engine: &EngineRing) -> Option<FrontEnd> {
    FrontEnd::claim(engine.memory(), engine.layout(), LEASE)
}

fn scan(engine: &mut EngineRing) -> Vec<SlotEvent> {
    events(|f| engine.scan(f))
}

/// Lets the lease timeout pass on the engine's clock, `beat` called before each look.
fn let_time_pass(
    engine: &mut EngineRing,
    now_ns: &mut u64,
    mut beat: impl FnMut(u64),
) -> Vec<SlotEvent> {
    let mut all = Vec::new();
    for _ in 0..8 {
        *now_ns += TIMEOUT_NS / 4;
        beat(*now_ns);
        engine.reap_expired_leases(*now_ns, &mut |event| all.push(event));
    }
    all
}

fn verdict(engine: &EngineRing) -> LeaseVerdict {
    let offset = engine.layout().lease_offset(LEASE) + LEASE_VERDICT;
    LeaseVerdict::unpack(engine.memory().read_word(offset).unwrap())
}

#[test]
fn lease_is_claimed_by_one_front_end_at_a_time() {
    let heap = heap();
    let mut engine = engine(heap.memory());
    let first = claim(&engine).unwrap();
    assert!(claim(&engine).is_none());
    assert!(
        FrontEnd::claim(engine.memory(), engine.layout(), LeaseIdx(0)).is_some(),
        "the other is free"
    );
    scan(&mut engine);
    first.release();
    assert!(
        claim(&engine).is_none(),
        "the engine has not let the next one in yet"
    );
    scan(&mut engine);
    assert_eq!(claim(&engine).unwrap().tag, 2);
}

#[test]
fn lease_released_before_the_engine_looked_is_drained_too() {
    let heap = heap();
    let mut engine = engine(heap.memory());
    claim(&engine).unwrap().release();
    scan(&mut engine);
    assert_eq!(claim(&engine).unwrap().tag, 2);
}

#[test]
fn front_end_that_keeps_beating_keeps_its_lease() {
    let heap = heap();
    let mut engine = engine(heap.memory());
    let mut front_end = claim(&engine).unwrap();
    let slot = front_end.slot(0);
    front_end.submit(slot);
    scan(&mut engine);
    let mut now_ns = 0;
    for _ in 0..4 {
        assert_eq!(
            let_time_pass(&mut engine, &mut now_ns, |beat| front_end.beat(beat)),
            []
        );
    }
    assert_eq!(verdict(&engine).revoked, 0);
    engine.claim(slot, 0).unwrap();
}

#[test]
fn engine_that_was_stopped_does_not_blame_its_front_ends() {
    let heap = heap();
    let mut engine = engine(heap.memory());
    let front_end = claim(&engine).unwrap();
    front_end.beat(1);
    engine.reap_expired_leases(10, &mut |_| ());
    engine.reap_expired_leases(10 + 1_000 * TIMEOUT_NS, &mut |_| ());
    assert_eq!(verdict(&engine).revoked, 0);
    front_end.beat(2);
    engine.reap_expired_leases(10 + 2_000 * TIMEOUT_NS, &mut |_| ());
    assert_eq!(verdict(&engine).revoked, 0);
}

#[test]
fn dead_front_ends_slots_come_back_whatever_their_state() {
    let heap = heap();
    let layout = RingLayout::new(RingGeometry {
        num_slots: 16,
        ..SMALL
    })
    .unwrap();
    drop(heap);
    let heap = Heap::new(layout.total_bytes());
    let options = RingOptions {
        geometry: layout.geometry(),
        ..OPTIONS
    };
    let mut engine = EngineRing::create(heap.memory(), &options, slot_table(16)).unwrap();
    engine.describe(&crate::common::INFO);
    let mut front_end = claim(&engine).unwrap();
    let slots: Vec<SlotIdx> = (0..8).map(|i| front_end.slot(i)).collect();
    let [
        empty,
        unseen,
        announced,
        prefill,
        decode,
        paused,
        completed,
        cancelled,
    ] = slots[..]
    else {
        panic!("eight slots")
    };
    for slot in [announced, prefill, decode, paused, completed, cancelled] {
        front_end.submit(slot);
    }
    assert_eq!(scan(&mut engine).len(), 6);
    for slot in [prefill, decode, paused, completed, cancelled] {
        engine.claim(slot, 0).unwrap();
    }
    for slot in [decode, paused, completed] {
        engine.publish_token(slot, output(1), None);
    }
    engine.set_state(paused, State::DecodePaused);
    engine.complete(completed, FinishReason::Stop, &SlotResult::default());
    front_end.cancel(cancelled, 1);
    assert_eq!(
        scan(&mut engine),
        [SlotEvent::Cancelled { slot: cancelled }]
    );
    front_end.write_request(unseen, &front_end.record(unseen, 1), [3, 4]);
    front_end.store_submit(unseen, 1);

    let mut reported = let_time_pass(&mut engine, &mut 0, |_| ());
    reported.sort_by_key(|event| format!("{event:?}"));
    let expected = [announced, prefill, decode, paused].map(|slot| SlotEvent::Cancelled { slot });
    assert_eq!(reported, expected, "each once, the cancelled one not again");
    assert_eq!(
        verdict(&engine),
        LeaseVerdict {
            revoked: 1,
            drained: 0
        }
    );
    assert_eq!(
        front_end.observe(completed, 1),
        Observation::Emptied,
        "unread results are dropped"
    );
    assert!(claim(&engine).is_none(), "orphans still use the arena");

    assert_eq!(engine.claim(announced, 0), Err(BadRequest::LeaseRevoked));
    for slot in [prefill, decode, paused, cancelled] {
        engine.complete(slot, FinishReason::Cancelled, &SlotResult::default());
    }
    assert_eq!(
        verdict(&engine),
        LeaseVerdict {
            revoked: 1,
            drained: 1
        }
    );
    front_end.ring_doorbell();
    assert_eq!(
        scan(&mut engine),
        [],
        "the dead one's late submission is nobody's"
    );

    let mut heir = claim(&engine).unwrap();
    assert_eq!(heir.tag, 2);
    let used = [announced, prefill, decode, paused, completed, cancelled];
    assert!(
        used.iter()
            .all(|&slot| heir.next_generation(slot) == Some(2))
    );
    assert!(
        [empty, unseen]
            .iter()
            .all(|&slot| heir.next_generation(slot) == Some(1))
    );
    for &slot in &slots {
        heir.submit(slot);
    }
    assert_eq!(scan(&mut engine).len(), 8);
    for &slot in &slots {
        engine.claim(slot, 0).unwrap();
    }
}

#[test]
fn released_lease_with_requests_in_flight_cancels_them() {
    let heap = heap();
    let mut engine = engine(heap.memory());
    let mut front_end = claim(&engine).unwrap();
    let slot = front_end.slot(0);
    front_end.submit(slot);
    scan(&mut engine);
    engine.claim(slot, 0).unwrap();
    front_end.release();
    assert_eq!(scan(&mut engine), [SlotEvent::Cancelled { slot }]);
    assert!(claim(&engine).is_none());
    engine.complete(slot, FinishReason::Cancelled, &SlotResult::default());
    assert_eq!(claim(&engine).unwrap().next_generation(slot), Some(2));
    assert_eq!(verdict(&engine).revoked, 0);
}

#[test]
fn claim_pushed_over_a_living_holder_waits_for_its_slots() {
    let heap = heap();
    let mut engine = engine(heap.memory());
    let mut front_end = claim(&engine).unwrap();
    let slot = front_end.slot(0);
    front_end.submit(slot);
    scan(&mut engine);
    engine.claim(slot, 0).unwrap();
    let offset = engine.layout().lease_offset(LEASE) + LEASE_CLAIM;
    let pushed = LeaseClaim {
        generation: 2,
        held: true,
    };
    engine.memory().write_flag(offset, pushed.pack()).unwrap();
    front_end.tag = 2;
    let other = front_end.slot(1);
    front_end.submit(other);
    assert_eq!(
        scan(&mut engine),
        [SlotEvent::Cancelled { slot }],
        "the intruder is not let in yet"
    );
    engine.complete(slot, FinishReason::Cancelled, &SlotResult::default());
    front_end.ring_doorbell();
    assert_eq!(scan(&mut engine), [SlotEvent::Submitted { slot: other }]);
}

#[test]
fn new_engine_fails_what_ran_and_keeps_what_was_done_or_pending() {
    let heap = heap();
    let mut old = engine(heap.memory());
    let mut front_end = FrontEnd::claim(old.memory(), old.layout(), LeaseIdx(0)).unwrap();
    let mut other = claim(&old).unwrap();
    let [done, ran] = [front_end.slot(0), front_end.slot(1)];
    let [pending, prefill] = [other.slot(0), other.slot(1)];
    front_end.submit(done);
    front_end.submit(ran);
    other.submit(prefill);
    scan(&mut old);
    for slot in [done, ran, prefill] {
        old.claim(slot, 0).unwrap();
    }
    old.publish_token(done, output(1), None);
    old.publish_token(ran, output(2), None);
    old.complete(done, FinishReason::Length, &SlotResult::default());
    other.submit(pending);
    drop(old);

    let mut new = EngineRing::adopt(heap.memory(), 8, slot_table(SMALL.num_slots)).unwrap();
    new.describe(&crate::common::INFO);
    let restarted = FinishReason::Error(EngineError::EngineRestarted);
    let completed = |reason, num_generated| Observation::Completed {
        reason,
        num_generated,
    };
    assert_eq!(
        front_end.observe(done, 1),
        completed(FinishReason::Length, 1)
    );
    assert_eq!(front_end.observe(ran, 1), completed(restarted, 1));
    assert_eq!(other.observe(prefill, 1), completed(restarted, 0));
    front_end.recycle(done, 1);
    front_end.recycle(ran, 1);
    other.recycle(prefill, 1);
    let events = scan(&mut new);
    assert!(events.contains(&SlotEvent::Submitted { slot: pending }));
    assert_eq!(events.len(), 4, "{events:?}");
    new.claim(pending, 0).unwrap();
    assert_eq!(front_end.submit(done), 2);
}

#[test]
fn new_engine_drops_what_a_dead_front_end_left() {
    let heap = heap();
    let mut old = engine(heap.memory());
    let mut front_end = claim(&old).unwrap();
    let slot = front_end.slot(0);
    front_end.submit(slot);
    scan(&mut old);
    old.claim(slot, 0).unwrap();
    let_time_pass(&mut old, &mut 0, |_| ());
    drop(old);
    let new = EngineRing::adopt(heap.memory(), 8, slot_table(SMALL.num_slots)).unwrap();
    assert_eq!(
        verdict(&new),
        LeaseVerdict {
            revoked: 1,
            drained: 1
        }
    );
    assert_eq!(claim(&new).unwrap().next_generation(slot), Some(2));
}
