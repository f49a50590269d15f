//! Cancellation, limits, and steps in flight.

use crate::*;

#[test]
fn the_cancelled_leave_at_once_in_every_phase() {
    let (mut state, mut buffer) = scheduler(small());
    assert_eq!(state.cancel(0), None, "vacant");
    state.add(0, &prompt(0, 20), 60, 0, 0).unwrap();
    let waiting = state.cancel(0).unwrap();
    assert_eq!(
        (waiting.cause, waiting.first_planned_ns),
        (Cause::Cancelled, u64::MAX)
    );

    state.add(0, &prompt(0, 20), 60, 0, 0).unwrap();
    let entries = plan(&mut state, &mut buffer);
    assert!(state.cancel(0).is_some(), "prefill in flight");
    assert_eq!(state.gauges().kv_blocks_used, 0);
    complete(&mut state, 1, &entries, 7, Verdict::Continue);

    state.add(0, &prompt(50, 5), 60, 0, 0).unwrap();
    let first = plan(&mut state, &mut buffer);
    let second = plan(&mut state, &mut buffer);
    assert_eq!(
        second[0].flags,
        entry_flags::SAMPLES | entry_flags::BACKFILL
    );
    assert!(
        state.cancel(0).is_some(),
        "decode in flight, two steps deep"
    );
    state
        .add(0, &prompt(70, 5), 60, 0, 0)
        .expect("the slot is free again");
    assert!(
        !state.accepts(2, 0) && !state.accepts(3, 0),
        "results are not the new sequence's"
    );
    assert_eq!(complete(&mut state, 2, &first, 7, Verdict::Stop), []);
    let third = plan(&mut state, &mut buffer);
    assert_eq!(complete(&mut state, 3, &second, 7, Verdict::Stop), []);
    assert!(state.accepts(4, 0));
    assert_eq!(complete(&mut state, 4, &third, 7, Verdict::Stop).len(), 1);
}

#[test]
fn what_was_planned_once_too_often_is_dropped_and_its_block_is_back_within_the_step() {
    let (mut state, mut buffer) = scheduler(Config {
        prefix_caching: false,
        ..small()
    });
    state.add(0, &prompt(0, 4), 60, 0, 0).unwrap();
    let first = plan(&mut state, &mut buffer);
    let surplus = plan(&mut state, &mut buffer);
    assert_eq!(
        (surplus[0].num_new_blocks, state.gauges().kv_blocks_used),
        (1, 2)
    );
    let departures = complete(&mut state, 1, &first, 9, Verdict::Stop);
    assert_eq!(
        (departures[0].cause, departures[0].num_generated),
        (Cause::Stopped, 1)
    );
    assert_eq!(state.gauges().kv_blocks_free, 16);
    assert!(!state.accepts(2, 0));
    assert_eq!(complete(&mut state, 2, &surplus, 9, Verdict::Continue), []);
}

#[test]
fn a_length_limit_is_known_and_never_planned_beyond() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 4), 6, 0, 0).unwrap();
    let first = plan(&mut state, &mut buffer);
    let second = plan(&mut state, &mut buffer);
    assert_eq!((second[0].output_idx, second[0].num_tokens), (1, 1));
    complete(&mut state, 1, &first, 7, Verdict::Continue);
    assert_eq!(plan(&mut state, &mut buffer), []);
    let departures = complete(&mut state, 2, &second, 7, Verdict::Continue);
    assert_eq!(
        (departures[0].cause, departures[0].num_generated),
        (Cause::Length, 2)
    );
}

#[test]
fn a_row_is_not_used_again_while_a_step_in_flight_reads_it() {
    let (mut state, mut buffer) = scheduler(Config {
        max_num_seqs: 1,
        ..small()
    });
    state.add(0, &prompt(0, 4), 60, 0, 0).unwrap();
    let first = plan(&mut state, &mut buffer);
    let second = plan(&mut state, &mut buffer);
    state.add(1, &prompt(50, 4), 60, 0, 1).unwrap();
    complete(&mut state, 1, &first, 7, Verdict::Stop);
    assert_eq!(
        plan(&mut state, &mut buffer),
        [],
        "step 2 still reads the only row"
    );
    complete(&mut state, 2, &second, 7, Verdict::Stop);
    assert_eq!(plan(&mut state, &mut buffer)[0].slot, 1);
}

#[test]
fn only_one_step_may_be_in_flight_when_another_is_planned_and_steps_complete_in_order() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 4), 60, 0, 0).unwrap();
    let first = plan(&mut state, &mut buffer);
    plan(&mut state, &mut buffer);
    assert_eq!(
        state.plan(0, &mut buffer),
        Err(PlanError::TooFarAhead { incomplete_step: 1 })
    );
    let wrong = state.complete_step(2, &[], |_| ());
    assert_eq!(
        wrong,
        Err(CompleteError::OutOfOrder {
            expected: 1,
            got: 2
        })
    );
    complete(&mut state, 1, &first, 7, Verdict::Continue);
    let mut short = OwnedPlan::new(3);
    assert_eq!(
        state.plan(0, &mut short),
        Err(PlanError::TooSmall { expected: 4 })
    );
    complete(&mut state, 2, &first, 7, Verdict::Continue);
    let unplanned = state.complete_step(3, &[], |_| ());
    assert_eq!(
        unplanned,
        Err(CompleteError::OutOfOrder {
            expected: 3,
            got: 3
        })
    );
}
