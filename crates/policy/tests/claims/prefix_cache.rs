//! What is hit, what is cached, and what is evicted.

use crate::*;

#[test]
fn a_second_prompt_shares_the_full_blocks_of_the_first_but_computes_at_least_one_token() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 12), 60, 0, 0).unwrap();
    let first = exact_step(&mut state, &mut buffer)[0];
    state.add(1, &prompt(0, 12), 60, 0, 1).unwrap();
    state.add(2, &prompt(0, 6), 60, 0, 2).unwrap();
    let entries = exact_step(&mut state, &mut buffer);
    let (same, shorter) = (entries[1], entries[2]);
    assert_eq!(
        (same.start, same.num_tokens),
        (8, 4),
        "two blocks hit; the third is computed"
    );
    assert_eq!((shorter.start, shorter.num_tokens), (4, 2));
    assert_eq!(
        state.block_table(same.row)[..2],
        state.block_table(first.row)[..2]
    );
    assert_ne!(
        state.block_table(same.row)[2],
        state.block_table(first.row)[2]
    );
    let gauges = state.gauges();
    assert_eq!(
        (
            gauges.prefix_query_tokens_total,
            gauges.prefix_hit_tokens_total
        ),
        (30, 12)
    );
    assert_eq!(gauges.kv_blocks_used, 4 + 1 + 1, "shared blocks count once");
    assert_eq!(state.cancel(1).unwrap().num_cached_tokens, 8);
}

#[test]
fn equal_prompts_of_one_step_do_not_hit_each_other() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 8), 60, 0, 0).unwrap();
    state.add(1, &prompt(0, 8), 60, 0, 1).unwrap();
    let starts: Vec<_> = plan(&mut state, &mut buffer)
        .iter()
        .map(|entry| entry.start)
        .collect();
    assert_eq!(starts, [0, 0]);
}

#[test]
fn a_chunk_still_in_flight_is_hit_by_the_step_after_it() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 8), 60, 0, 0).unwrap();
    plan(&mut state, &mut buffer);
    state.add(1, &prompt(0, 9), 60, 0, 1).unwrap();
    assert!(state.cancel(0).is_some(), "its step runs all the same");
    let entries = plan(&mut state, &mut buffer);
    assert_eq!((entries[0].slot, entries[0].start), (1, 8));
}

#[test]
fn generated_tokens_are_cached_too() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 3), 60, 0, 0).unwrap();
    for _ in 0..6 {
        exact_step(&mut state, &mut buffer);
    }
    state.cancel(0);
    let next_turn = [0, 1, 2, 7, 7, 7, 7, 7, 50];
    state.add(1, &next_turn, 60, 0, 1).unwrap();
    assert_eq!(exact_step(&mut state, &mut buffer)[0].start, 8);
}

#[test]
fn cached_blocks_are_evicted_when_unused_for_longest_and_the_end_of_a_prompt_first() {
    let (mut state, mut buffer) = scheduler(Config {
        max_num_batched_tokens: 64,
        ..small()
    });
    for slot in 0..2 {
        state
            .add(slot, &prompt(100 * slot, 32), 33, 0, slot as u64)
            .unwrap();
        exact_step(&mut state, &mut buffer);
    }
    assert_eq!(state.gauges().kv_blocks_cached, 16);
    state.add(2, &prompt(200, 8), 9, 0, 2).unwrap();
    exact_step(&mut state, &mut buffer);
    state.add(3, &prompt(0, 32), 33, 0, 3).unwrap();
    assert_eq!(
        exact_step(&mut state, &mut buffer)[0].start,
        24,
        "the older lost its last two"
    );
    state.add(4, &prompt(100, 32), 33, 0, 4).unwrap();
    assert_eq!(
        exact_step(&mut state, &mut buffer)[0].start,
        24,
        "the younger lost two to it"
    );
    assert_eq!(state.gauges().num_evictions_total, 2 + 2 + 2);
}

#[test]
fn a_failed_sequence_leaves_nothing_to_hit() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 8), 60, 0, 0).unwrap();
    let entries = plan(&mut state, &mut buffer);
    let departures = complete(&mut state, 1, &entries, 0, Verdict::Fail);
    assert_eq!(
        (departures[0].cause, departures[0].num_generated),
        (Cause::Failed, 0)
    );
    assert_eq!(state.gauges().kv_blocks_free, 16);
    state.add(1, &prompt(0, 9), 60, 0, 1).unwrap();
    assert_eq!(plan(&mut state, &mut buffer)[0].start, 0);
}

#[test]
fn tokens_beyond_the_last_hash_page_are_computed_but_not_cached() {
    let config = Config {
        num_hash_pages: 1,
        num_slots: 8,
        block_size: 4,
        ..Config::new(100, 4, 512, 300)
    };
    let (mut state, mut buffer) = scheduler(config);
    state.add(0, &prompt(0, 200), 201, 0, 0).unwrap();
    exact_step(&mut state, &mut buffer);
    assert_eq!(state.gauges().kv_blocks_cached, 32);
    state.add(1, &prompt(0, 200), 201, 0, 1).unwrap();
    assert_eq!(exact_step(&mut state, &mut buffer)[0].start, 128);
}

#[test]
fn a_sequence_that_computes_all_does_not_read_the_prefix_cache() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 9), 10, 0, 0).expect("fits");
    exact_step(&mut state, &mut buffer);
    state.add(1, &prompt(0, 9), 20, 0, 0).expect("fits");
    state.compute_all(1);
    state.add(2, &prompt(0, 9), 20, 0, 0).expect("fits");
    let entries = exact_step(&mut state, &mut buffer);
    let start = |slot| {
        let entry = entries.iter().find(|entry: &&PlanEntry| entry.slot == slot);
        entry.expect("planned").start
    };
    assert_eq!((start(1), start(2)), (0, 8));
}
