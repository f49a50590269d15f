//! The whole resident scheduler without a GPU: its block of threads and the graphs it launches are fibers (`block.cpp`), its
//! serial part is this crate, and the front end is the real client.
//!
//! Chance decides who runs when, by a seed. Every token of every request must be the hash of all tokens before it as they
//! lie in the KV blocks, which it is only if plans, tables, histories and rows are right; and the simulated device objects to
//! whatever CUDA or the protocol forbids.

mod simulation;

use std::time::Duration;

use izar_transport::client::{
    FinishReason, Progress, RequestHandle, RingClient, SamplingParams, Submission,
};

use simulation::{Mutation, Options, Simulation, VOCAB_SIZE, hash_token, next_token};

/// Longer than a request takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// One request and what becomes of it.
struct Case {
    prompt: Vec<u32>,
    max_tokens: u32,
    seed: u64,
    cancels: bool,
}

fn cases(seed: u64, count: u64) -> Vec<Case> {
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    (0..count)
        .map(|_| {
            // Some begin alike, so that prefix blocks are shared.
            let family = random(3) as u32;
            let len = 1 + random(40) as u32;
            Case {
                prompt: (0..len)
                    .map(|i| {
                        (family * 100 + i + if i > 20 { random(9) as u32 } else { 0 }) % VOCAB_SIZE
                    })
                    .collect(),
                max_tokens: 1 + random(30) as u32,
                seed: random(1 << 20),
                cancels: random(6) == 0,
            }
        })
        .collect()
}

fn expected(case: &Case) -> Vec<u32> {
    let mut hash = case
        .prompt
        .iter()
        .fold(simulation::HASH_START, |hash, &token| {
            hash_token(hash, token)
        });
    (0..case.max_tokens)
        .map(|_| {
            let token = next_token(hash ^ (case.seed & 0xFFFF_FFFF));
            hash = hash_token(hash, token);
            token
        })
        .collect()
}

fn submit(client: &RingClient, case: &Case) -> RequestHandle {
    let submission = Submission {
        ignore_eos: true,
        sampling: SamplingParams {
            temperature: 1.0,
            seed: Some(case.seed),
            ..SamplingParams::default()
        },
        ..Submission::new(&case.prompt, case.max_tokens)
    };
    let handle = client.submit(&submission).expect("room for all requests");
    if case.cancels {
        handle.cancel().expect("in this process");
    }
    handle
}

/// Waits for a request and says what is wrong with its answer.
fn check(case: &Case, handle: &mut RequestHandle, patience: Duration) -> Result<(), String> {
    let mut tokens = Vec::new();
    let finish = loop {
        match handle.wait(&mut tokens, patience) {
            Some(Progress::More) => {}
            Some(Progress::Finished(finish)) => break finish,
            None => return Err(format!("nothing more after {} tokens", tokens.len())),
        }
    };
    let ids: Vec<u32> = tokens.iter().map(|token| token.token).collect();
    let wanted = expected(case);
    match finish.reason {
        FinishReason::Length if ids == wanted => Ok(()),
        FinishReason::Cancelled if case.cancels && wanted.starts_with(&ids) => Ok(()),
        reason => Err(format!("{reason:?} with {ids:?}, not {wanted:?}")),
    }
}

/// Serves `count` requests under a schedule; the first thing that went wrong.
fn serve(options: Options, count: u64) -> Result<simulation::Figures, String> {
    let cases = cases(options.seed, count);
    let mut simulation = Simulation::start(options);
    let client = simulation.client();
    // What is broken on purpose often leaves a request without an end.
    let patience = match options.mutation {
        Mutation::None if options.launch_window <= options.launch_limit => PATIENCE,
        _ => PATIENCE / 20,
    };
    let mut handles: Vec<RequestHandle> = cases.iter().map(|case| submit(&client, case)).collect();
    let checked: Result<Vec<()>, String> = cases
        .iter()
        .zip(&mut handles)
        .map(|(case, handle)| {
            simulation.is_running()?;
            check(case, handle, patience)
        })
        .collect();
    let stats = client.engine_status().expect("in this process").stats;
    drop(handles);
    drop(client);
    let figures = simulation.stop()?;
    checked?;
    assert_eq!((stats.num_running, stats.num_waiting), (0, 0));
    assert_eq!(stats.kv_blocks_owned, 0, "blocks nobody owns");
    Ok(simulation::Figures {
        num_preemptions: stats.num_preemptions,
        prefix_hit_tokens: stats.prefix_hit_tokens,
        ..figures
    })
}

#[test]
fn every_schedule_gives_every_request_its_tokens() {
    let mut sum = simulation::Figures::default();
    for seed in 0..12 {
        let figures =
            serve(Options::small(seed), 24).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        sum.num_relaunches += figures.num_relaunches;
        sum.num_retries += figures.num_retries;
        sum.num_preemptions += figures.num_preemptions;
        sum.prefix_hit_tokens += figures.prefix_hit_tokens;
    }
    // Otherwise the schedules test less than they seem to.
    assert!(sum.num_relaunches > 100 && sum.num_retries > 0, "{sum:?}");
    assert!(
        sum.num_preemptions > 0 && sum.prefix_hit_tokens > 0,
        "{sum:?}"
    );
}

#[test]
fn windows_of_any_size_are_crossed() {
    for (seed, window) in [(100, 2), (101, 3), (102, 7), (103, 120)] {
        let options = Options {
            launch_window: window,
            launch_limit: window,
            ..Options::small(seed)
        };
        serve(options, 16).unwrap_or_else(|error| panic!("window {window}: {error}"));
    }
}

#[test]
fn window_larger_than_the_device_s_is_noticed() {
    let options = Options {
        launch_window: 6,
        launch_limit: 5,
        ..Options::small(200)
    };
    let error = serve(options, 12).expect_err("a launch too many");
    assert!(error.contains("more than 5 graphs"), "{error}");
}

#[test]
fn gate_that_does_not_wait_is_noticed() {
    let options = Options {
        mutation: Mutation::GateIgnoresDone,
        ..Options::small(300)
    };
    serve(options, 12).expect_err("steps at the same time");
}

#[test]
fn step_that_is_done_before_its_samples_are_there_is_noticed() {
    let failures = (400..404).filter(|&seed| {
        let options = Options {
            mutation: Mutation::DoneIsEarly,
            ..Options::small(seed)
        };
        serve(options, 12).is_err()
    });
    assert!(
        failures.count() > 0,
        "four schedules, and none read too early"
    );
}
