//! What is refused, and when a prompt gets its place.

use crate::*;

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
