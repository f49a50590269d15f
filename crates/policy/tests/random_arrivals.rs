//! Thousands of random requests, with shared beginnings, stops, failures, cancellations, priorities and pools that are
//! too small, on random configurations. Every request must get the tokens that the model gives it alone; the
//! driver checks every plan and the state's integrity at every call.

mod common;

use common::driver::{Driver, Mode};
use common::model::{End, Request, VOCAB};
use common::rng::Rng;
use izar_policy::{Cause, Config, Gauges, Refusal};

const MODES: [Mode; 3] = [Mode::Exact, Mode::Optimistic, Mode::Mixed];
const MAX_STEPS: u64 = 100_000;

fn random_config(rng: &mut Rng) -> Config {
    let block_size = rng.pick(&[2, 4, 16]);
    let max_num_seqs = rng.range(1, 12);
    let max_model_len = rng.range(30, 160);
    let mut config = Config {
        num_slots: rng.range(max_num_seqs, 40),
        block_size,
        num_blocks: rng.range(60, 600) / block_size,
        max_num_batched_tokens: max_num_seqs + rng.range(0, 60),
        max_num_seqs,
        max_model_len,
        num_hash_pages: rng.pick(&[0, 3, 400, 400]),
        prefix_caching: rng.chance(80),
        chunked_prefill: rng.chance(75),
        ..Config::new(1, 1, 1, 1)
    };
    if !config.chunked_prefill {
        config.max_num_batched_tokens += config.max_total_len();
    }
    config
}

fn random_requests(rng: &mut Rng, num_requests: usize, max_model_len: u32) -> Vec<Request> {
    let beginnings: Vec<Vec<u32>> = (0..3)
        .map(|_| (0..200).map(|_| rng.range(0, VOCAB - 1)).collect())
        .collect();
    let num_priorities = rng.pick(&[1, 1, 3]);
    let longest_shared = rng.pick(&[8, max_model_len]);
    let stop_every = rng.pick(&[[7, 60], [200, 400]]);
    let mut arrival_step = 1;
    let mut request = || {
        arrival_step += rng.pick(&[0, 0, 0, 1, 5]) as u64;
        let shared = rng.range(0, longest_shared) as usize;
        let mut prompt = beginnings[rng.range(0, 2) as usize][..shared].to_vec();
        prompt.extend((0..rng.range(0, 9)).map(|_| rng.range(0, VOCAB - 1)));
        Request {
            max_total_len: prompt.len() as u32 + rng.pick(&[0, 1, 2, 10, 40, 80, 1000]),
            priority: rng.range(1, num_priorities) as i32 - 2,
            arrival_step,
            cancel_step: rng
                .chance(20)
                .then(|| arrival_step + rng.range(0, 60) as u64),
            stop_every: rng.pick(&stop_every),
            fail_at: rng.chance(10).then_some(13),
            deferred: rng.pick(&[0, 0, 0, 30, 80]),
            computes_all: rng.chance(10),
            prompt,
        }
    };
    (0..num_requests).map(|_| request()).collect()
}

fn check_outcomes(driver: &Driver, requests: &[Request]) {
    let longest = driver.config.max_total_len();
    for (request, outcome) in requests.iter().zip(&driver.outcomes) {
        let fits =
            request.prompt.len() as u32 <= driver.config.num_blocks * driver.config.block_size;
        let Some(cause) = outcome.cause else {
            let refusal = outcome.refusal.expect("who was not refused has left");
            assert!(!fits || !matches!(refusal, Refusal::NeverFits { .. }));
            continue;
        };
        let (tokens, end) = request.oracle(longest);
        if cause == Cause::Cancelled {
            assert!(request.cancel_step.is_some());
            assert!(
                tokens.starts_with(&outcome.output),
                "cancelled, but wrong tokens before"
            );
            continue;
        }
        assert_eq!(outcome.output, tokens, "wrong tokens");
        let expected = match end {
            End::Stop => Cause::Stopped,
            End::Length => Cause::Length,
            End::Fail => Cause::Failed,
        };
        assert_eq!(cause, expected);
    }
}

/// First tokens come in order of arrival inside each priority, but for those that are deferred.
fn check_fcfs(driver: &Driver, requests: &[Request]) {
    let mut latest = std::collections::HashMap::new();
    for (request, outcome) in requests.iter().zip(&driver.outcomes) {
        if let Some(step) = outcome.first_token_step.filter(|_| request.deferred == 0) {
            let before = latest.insert(request.priority, step).unwrap_or(0);
            assert!(
                before <= step,
                "a first token overtook an earlier request's"
            );
        }
    }
}

fn run(seed: u64, mode: Mode) -> Gauges {
    let mut rng = Rng(seed);
    let config = random_config(&mut rng);
    let requests = random_requests(&mut rng, 60, config.max_model_len.min(110));
    let mut driver = Driver::new(config, mode, seed, requests.clone());
    driver.run(MAX_STEPS);
    check_outcomes(&driver, &requests);
    check_fcfs(&driver, &requests);
    driver.state.gauges()
}

#[test]
fn every_request_gets_its_own_tokens_exact_optimistic_or_mixed() {
    let mut totals = Gauges::default();
    for seed in 0..300 {
        for mode in MODES {
            let context = format!("seed {seed}, {mode:?}");
            let gauges = std::panic::catch_unwind(|| run(seed, mode))
                .unwrap_or_else(|_| panic!("failed: {context}"));
            totals.num_preemptions_total += gauges.num_preemptions_total;
            totals.prefix_hit_tokens_total += gauges.prefix_hit_tokens_total;
            totals.num_evictions_total += gauges.num_evictions_total;
            totals.num_deferrals_total += gauges.num_deferrals_total;
        }
    }
    assert!(
        totals.num_preemptions_total > 1000,
        "the runs preempt: {totals:?}"
    );
    assert!(
        totals.prefix_hit_tokens_total > 10_000,
        "the runs hit: {totals:?}"
    );
    assert!(
        totals.num_evictions_total > 1000,
        "the runs evict: {totals:?}"
    );
    assert!(
        totals.num_deferrals_total > 10_000,
        "the runs defer: {totals:?}"
    );
}
