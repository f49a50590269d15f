//! The step log: what it keeps, and that a reader can tell what it has lost.
use crate::common::{SMALL, engine};
use crate::heap::Heap;
use izar_ring::*;

fn heap() -> Heap {
    Heap::new(RingLayout::new(SMALL).unwrap().total_bytes())
}

/// A record every word of which tells the step.
fn record(step: u64) -> StepRecord {
    StepRecord {
        step,
        planning_started_ns: step,
        planning_ns: step,
        launching_ns: step,
        started_ns: step,
        forward_ns: step,
        sampling_ns: step,
        publishing_started_ns: step,
        publishing_ns: step,
        gap_ns: step,
        num_tokens: step as u32,
        num_sequences: step as u32,
        reserved: step,
    }
}

fn head(memory: &RingMemory, layout: &RingLayout) -> u64 {
    // SYNC step-logged: pairs with the release store in `EngineRing::log_step`.
    memory.read_word(layout.step_log_head()).unwrap()
}

fn read(memory: &RingMemory, layout: &RingLayout, index: u64) -> StepRecord {
    let mut bytes = [0; STEP_RECORD_BYTES as usize];
    memory
        .read(layout.step_record_offset(index), &mut bytes)
        .unwrap();
    StepRecord::decode(&bytes)
}

#[test]
fn log_holds_the_latest_steps_and_counts_all() {
    let heap = heap();
    let mut engine = engine(heap.memory());
    let (memory, layout) = (engine.memory().clone(), *engine.layout());
    assert_eq!(head(&memory, &layout), 0);
    let num_steps = 2 * STEP_LOG_LEN + 5;
    for step in 0..num_steps {
        engine.log_step(&record(step));
        assert_eq!(head(&memory, &layout), step + 1);
    }
    for index in first_whole_step(num_steps)..num_steps {
        assert_eq!(read(&memory, &layout, index), record(index));
    }
    assert_eq!(first_whole_step(num_steps), num_steps - STEP_LOG_LEN + 1);
    assert_eq!(first_whole_step(3), 0);
}

#[test]
fn log_ends_before_the_arenas_begin() {
    let layout = RingLayout::new(RingGeometry::default()).unwrap();
    let last = layout.step_record_offset(STEP_LOG_LEN - 1);
    assert!(last + STEP_RECORD_BYTES <= layout.input_arena().start);
    assert_eq!(
        layout.step_record_offset(STEP_LOG_LEN),
        layout.step_record_offset(0)
    );
    assert!(layout.step_record_offset(0) >= layout.step_log_head() + LINE_BYTES);
}

#[test]
fn successor_goes_on_where_the_log_ended() {
    let heap = heap();
    let mut old = engine(heap.memory());
    (0..3).for_each(|step| old.log_step(&record(step)));
    drop(old);
    let mut new = EngineRing::adopt(heap.memory(), 8, slot_table(SMALL.num_slots)).unwrap();
    new.log_step(&record(3));
    let (memory, layout) = (new.memory().clone(), *new.layout());
    assert_eq!(head(&memory, &layout), 4);
    (0..4).for_each(|index| assert_eq!(read(&memory, &layout, index), record(index)));
}

/// A reader that follows the rule never meets a record of two steps, however fast the writer laps it.
#[test]
fn record_that_is_being_overwritten_is_never_taken_for_whole() {
    let heap = heap();
    let mut engine = engine(heap.memory());
    let (memory, layout) = (engine.memory().clone(), *engine.layout());
    let num_laps = if cfg!(miri) { 2 } else { 300 };
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for step in 0..num_laps * STEP_LOG_LEN {
                engine.log_step(&record(step));
            }
        });
        let mut num_whole = 0;
        while !writer.is_finished() || num_whole == 0 {
            let before = head(&memory, &layout);
            // The oldest ones, which the writer is about to overwrite.
            let oldest = before.saturating_sub(STEP_LOG_LEN);
            let records: Vec<_> = (oldest..before.min(oldest + 4))
                .map(|index| (index, read(&memory, &layout, index)))
                .collect();
            // SYNC step-overwritten: the reads above end with an acquire fence, which pairs with the release fence in `log_step`.
            let first = first_whole_step(head(&memory, &layout));
            for (index, found) in records.into_iter().filter(|(index, _)| *index >= first) {
                assert_eq!(found, record(index));
                num_whole += 1;
            }
        }
        assert!(num_whole > 0);
    });
}
