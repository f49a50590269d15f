//! One claim a test, on small schedulers driven by hand.

mod admission;
mod deferral;
mod endings;
mod preemption;
mod prefix_cache;

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
