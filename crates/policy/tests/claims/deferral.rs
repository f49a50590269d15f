//! Samples that are put off.

use crate::*;

#[test]
fn a_deferred_sample_is_planned_again_at_the_same_position() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 4), 10, 0, 0).expect("fits");
    let first = plan(&mut state, &mut buffer);
    assert!(complete(&mut state, 1, &first, 0, Verdict::Defer).is_empty());
    let again = plan(&mut state, &mut buffer);
    assert_eq!(
        (again[0].start, again[0].num_tokens, again[0].output_idx),
        (3, 1, 0)
    );
    assert_eq!(
        again[0].flags,
        entry_flags::SAMPLES,
        "a decode of a known token"
    );
    complete(&mut state, 2, &again, 9, Verdict::Continue);
    let next = plan(&mut state, &mut buffer);
    assert_eq!((next[0].start, next[0].output_idx), (4, 1));
    assert_eq!(state.gauges().num_deferrals_total, 1);
}

#[test]
fn a_step_planned_behind_a_deferred_sample_counts_for_nothing() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 4), 10, 0, 0).expect("fits");
    let first = plan(&mut state, &mut buffer);
    let surplus = plan(&mut state, &mut buffer);
    assert_eq!((surplus[0].start, surplus[0].num_new_blocks), (4, 1));
    let used = state.gauges().kv_blocks_used;
    complete(&mut state, 1, &first, 0, Verdict::Defer);
    assert_eq!(
        state.gauges().kv_blocks_used,
        used - 1,
        "its surplus block came back"
    );
    assert!(!state.accepts(2, 0));
    let again = plan(&mut state, &mut buffer);
    assert_eq!((again[0].start, again[0].output_idx), (3, 0));
    complete(&mut state, 2, &surplus, 99, Verdict::Continue);
    assert!(state.accepts(3, 0));
    complete(&mut state, 3, &again, 9, Verdict::Continue);
    let next = plan(&mut state, &mut buffer);
    assert_eq!((next[0].start, next[0].num_new_blocks), (4, 1));
}

#[test]
fn a_deferred_sequence_does_not_hold_up_its_neighbours() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 4), 30, 0, 0).expect("fits");
    state.add(1, &prompt(50, 4), 30, 0, 1).expect("fits");
    for step in 1..=10 {
        let entries = plan(&mut state, &mut buffer);
        let other = entries.iter().find(|entry| entry.slot == 1);
        assert_eq!(other.expect("in every step").output_idx, step as u32 - 1);
        let results = [(0, Verdict::Defer), (1, Verdict::Continue)].map(|(slot, verdict)| {
            let token = 7;
            StepResult {
                slot,
                token,
                verdict,
            }
        });
        state
            .complete_step(step, &results, |_| ())
            .expect("in order");
    }
    let departure = state.cancel(0).expect("it never got a token");
    assert_eq!(departure.num_generated, 0);
    state.check_integrity().expect("the state is consistent");
}
