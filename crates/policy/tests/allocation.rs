//! Nothing allocates after construction: counted by the allocator itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use izar_policy::{Config, OwnedState, StepResult, Verdict};

struct Counting;

thread_local! {
    static NUM_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: both calls go to the system allocator unchanged; the counter is a plain thread-local without a destructor,
// so that counting neither allocates nor outlives its thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NUM_ALLOCATIONS.set(NUM_ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s contract, which is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: `place` came from `System.alloc` with this layout.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_allocates_after_construction() {
    let mut state = OwnedState::new(Config::new(100, 16, 64, 200)).expect("valid");
    let mut plan = state.new_plan();
    let prompt: Vec<u32> = (0..100).collect();
    let mut results = Vec::with_capacity(16);
    let mut num_departed = 0;
    let before = NUM_ALLOCATIONS.get();
    for round in 0..2000u32 {
        let len = 1 + (round as usize * 7) % 100;
        // Slots still busy refuse, which is fine: they are live.
        let _ = state.add(round % 64, &prompt[..len], 200, 0, round as u64);
        if round % 5 == 0 {
            num_departed += state.cancel((round / 3) % 64).is_some() as u32;
        }
        state.plan(0, &mut plan).expect("nothing is in flight");
        results.clear();
        results.extend(
            plan.entries()
                .iter()
                .filter(|entry| entry.samples())
                .map(|entry| StepResult {
                    slot: entry.slot,
                    token: entry.start,
                    verdict: Verdict::Continue,
                }),
        );
        if !plan.is_empty() {
            let departed = |_| num_departed += 1;
            state
                .complete_step(plan.header().step, &results, departed)
                .expect("in order");
        }
    }
    assert_eq!(NUM_ALLOCATIONS.get(), before);
    let gauges = state.gauges();
    assert!(
        num_departed > 100 && gauges.num_preemptions_total > 10,
        "{gauges:?}"
    );
}
