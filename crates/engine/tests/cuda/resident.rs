//! The scheduler on the device against the host's: same tokens, same ends, whatever is asked for.

use izar_engine::driver::Placement;
use izar_engine::{CudaEngine, CudaEngineOptions};
use izar_model::Checkpoint;
use izar_transport::client::{
    Finish, FinishReason, GeneratedToken, Progress, RequestHandle, SamplingParams, Submission,
    TokenLogprobs,
};

use super::checkpoints::{all, write};
use super::engine::{Running, TIMEOUT, finish, start, traffic};
use super::harness::prompt;
use super::has_device;

fn options(placement: Placement) -> CudaEngineOptions {
    CudaEngineOptions {
        placement,
        max_num_seqs: 48,
        max_num_batched_tokens: 64,
        ..CudaEngineOptions::default()
    }
}

/// Both placements; the device's must be what it says.
fn on_both<T>(
    checkpoint: &Checkpoint,
    options: &CudaEngineOptions,
    run: impl Fn(&Running) -> T,
) -> [T; 2] {
    [Placement::HostAsync, Placement::Gpu].map(|placement| {
        let options = CudaEngineOptions {
            placement,
            ..options.clone()
        };
        let running = start(checkpoint, options);
        assert_eq!(
            running.engine.placement, placement,
            "no launch from the device"
        );
        let outcome = run(&running);
        end(running);
        outcome
    })
}

/// Stops the engine, which must not have failed, and prints what the scheduler measured.
fn end(running: Running) {
    let CudaEngine {
        engine,
        placement,
        resident,
        ..
    } = running.engine;
    if let Some(resident) = resident {
        let mut gaps = resident.gaps_ns();
        gaps.sort_unstable();
        let at = |share: f64| gaps.get((gaps.len() as f64 * share) as usize).copied();
        eprintln!(
            "{placement}: {:?}, gaps ns p50 {:?} p99 {:?} max {:?} of {}",
            resident.figures(),
            at(0.5),
            at(0.99),
            gaps.last(),
            gaps.len()
        );
    }
    let times = engine.times();
    let per_step = |ns: u64| ns as f64 / 1e3 / times.num_steps.max(1) as f64;
    eprintln!(
        "{placement}: us a step: planning {:.1}, forward {:.1}, sampling {:.1}, publishing {:.1}, gap {:.1}",
        per_step(times.planning_ns),
        per_step(times.forward_ns),
        per_step(times.sampling_ns),
        per_step(times.publishing_ns),
        per_step(times.gap_ns)
    );
    drop(running.client);
    engine.stop().unwrap();
}

/// Indices at which the two differ.
fn parted<T: PartialEq>([one, other]: &[Vec<T>; 2]) -> Vec<usize> {
    assert_eq!(one.len(), other.len());
    (0..one.len())
        .filter(|&idx| one[idx] != other[idx])
        .collect()
}

#[test]
fn resident_scheduler_answers_one_request() {
    if !has_device() {
        return;
    }
    let tiny = write(&all()[0].1);
    let vocab = tiny.checkpoint.config().vocab_size;
    let tokens = prompt(1, 20, vocab);
    let outcomes = on_both(&tiny.checkpoint, &options(Placement::Gpu), |running| {
        let submission = Submission {
            ignore_eos: true,
            ..Submission::new(&tokens, 12)
        };
        finish(&mut running.client.submit(&submission).unwrap())
    });
    assert_eq!(outcomes[0], outcomes[1]);
}

#[test]
fn resident_scheduler_gives_the_tokens_of_the_host_s() {
    if !has_device() {
        return;
    }
    for (name, spec) in all() {
        let tiny = write(&spec);
        let vocab = tiny.checkpoint.config().vocab_size;
        eprintln!("{name}");
        let outcomes = on_both(&tiny.checkpoint, &options(Placement::Gpu), |running| {
            traffic(running, vocab)
        });
        // No step has more than 64 tokens, and up to there a token's result does not depend on its step.
        assert_eq!(parted(&outcomes), [0; 0], "{name}: requests that differ");
    }
}

/// Everything of an answer, and how often its request was preempted.
struct Answer {
    tokens: Vec<GeneratedToken>,
    finish: Finish,
}

fn answer(handle: &mut RequestHandle) -> Answer {
    let mut tokens = Vec::new();
    loop {
        match handle.wait(&mut tokens, TIMEOUT).expect("tokens in time") {
            Progress::More => {}
            Progress::Finished(finish) => return Answer { tokens, finish },
        }
    }
}

impl Answer {
    /// Same tokens, same end; log-probabilities of the same tokens, as near as the sampler promises.
    fn equals(&self, other: &Self) -> bool {
        let same = |one: &GeneratedToken, two: &GeneratedToken| {
            one.token == two.token && near(one.logprobs.as_deref(), two.logprobs.as_deref())
        };
        self.finish.reason == other.finish.reason
            && self.tokens.len() == other.tokens.len()
            && self
                .tokens
                .iter()
                .zip(&other.tokens)
                .all(|(one, two)| same(one, two))
    }
}

fn near(one: Option<&TokenLogprobs>, two: Option<&TokenLogprobs>) -> bool {
    let close = |a: f32, b: f32| (a - b).abs() <= 1e-4 * a.abs().max(1.0);
    match (one, two) {
        (None, None) => true,
        (Some(one), Some(two)) => {
            one.rank == two.rank
                && close(one.sampled, two.sampled)
                && one.top.len() == two.top.len()
                && one
                    .top
                    .iter()
                    .zip(&two.top)
                    .all(|(a, b)| a.0 == b.0 && close(a.1, b.1))
        }
        _ => false,
    }
}

/// Compares the answers of the two placements. What a preempted sequence computes again is rounded otherwise (a prefill, not
/// decodes), so only those that were preempted in neither run must be equal; their number is the answer.
fn compare([host, device]: &[Vec<Answer>; 2]) -> usize {
    let mut num_compared = 0;
    for (idx, (one, two)) in host.iter().zip(device).enumerate() {
        if one.finish.num_preemptions + two.finish.num_preemptions > 0 {
            continue;
        }
        num_compared += 1;
        let ids = |answer: &Answer| {
            answer
                .tokens
                .iter()
                .map(|token| token.token)
                .collect::<Vec<_>>()
        };
        assert!(
            one.equals(two),
            "request {idx}:\n{:?} {:?}\n{:?} {:?}\n{:?}\n{:?}",
            ids(one),
            one.finish,
            ids(two),
            two.finish,
            one.tokens,
            two.tokens
        );
    }
    num_compared
}

#[test]
fn resident_scheduler_preempts_and_resumes() {
    if !has_device() {
        return;
    }
    let tiny = write(&all()[0].1);
    let vocab = tiny.checkpoint.config().vocab_size;
    let options = CudaEngineOptions {
        num_kv_blocks: Some(60),
        max_num_seqs: 16,
        ..options(Placement::Gpu)
    };
    let prompts: Vec<Vec<u32>> = (0..150)
        .map(|i| {
            let mut tokens = prompt(i % 5, 40, vocab);
            tokens.extend(prompt(1000 + i, 1 + i as usize * 7 % 90, vocab));
            tokens
        })
        .collect();
    let outcomes = on_both(&tiny.checkpoint, &options, |running| {
        let submissions = prompts.iter().enumerate().map(|(i, prompt)| Submission {
            ignore_eos: true,
            sampling: SamplingParams {
                temperature: (i % 2) as f32 * 0.9,
                seed: Some(i as u64),
                ..SamplingParams::default()
            },
            ..Submission::new(prompt, 1 + i as u32 * 13 % 90)
        });
        let mut handles: Vec<RequestHandle> = submissions
            .map(|submission| running.client.submit(&submission).unwrap())
            .collect();
        let answers: Vec<Answer> = handles.iter_mut().map(answer).collect();
        let stats = running.client.engine_status().unwrap().stats;
        assert!(
            stats.num_preemptions > 0,
            "60 blocks do not hold 16 sequences"
        );
        assert!(stats.prefix_hit_tokens > 0, "prompts begin alike");
        assert_eq!(stats.kv_blocks_owned, 0);
        for (i, answer) in answers.iter().enumerate() {
            assert_eq!(answer.finish.reason, FinishReason::Length);
            assert_eq!(answer.tokens.len(), 1 + i * 13 % 90, "request {i}");
        }
        answers
    });
    let num_compared = compare(&outcomes);
    assert!(
        num_compared > 50,
        "{num_compared} of 150 were never preempted"
    );
}

/// Requests that use everything a row has.
fn elaborate(running: &Running, vocab: usize) -> Vec<Answer> {
    let prompts: Vec<Vec<u32>> = (0..40).map(|i| prompt(i, 10 + i as usize, vocab)).collect();
    let biases: Vec<(u32, f32)> = (0..60)
        .map(|i| (i * 31 % 50, 0.5 - i as f32 / 40.0))
        .collect();
    let allowed: Vec<u32> = (0..vocab as u32).filter(|id| id % 3 != 1).collect();
    let stops: Vec<u32> = (0..vocab as u32).filter(|id| id % 41 == 0).collect();
    let bad: Vec<Vec<u32>> = (0..30)
        .map(|i| prompt(70 + i, 1 + i as usize % 3, vocab))
        .collect();
    let bad: Vec<&[u32]> = bad.iter().map(Vec::as_slice).collect();
    let submissions = prompts.iter().enumerate().map(|(i, prompt)| Submission {
        min_tokens: (i % 7) as u32,
        ignore_eos: i % 2 == 0,
        stop_token_ids: if i % 3 == 0 { &stops } else { &[] },
        logit_bias: if i % 4 == 0 { &biases } else { &[] },
        allowed_token_ids: (i % 5 == 0).then_some(allowed.as_slice()),
        bad_words: if i % 2 == 1 { &bad } else { &[] },
        logprobs: (i % 3 == 1).then_some((i % 5) as u32),
        sampling: SamplingParams {
            temperature: (i % 4) as f32 * 0.4,
            top_p: 0.9,
            top_k: if i % 6 == 0 { 20 } else { 0 },
            min_p: if i % 5 == 1 { 0.02 } else { 0.0 },
            repetition_penalty: if i % 3 == 2 { 1.3 } else { 1.0 },
            presence_penalty: if i % 4 == 3 { 0.4 } else { 0.0 },
            frequency_penalty: if i % 4 == 1 { 0.2 } else { 0.0 },
            seed: Some(i as u64 * 77),
        },
        ..Submission::new(prompt, 40)
    });
    let mut handles: Vec<RequestHandle> = submissions
        .map(|submission| running.client.submit(&submission).unwrap())
        .collect();
    handles.iter_mut().map(answer).collect()
}

#[test]
fn resident_scheduler_binds_rows_as_the_host_does() {
    if !has_device() {
        return;
    }
    let tiny = write(&all()[0].1);
    let vocab = tiny.checkpoint.config().vocab_size;
    // The second pool preempts some of them, so that rows are bound again with a history.
    for (num_kv_blocks, num_compared) in [(None, 40), (Some(110), 10)] {
        let options = CudaEngineOptions {
            num_kv_blocks,
            ..options(Placement::Gpu)
        };
        let outcomes = on_both(&tiny.checkpoint, &options, |running| {
            elaborate(running, vocab)
        });
        let compared = compare(&outcomes);
        eprintln!("{compared} of 40 compared");
        assert!(compared >= num_compared, "{compared} were never preempted");
    }
}

#[test]
fn resident_scheduler_ends_cancelled_requests_and_no_others() {
    if !has_device() {
        return;
    }
    let tiny = write(&all()[0].1);
    let vocab = tiny.checkpoint.config().vocab_size;
    let running = start(&tiny.checkpoint, options(Placement::Gpu));
    let prompts: Vec<Vec<u32>> = (0..60).map(|i| prompt(i, 30, vocab)).collect();
    let mut handles: Vec<RequestHandle> = prompts
        .iter()
        .map(|prompt| {
            let submission = Submission {
                ignore_eos: true,
                ..Submission::new(prompt, 300)
            };
            running.client.submit(&submission).unwrap()
        })
        .collect();
    for handle in handles.iter().step_by(2) {
        handle.cancel().unwrap();
    }
    for (idx, handle) in handles.iter_mut().enumerate() {
        let (tokens, reason) = finish(handle);
        if idx % 2 == 0 {
            assert_eq!(reason, FinishReason::Cancelled, "request {idx}");
        } else {
            assert_eq!(
                (tokens.len(), reason),
                (300, FinishReason::Length),
                "request {idx}"
            );
        }
    }
    let stats = running.client.engine_status().unwrap().stats;
    assert_eq!((stats.num_running, stats.num_waiting), (0, 0));
    assert_eq!(stats.kv_blocks_owned, 0);
    end(running);
}

#[test]
fn resident_scheduler_crosses_ten_thousand_windows() {
    if !has_device() {
        return;
    }
    let tiny = write(&all()[0].1);
    let vocab = tiny.checkpoint.config().vocab_size;
    let options = CudaEngineOptions {
        launch_window: 2,
        ..options(Placement::Gpu)
    };
    let running = start(&tiny.checkpoint, options);
    let resident = running
        .engine
        .resident
        .clone()
        .expect("a scheduler on the device");
    let begun = std::time::Instant::now();
    let mut first: Option<Vec<Vec<u32>>> = None;
    while resident.figures().num_relaunches < 10_000 && begun.elapsed().as_secs() < 15 {
        let prompts: Vec<Vec<u32>> = (0..16).map(|i| prompt(i, 8, vocab)).collect();
        let mut handles: Vec<RequestHandle> = prompts
            .iter()
            .map(|prompt| {
                let submission = Submission {
                    ignore_eos: true,
                    ..Submission::new(prompt, 390)
                };
                running.client.submit(&submission).unwrap()
            })
            .collect();
        let tokens: Vec<Vec<u32>> = handles.iter_mut().map(|handle| finish(handle).0).collect();
        assert_eq!(&tokens, first.get_or_insert(tokens.clone()));
    }
    let figures = resident.figures();
    eprintln!("{figures:?} in {:.2} s", begun.elapsed().as_secs_f32());
    assert!(figures.num_relaunches >= 10_000, "{figures:?}");
    end(running);
}
