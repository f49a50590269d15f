//! Who gives up blocks, and what comes back.

use crate::*;

#[test]
fn the_youngest_of_the_lowest_priority_is_preempted_and_hits_its_own_blocks_again() {
    let (mut state, mut buffer) = scheduler(small());
    for slot in 0..3 {
        state
            .add(slot, &prompt(100 * slot, 15), 60, 0, slot as u64)
            .unwrap();
    }
    let mut preempted = Vec::new();
    let mut resumed = Vec::new();
    for _ in 0..80 {
        let entries = exact_step(&mut state, &mut buffer);
        preempted.extend_from_slice(buffer.preempted());
        let back = entries
            .iter()
            .filter(|entry| entry.flags & entry_flags::RESUMED != 0);
        resumed.extend(back.map(|entry| (entry.slot, entry.start)));
        if state.gauges().num_running == 1 {
            break;
        }
    }
    assert_eq!(preempted, [2, 1], "youngest first");
    assert_eq!(resumed, []);
    assert_eq!(state.cancel(0).unwrap().cause, Cause::Cancelled);
    let entries = exact_step(&mut state, &mut buffer);
    assert_eq!(entries[0].slot, 1);
    assert!(entries[0].flags & entry_flags::RESUMED != 0);
    assert!(
        entries[0].start >= 16,
        "prompt and generated blocks of its own are hit"
    );
    assert_eq!(state.gauges().num_preemptions_total, 2);
}

#[test]
fn a_lower_priority_is_preempted_before_a_younger_equal() {
    let config = Config {
        prefix_caching: false,
        ..small()
    };
    let (mut state, mut buffer) = scheduler(config);
    state.add(0, &prompt(0, 15), 60, 5, 0).unwrap();
    exact_step(&mut state, &mut buffer);
    state.add(1, &prompt(100, 15), 60, 0, 1).unwrap();
    state.add(2, &prompt(200, 15), 60, 0, 2).unwrap();
    let preempted = (0..80).find_map(|_| {
        exact_step(&mut state, &mut buffer);
        buffer.preempted().first().copied()
    });
    assert_eq!(preempted, Some(0));
}

#[test]
fn who_only_waits_for_a_last_token_gives_its_blocks_without_being_preempted() {
    let (mut state, mut buffer) = scheduler(Config {
        num_blocks: 3,
        ..small()
    });
    state.add(0, &prompt(0, 8), 13, 0, 0).unwrap();
    state.add(1, &prompt(100, 4), 5, 0, 1).unwrap();
    let first = plan(&mut state, &mut buffer);
    assert_eq!(first.len(), 2);
    let second = plan(&mut state, &mut buffer);
    assert_eq!(
        (second.len(), second[0].num_new_blocks),
        (1, 1),
        "the block was the other's"
    );
    assert_eq!(
        (buffer.preempted(), state.gauges().num_preemptions_total),
        (&[][..], 0)
    );
    let departures = complete(&mut state, 1, &first, 7, Verdict::Continue);
    assert_eq!(
        (departures[0].slot, departures[0].cause),
        (1, Cause::Length)
    );
    assert_eq!(departures[0].num_preemptions, 0);
}
