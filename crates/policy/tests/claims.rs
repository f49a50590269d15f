//! One claim a test, on small schedulers driven by hand.

use izar_policy::{
    Cause, CompleteError, Config, ConfigError, Departure, OwnedPlan, OwnedState, PlanEntry,
    PlanError, Refusal, StepResult, Verdict, entry_flags,
};

/// 16 blocks of 4, 4 rows, 16 tokens a step.
fn small() -> Config {
    Config {
        num_slots: 8,
        block_size: 4,
        ..Config::new(16, 4, 16, 64)
    }
}

fn scheduler(config: Config) -> (OwnedState, OwnedPlan) {
    let state = OwnedState::new(config).expect("the configuration is valid");
    let plan = state.new_plan();
    (state, plan)
}

fn prompt(first: u32, len: u32) -> Vec<u32> {
    (first..first + len).collect()
}

fn plan(state: &mut OwnedState, plan: &mut OwnedPlan) -> Vec<PlanEntry> {
    state.plan(0, plan).expect("at most one step is in flight");
    state.check_integrity().expect("the state is consistent");
    plan.entries().to_vec()
}

/// Completes a step whose sampling entries all drew `token`.
fn complete(
    state: &mut OwnedState,
    step: u64,
    entries: &[PlanEntry],
    token: u32,
    verdict: Verdict,
) -> Vec<Departure> {
    let sampling = entries.iter().filter(|entry| entry.samples());
    let results: Vec<_> = sampling
        .map(|entry| StepResult {
            slot: entry.slot,
            token,
            verdict,
        })
        .collect();
    let mut departures = Vec::new();
    state
        .complete_step(step, &results, |departure| departures.push(departure))
        .expect("in order");
    state.check_integrity().expect("the state is consistent");
    departures
}

/// Plans and completes one step; everybody draws 7 and goes on.
fn exact_step(state: &mut OwnedState, buffer: &mut OwnedPlan) -> Vec<PlanEntry> {
    let entries = plan(state, buffer);
    complete(state, buffer.header().step, &entries, 7, Verdict::Continue);
    entries
}

#[test]
fn unusable_prompts_are_refused_at_once() {
    let (mut state, _) = scheduler(Config {
        max_model_len: 100,
        ..small()
    });
    assert_eq!(
        state.add(8, &prompt(0, 3), 9, 0, 0),
        Err(Refusal::UnknownSlot)
    );
    assert_eq!(state.add(0, &[], 9, 0, 0), Err(Refusal::EmptyPrompt));
    assert_eq!(
        state.add(0, &prompt(0, 3), 3, 0, 0),
        Err(Refusal::NothingToGenerate)
    );
    let too_long = Refusal::TooLong {
        prompt_len: 100,
        max_model_len: 100,
    };
    assert_eq!(state.add(0, &prompt(0, 100), 200, 0, 0), Err(too_long));
    let never_fits = Refusal::NeverFits {
        num_blocks: 17,
        pool_blocks: 16,
    };
    assert_eq!(state.add(0, &prompt(0, 65), 99, 0, 0), Err(never_fits));
    assert_eq!(state.add(0, &prompt(0, 3), 9, 0, 0), Ok(()));
    assert_eq!(state.add(0, &prompt(0, 3), 9, 0, 0), Err(Refusal::SlotBusy));
    assert_eq!(state.gauges().num_waiting, 1);
}

#[test]
fn a_prompt_that_fills_the_pool_gets_one_token() {
    let (mut state, mut buffer) = scheduler(Config {
        max_model_len: 100,
        ..small()
    });
    state
        .add(0, &prompt(0, 64), 100, 0, 0)
        .expect("it fits exactly");
    for _ in 0..3 {
        exact_step(&mut state, &mut buffer);
    }
    let entries = plan(&mut state, &mut buffer);
    let departures = complete(&mut state, 4, &entries, 7, Verdict::Continue);
    assert_eq!(
        (departures[0].cause, departures[0].num_generated),
        (Cause::Length, 1)
    );
}

#[test]
fn configurations_that_could_stall_are_refused() {
    let budget = Config {
        max_num_batched_tokens: 3,
        ..small()
    };
    assert!(matches!(
        budget.validate(),
        Err(ConfigError::BudgetBelowSeqs { .. })
    ));
    let whole = Config {
        chunked_prefill: false,
        ..small()
    };
    assert!(matches!(
        whole.validate(),
        Err(ConfigError::BudgetBelowLen { .. })
    ));
    let block_size = Config {
        block_size: 12,
        ..small()
    };
    assert!(matches!(
        block_size.validate(),
        Err(ConfigError::BlockSize { got: 12 })
    ));
    let no_blocks = Config {
        num_blocks: 0,
        ..small()
    };
    assert!(matches!(
        no_blocks.validate(),
        Err(ConfigError::OutOfRange { .. })
    ));
}

#[test]
fn prefill_chunks_share_the_step_with_decodes_which_come_first() {
    let (mut state, mut buffer) = scheduler(small());
    state.add(0, &prompt(0, 6), 60, 0, 0).unwrap();
    exact_step(&mut state, &mut buffer);
    state.add(1, &prompt(100, 20), 60, 0, 1).unwrap();
    let entries = exact_step(&mut state, &mut buffer);
    assert_eq!(
        (entries[0].slot, entries[0].start, entries[0].num_tokens),
        (0, 6, 1)
    );
    assert_eq!(
        (entries[1].slot, entries[1].start, entries[1].num_tokens),
        (1, 0, 15)
    );
    assert_eq!(entries[1].flags, entry_flags::PREFILL | entry_flags::FIRST);
    let entries = exact_step(&mut state, &mut buffer);
    assert_eq!(
        (entries[1].slot, entries[1].start, entries[1].num_tokens),
        (1, 15, 5)
    );
    assert_eq!(
        entries[1].flags,
        entry_flags::PREFILL | entry_flags::SAMPLES
    );
}

#[test]
fn without_chunks_a_prompt_waits_until_it_fits_the_step_whole() {
    let config = Config {
        chunked_prefill: false,
        max_num_batched_tokens: 64,
        ..small()
    };
    let (mut state, mut buffer) = scheduler(config);
    state.add(0, &prompt(0, 30), 32, 0, 0).unwrap();
    state.add(1, &prompt(100, 40), 60, 0, 1).unwrap();
    state.add(2, &prompt(200, 3), 60, 0, 2).unwrap();
    let entries = exact_step(&mut state, &mut buffer);
    let lens: Vec<_> = entries
        .iter()
        .map(|entry| (entry.slot, entry.num_tokens))
        .collect();
    assert_eq!(
        lens,
        [(0, 30)],
        "the second is too long for the rest, the third does not overtake"
    );
    exact_step(&mut state, &mut buffer);
    let entries = exact_step(&mut state, &mut buffer);
    let lens: Vec<_> = entries
        .iter()
        .map(|entry| (entry.slot, entry.num_tokens))
        .collect();
    assert_eq!(lens, [(1, 40), (2, 3)]);
}

#[test]
fn lower_priority_values_are_served_first_and_arrival_decides_between_equals() {
    let (mut state, mut buffer) = scheduler(Config {
        max_num_seqs: 3,
        ..small()
    });
    state.add(0, &prompt(0, 4), 9, 1, 5).unwrap();
    state.add(1, &prompt(10, 4), 9, 0, 9).unwrap();
    state.add(2, &prompt(20, 4), 9, 0, 8).unwrap();
    state.add(3, &prompt(30, 4), 9, 1, 5).unwrap();
    let slots: Vec<_> = plan(&mut state, &mut buffer)
        .iter()
        .map(|entry| entry.slot)
        .collect();
    assert_eq!(slots, [2, 1, 0]);
}

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
