//! What experiments change and watch: mechanisms switched off, held rounds, records of steps.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use izar_engine::driver::{
    Overlap, OverlapSwitch, Placement, StepGate, StepLog, StepRecord, Study,
};
use izar_transport::client::{FinishReason, Submission};

use super::{Random, Setup, TIMEOUT, expected, finish, random_traffic};

/// Every set of mechanisms.
fn overlaps() -> impl Iterator<Item = Overlap> {
    (0..8).map(|off| Overlap {
        scheduling: off & 1 == 0,
        backfill: off & 2 == 0,
        output: off & 4 == 0,
    })
}

fn switched(overlap: Overlap) -> Study {
    Study {
        overlap: Some(Arc::new(OverlapSwitch::new(overlap))),
        ..Study::default()
    }
}

#[test]
fn any_mechanism_switched_off_changes_no_token() {
    for (seed, overlap) in (20..).zip(overlaps()) {
        let setup = Setup {
            num_blocks: 40,
            study: switched(overlap),
            ..Setup::new(Placement::HostAsync)
        };
        random_traffic(&setup, seed, 60);
        let depth = setup.max_depth.load(Ordering::Relaxed);
        assert_eq!(
            depth,
            1 + usize::from(overlap == Overlap::ALL),
            "{overlap:?}"
        );
    }
}

/// Forty requests, one a round, some cancelled a few rounds later; returns what each generated and the log.
fn replay(
    placement: Placement,
    overlap: Overlap,
) -> (Vec<(Vec<u32>, FinishReason)>, Vec<StepRecord>) {
    let (gate, log) = (Arc::new(StepGate::new()), Arc::new(StepLog::default()));
    let setup = Setup {
        num_blocks: 30,
        study: Study {
            gate: Some(Arc::clone(&gate)),
            log: Some(Arc::clone(&log)),
            ..switched(overlap)
        },
        ..Setup::new(placement)
    };
    let (engine, client) = setup.start();
    let mut random = Random(3);
    let prompts: Vec<Vec<u32>> = (0..40).map(|_| random.prompt(60)).collect();
    let mut handles = Vec::new();
    // After the last arrival there are rounds enough for all that remains.
    for round in 1..=3000u64 {
        assert!(gate.wait(round, TIMEOUT), "round {round}");
        let idx = handles.len();
        if let Some(prompt) = prompts.get(idx) {
            let request = Submission {
                ignore_eos: idx % 2 == 0,
                priority: idx as i32,
                ..Submission::new(prompt, 80)
            };
            handles.push(client.submit(&request).unwrap());
        }
        if let Some(cancelled) = (round as usize).checked_sub(12).filter(|idx| idx % 4 == 1)
            && let Some(handle) = handles.get(cancelled)
        {
            handle.cancel().unwrap();
        }
        gate.release(round);
    }
    let outcomes = handles.iter_mut().map(finish);
    let outcomes = outcomes
        .map(|(tokens, finish)| (tokens, finish.reason))
        .collect();
    drop(handles);
    engine.stop().unwrap();
    (outcomes, log.take())
}

#[test]
fn replayed_rounds_give_the_same_plans_and_tokens_whatever_overlaps() {
    let (expected_outcomes, expected_log) = replay(Placement::HostAsync, Overlap::ALL);
    let cancelled = expected_outcomes
        .iter()
        .filter(|(_, reason)| *reason == FinishReason::Cancelled);
    assert!(cancelled.count() >= 5);
    assert!(expected_log.iter().any(|record| record.num_preempted > 0));
    for overlap in overlaps() {
        let (outcomes, log) = replay(Placement::HostAsync, overlap);
        assert_eq!(outcomes, expected_outcomes, "{overlap:?}");
        let plans = |log: &[StepRecord]| -> Vec<(u64, u64, u32)> {
            log.iter()
                .map(|r| (r.step, r.plan, r.num_preempted))
                .collect()
        };
        assert_eq!(plans(&log), plans(&expected_log), "{overlap:?}");
    }
    // host-sync plans on what it knows, which is more; a cancellation may find a sequence further on.
    let (outcomes, log) = replay(Placement::HostSync, Overlap::ALL);
    assert_ne!(log.len(), expected_log.len());
    for ((tokens, _), (others, _)) in outcomes.iter().zip(&expected_outcomes) {
        let both = tokens.len().min(others.len());
        assert_eq!(tokens[..both], others[..both]);
    }
}

#[test]
fn steps_own_what_they_fill_and_one_block_a_sequence_more_when_planned_ahead() {
    for (placement, ahead) in [(Placement::HostSync, 0), (Placement::HostAsync, 1)] {
        let log = Arc::new(StepLog::default());
        let setup = Setup {
            study: Study {
                log: Some(Arc::clone(&log)),
                ..Study::default()
            },
            ..Setup::new(placement)
        };
        let (engine, client) = setup.start();
        let prompt: Vec<u32> = (300..330).collect();
        let request = Submission {
            ignore_eos: true,
            ..Submission::new(&prompt, 50)
        };
        let (tokens, _) = finish(&mut client.submit(&request).unwrap());
        assert_eq!(tokens, expected(&prompt, 50, true));
        engine.stop().unwrap();
        let records = log.take();
        assert_eq!(records.len(), 50);
        for (idx, record) in records.iter().enumerate() {
            assert_eq!(record.step, idx as u64 + 1);
            let filled = (prompt.len() + idx).div_ceil(16) as u32;
            assert_eq!(record.blocks_used, filled);
            // The last step has no successor that needs a block.
            let next = if idx == 49 {
                filled
            } else {
                (prompt.len() + idx + 1).div_ceil(16) as u32
            };
            let owned = if ahead == 1 { next } else { filled };
            assert_eq!(
                record.blocks_allocated, owned,
                "{placement}, step {}",
                record.step
            );
        }
    }
}
