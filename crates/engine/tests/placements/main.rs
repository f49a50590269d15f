//! The driver over a simulated model: both placements, every kind of ending, through a real ring and client.

#[path = "../support/mask_feed.rs"]
mod mask_feed;
mod masks;
mod simulated;
mod study;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use izar_engine::driver::{Engine, EngineOptions, Placement, Study};
use izar_policy::Config;
use izar_ring::{EngineError, RingGeometry, RingOptions};
use izar_transport::client::{
    ClientOptions, EngineHealth, Finish, FinishReason, GeneratedToken, Progress, RequestError,
    RequestHandle, RingClient, StepRecord, Submission,
};
use izar_transport::{InProcess, Transport};
use simulated::{BLOCK, EOS, FATAL, POISON, SimExecutor, VOCAB, expected};

const TIMEOUT: Duration = Duration::from_secs(60);

struct Setup {
    placement: Placement,
    num_blocks: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
    max_model_len: u32,
    chunked_prefill: bool,
    step_time: Duration,
    max_depth: Arc<AtomicUsize>,
    mask_timeout: Duration,
    study: Study,
}

impl Setup {
    fn new(placement: Placement) -> Self {
        Self {
            placement,
            num_blocks: 64,
            max_num_seqs: 8,
            max_num_batched_tokens: 64,
            max_model_len: 400,
            chunked_prefill: true,
            step_time: Duration::ZERO,
            max_depth: Arc::default(),
            mask_timeout: TIMEOUT,
            study: Study::default(),
        }
    }

    fn start(&self) -> (Engine, RingClient) {
        let mut policy = Config::new(
            self.num_blocks,
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.max_model_len,
        );
        policy.chunked_prefill = self.chunked_prefill;
        let geometry = RingGeometry {
            num_slots: policy.num_slots,
            ..RingGeometry::default()
        };
        let (transport, ring) = InProcess::create(&RingOptions {
            geometry,
            ..RingOptions::default()
        })
        .unwrap();
        let executor = SimExecutor::new(
            self.num_blocks,
            self.max_num_seqs,
            self.max_model_len,
            self.step_time,
            Arc::clone(&self.max_depth),
        );
        let options = EngineOptions {
            policy,
            placement: self.placement,
            seed: Some(1),
            vocab_size: VOCAB,
            model_name: "simulated".into(),
            hardware: "none".into(),
            mask_timeout: self.mask_timeout,
            study: self.study.clone(),
        };
        let engine = Engine::start(options, ring, Box::new(executor)).unwrap();
        let client =
            RingClient::connect(transport as Arc<dyn Transport>, ClientOptions::default()).unwrap();
        assert_eq!(client.wait_ready(TIMEOUT).unwrap(), EngineHealth::Ready);
        (engine, client)
    }
}

fn both(test: impl Fn(Setup)) {
    for placement in [Placement::HostSync, Placement::HostAsync] {
        test(Setup::new(placement));
    }
}

fn finish(handle: &mut RequestHandle) -> (Vec<u32>, Finish) {
    let mut tokens: Vec<GeneratedToken> = Vec::new();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match handle
            .wait(&mut tokens, left)
            .expect("the request ends in time")
        {
            Progress::More => {}
            Progress::Finished(finish) => {
                return (tokens.iter().map(|t| t.token).collect(), finish);
            }
        }
    }
}

/// Waits until the engine reports no work and the client no slot in use.
fn assert_everything_came_back(client: &RingClient) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let engine = client.engine_status().unwrap().stats;
        let busy = (
            engine.num_running,
            engine.num_waiting,
            engine.kv_blocks_owned,
            client.stats().slots_in_use,
        );
        if busy == (0, 0, 0, 0) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "running, waiting, blocks, slots still in use: {busy:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The client refuses a request, or, until it has noticed that the engine is gone, ends it with an error.
fn assert_takes_nothing_more(client: &RingClient) {
    if let Ok(mut handle) = client.submit(&Submission::new(&[1], 1)) {
        let (tokens, end) = finish(&mut handle);
        assert!(
            tokens.is_empty() && matches!(end.reason, FinishReason::Failed(_)),
            "{:?}",
            end.reason
        );
    }
}

/// A small generator, so that a failing case can be named by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as u32) % n
    }

    /// Half of the prompts share one of three beginnings.
    fn prompt(&mut self, max_len: u32) -> Vec<u32> {
        let len = 1 + self.below(max_len);
        let family = self.below(6);
        (0..len)
            .map(|i| {
                if family < 3 && i < 40 {
                    100 + family * 40 + i
                } else {
                    self.below(VOCAB - 10)
                }
            })
            .collect()
    }
}

fn random_traffic(setup: &Setup, seed: u64, num_requests: usize) {
    let (engine, client) = setup.start();
    let mut random = Random(seed);
    let requests: Vec<(Vec<u32>, u32, bool)> = (0..num_requests)
        .map(|_| {
            (
                random.prompt(120),
                1 + random.below(150),
                random.below(2) == 0,
            )
        })
        .collect();
    let handles: Vec<_> = requests
        .iter()
        .map(|(prompt, max_tokens, ignore_eos)| {
            let submission = Submission {
                ignore_eos: *ignore_eos,
                ..Submission::new(prompt, *max_tokens)
            };
            client.submit(&submission).unwrap()
        })
        .collect();
    for (idx, (mut handle, (prompt, max_tokens, ignore_eos))) in
        handles.into_iter().zip(&requests).enumerate()
    {
        if idx % 3 == 2 {
            drop(handle);
            continue;
        }
        let (tokens, finish) = finish(&mut handle);
        assert_eq!(
            tokens,
            expected(prompt, *max_tokens, *ignore_eos),
            "request {idx} of seed {seed}"
        );
        let stopped = !ignore_eos && tokens.last() == Some(&EOS);
        let reason = if stopped {
            FinishReason::Stop { token: Some(EOS) }
        } else {
            FinishReason::Length
        };
        assert_eq!(finish.reason, reason, "request {idx} of seed {seed}");
    }
    assert_everything_came_back(&client);
    let times = engine.times();
    assert!(times.num_steps > 0 && times.planning_ns > 0 && times.publishing_ns > 0);
    // The histograms of a step are published after its tokens.
    let mut steps = client.engine_status().unwrap().steps;
    while steps.tokens.counts.iter().sum::<u64>() < times.num_steps {
        std::thread::yield_now();
        steps = client.engine_status().unwrap().steps;
    }
    assert_eq!(steps.forward_ns.sum, times.forward_ns);
    assert!(steps.planning_ns.sum > 0 && steps.publishing_ns.sum > 0);
    engine.stop().unwrap();
}

#[test]
fn random_traffic_gives_every_request_its_own_tokens() {
    both(|setup| {
        for seed in 0..4 {
            random_traffic(&setup, seed, 120);
        }
    });
}

#[test]
fn async_placement_launches_one_step_ahead_and_sync_none() {
    both(|setup| {
        let (engine, client) = setup.start();
        let mut handle = client.submit(&Submission::new(&[9; 20], 40)).unwrap();
        assert_eq!(finish(&mut handle).0, expected(&[9; 20], 40, false));
        engine.stop().unwrap();
        let ahead = setup.max_depth.load(Ordering::Relaxed) - 1;
        assert_eq!(ahead, usize::from(setup.placement == Placement::HostAsync));
    });
}

#[test]
fn step_log_has_every_step_once_with_the_times_that_are_summed() {
    both(|setup| {
        let (engine, client) = setup.start();
        let mut handle = client.submit(&Submission::new(&[9; 20], 40)).unwrap();
        finish(&mut handle);
        while client.new_steps(0, &mut Vec::new()).unwrap().next < engine.times().num_steps {
            std::thread::yield_now();
        }
        let times = engine.times();
        engine.stop().unwrap();
        let mut steps = Vec::new();
        let found = client.new_steps(0, &mut steps).unwrap();
        assert_eq!((found.next, found.num_missed), (times.num_steps, 0));
        assert!(steps.windows(2).all(|pair| pair[0].step < pair[1].step));
        let sum = |time: fn(&StepRecord) -> u64| steps.iter().map(time).sum::<u64>();
        assert_eq!(sum(|s| s.planning_ns), times.planning_ns);
        assert_eq!(sum(|s| s.forward_ns), times.forward_ns);
        assert_eq!(sum(|s| s.sampling_ns), times.sampling_ns);
        assert_eq!(sum(|s| s.publishing_ns), times.publishing_ns);
        assert_eq!(sum(|s| s.gap_ns), times.gap_ns);
        // The prompt and 39 tokens that were fed back.
        assert_eq!(sum(|s| s.num_tokens.into()), 59);
        for step in &steps {
            assert_eq!(step.num_sequences, 1);
            let launched = step.planning_started_ns + step.planning_ns;
            let finished = step.started_ns + step.forward_ns + step.sampling_ns;
            assert!(launched <= step.started_ns, "{step:?}");
            assert!(finished <= step.publishing_started_ns, "{step:?}");
        }
    });
}

#[test]
fn preemption_changes_no_token() {
    both(|setup| {
        let setup = Setup {
            num_blocks: 26,
            max_num_seqs: 8,
            ..setup
        };
        let (engine, client) = setup.start();
        let prompts: Vec<Vec<u32>> = (0..12u32).map(|i| vec![i + 20; 30]).collect();
        let submissions: Vec<_> = prompts
            .iter()
            .map(|p| Submission {
                ignore_eos: true,
                ..Submission::new(p, 120)
            })
            .collect();
        let mut handles: Vec<_> = submissions
            .iter()
            .map(|s| client.submit(s).unwrap())
            .collect();
        let mut num_preemptions = 0;
        for (handle, prompt) in handles.iter_mut().zip(&prompts) {
            let (tokens, finish) = finish(handle);
            assert_eq!(tokens, expected(prompt, 120, true));
            num_preemptions += finish.num_preemptions;
        }
        assert!(
            num_preemptions > 0,
            "26 blocks do not hold eight sequences of 150 tokens"
        );
        drop(handles);
        assert_everything_came_back(&client);
        engine.stop().unwrap();
    });
}

#[test]
fn whole_prompts_without_chunks_give_the_same_tokens() {
    both(|setup| {
        let setup = Setup {
            chunked_prefill: false,
            max_num_batched_tokens: 400,
            ..setup
        };
        random_traffic(&setup, 11, 60);
    });
}

#[test]
fn second_request_with_the_same_prompt_hits_the_prefix_cache() {
    both(|setup| {
        let (engine, client) = setup.start();
        let prompt: Vec<u32> = (10..110).collect();
        for round in 0..2 {
            let mut handle = client.submit(&Submission::new(&prompt, 5)).unwrap();
            let (tokens, finish) = finish(&mut handle);
            assert_eq!(tokens, expected(&prompt, 5, false));
            let cached = if round == 0 {
                0
            } else {
                prompt.len() / BLOCK * BLOCK
            };
            assert_eq!(finish.num_cached_tokens as usize, cached);
        }
        engine.stop().unwrap();
    });
}

#[test]
fn cancelled_request_ends_within_steps_and_hurts_no_other() {
    both(|setup| {
        let setup = Setup {
            step_time: Duration::from_millis(1),
            ..setup
        };
        let (engine, client) = setup.start();
        let long = Submission {
            ignore_eos: true,
            ..Submission::new(&[1, 2, 3], 300)
        };
        let mut victim = client.submit(&long).unwrap();
        let mut other = client
            .submit(&Submission {
                prompt: &[4, 5],
                ..long
            })
            .unwrap();
        let mut tokens = Vec::new();
        assert_eq!(victim.wait(&mut tokens, TIMEOUT), Some(Progress::More));
        victim.cancel().unwrap();
        let (rest, end) = finish(&mut victim);
        assert_eq!(end.reason, FinishReason::Cancelled);
        assert!(
            tokens.len() + rest.len() < 200,
            "the cancel arrives long before 300 steps are over"
        );
        assert_eq!(finish(&mut other).0, expected(&[4, 5], 300, true));
        drop((victim, other));
        assert_everything_came_back(&client);
        engine.stop().unwrap();
    });
}

#[test]
fn failure_in_one_row_ends_that_request_alone() {
    both(|setup| {
        let (engine, client) = setup.start();
        let long = Submission {
            ignore_eos: true,
            ..Submission::new(&[5, POISON], 50)
        };
        let mut poisoned = client.submit(&long).unwrap();
        let mut healthy = client
            .submit(&Submission {
                prompt: &[5, 6],
                ..long
            })
            .unwrap();
        let (tokens, end) = finish(&mut poisoned);
        assert_eq!(tokens, expected(&[5, POISON], 2, true));
        assert_eq!(
            end.reason,
            FinishReason::Failed(RequestError::Engine(EngineError::NonFiniteLogits))
        );
        assert_eq!(finish(&mut healthy).0, expected(&[5, 6], 50, true));
        drop((poisoned, healthy));
        assert_everything_came_back(&client);
        engine.stop().unwrap();
    });
}

#[test]
fn prompt_that_can_never_fit_is_refused_at_once() {
    both(|setup| {
        let setup = Setup {
            num_blocks: 4,
            max_num_batched_tokens: 64,
            ..setup
        };
        let (engine, client) = setup.start();
        let mut handle = client.submit(&Submission::new(&[3; 100], 5)).unwrap();
        let (tokens, end) = finish(&mut handle);
        assert!(tokens.is_empty());
        assert_eq!(
            end.reason,
            FinishReason::Failed(RequestError::Engine(EngineError::NeverFits))
        );
        let mut next = client.submit(&Submission::new(&[3; 20], 5)).unwrap();
        assert_eq!(finish(&mut next).0, expected(&[3; 20], 5, false));
        engine.stop().unwrap();
    });
}

#[test]
fn stopping_ends_running_requests_with_an_error() {
    both(|setup| {
        let setup = Setup {
            step_time: Duration::from_millis(2),
            ..setup
        };
        let (engine, client) = setup.start();
        let mut handle = client
            .submit(&Submission {
                ignore_eos: true,
                ..Submission::new(&[1], 300)
            })
            .unwrap();
        let mut tokens = Vec::new();
        assert_eq!(handle.wait(&mut tokens, TIMEOUT), Some(Progress::More));
        engine.stop().unwrap();
        let (_, end) = finish(&mut handle);
        assert!(
            matches!(end.reason, FinishReason::Failed(_)),
            "{:?}",
            end.reason
        );
        assert_takes_nothing_more(&client);
    });
}

#[test]
fn failed_executor_fails_the_engine_and_says_so() {
    both(|setup| {
        let (engine, client) = setup.start();
        let mut handle = client.submit(&Submission::new(&[1, FATAL], 5)).unwrap();
        let (_, end) = finish(&mut handle);
        assert!(
            matches!(end.reason, FinishReason::Failed(_)),
            "{:?}",
            end.reason
        );
        assert_takes_nothing_more(&client);
        assert_eq!(engine.stop().unwrap_err().0, "a fatal token");
    });
}
