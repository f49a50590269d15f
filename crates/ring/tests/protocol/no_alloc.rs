//! No operation of the engine's side allocates.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::common::{FrontEnd, INFO, OPTIONS, SMALL, output};
use crate::heap::Heap;
use izar_ring::*;

struct Counting;

thread_local! {
    static NUM_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: hands everything to the system's allocator; counting in a constant-initialised thread-local
// of plain data allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NUM_ALLOCATIONS.set(NUM_ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn engine_allocates_nothing() {
    let heap = Heap::new(RingLayout::new(SMALL).unwrap().total_bytes());
    let table = slot_table(SMALL.num_slots);
    let before = NUM_ALLOCATIONS.get();
    let mut engine = EngineRing::create(heap.memory(), &OPTIONS, table).unwrap();
    engine.describe(&INFO);
    engine.set_engine_state(EngineState::Ready, None);
    let mut front_end = FrontEnd::claim(engine.memory(), engine.layout(), LeaseIdx(0)).unwrap();
    let slot = front_end.slot(0);
    let mut num_events = 0;
    for generation in 1..10 {
        front_end.submit(slot);
        engine.scan(&mut |_| num_events += 1);
        engine.claim(slot, 0).unwrap();
        engine.publish_token(slot, output(generation), None);
        engine.set_state(slot, State::DecodePaused);
        assert_eq!(
            engine.generated(slot).sum::<u32>() + engine.prompt(slot)[0],
            generation + 3
        );
        engine.complete(slot, FinishReason::Stop, &SlotResult::default());
        front_end.recycle(slot, generation);
        front_end.beat(u64::from(generation));
        engine.scan(&mut |_| num_events += 1);
        engine.heartbeat(u64::from(generation));
        engine.publish_stats(&EngineStats::default());
        engine.reap_expired_leases(u64::from(generation) * 1_000, &mut |_| num_events += 1);
    }
    assert_eq!(NUM_ALLOCATIONS.get() - before, 0);
    assert_eq!(num_events, 18);
    drop(vec![0; 10]);
    assert!(NUM_ALLOCATIONS.get() > before, "the counter counts");
}
