//! Token masks and prompt log-probabilities through ring, policy and both placements, over the simulated model.

use std::thread::JoinHandle;
use std::time::Duration;

use izar_ring::EngineError;
use izar_transport::client::{
    FinishReason, MaskFeed, RequestError, RequestHandle, RingClient, Submission,
};

use crate::mask_feed::{self, bits};
use crate::simulated::{VOCAB, expected, expected_masked, prompt_score};
use crate::{Random, Setup, assert_everything_came_back, both, finish};

/// Two tokens that mask `k` of request `seed` allows; nothing for a mask that allows everything.
fn allowed(seed: u64, k: usize) -> Option<Vec<u32>> {
    let mut random = Random(seed * 1000 + k as u64);
    random.below(2);
    let ids = vec![10 + random.below(VOCAB - 10), 10 + random.below(VOCAB - 10)];
    (random.below(4) > 0).then_some(ids)
}

fn masked(prompt: &[u32], max_tokens: u32) -> Submission<'_> {
    Submission {
        masked_vocab_size: VOCAB,
        ..Submission::new(prompt, max_tokens)
    }
}

/// Delivers the masks of request `seed`, each after a pause of up to `pause`.
fn feed_masks(feed: MaskFeed, seed: u64, pause: Duration) -> JoinHandle<()> {
    mask_feed::feed(feed, move |k| {
        let pause = pause * Random(seed * 7919 + k as u64).below(3) / 2;
        (
            pause,
            allowed(seed, k).map(|ids| bits(&ids, VOCAB as usize)),
        )
    })
}

struct Traffic {
    prompts: Vec<Vec<u32>>,
    handles: Vec<RequestHandle>,
    feeds: Vec<JoinHandle<()>>,
}

const MAX_TOKENS: u32 = 40;

/// Every second request is masked; its masks come after pauses.
fn submit(client: &RingClient, num_requests: u64, pause: Duration) -> Traffic {
    let mut random = Random(77);
    let prompts: Vec<Vec<u32>> = (0..num_requests).map(|_| random.prompt(60)).collect();
    let (mut handles, mut feeds) = (Vec::new(), Vec::new());
    for (seed, prompt) in (0..).zip(&prompts) {
        let is_masked = seed % 2 == 0;
        let submission = if is_masked {
            masked(prompt, MAX_TOKENS)
        } else {
            Submission::new(prompt, MAX_TOKENS)
        };
        let mut handle = client.submit(&submission).unwrap();
        let feed = handle.take_mask_feed();
        feeds.extend(feed.map(|feed| feed_masks(feed, seed, pause)));
        handles.push(handle);
    }
    Traffic {
        prompts,
        handles,
        feeds,
    }
}

fn check(mut traffic: Traffic) -> u32 {
    let mut num_preemptions = 0;
    for (seed, (handle, prompt)) in (0..).zip(traffic.handles.iter_mut().zip(&traffic.prompts)) {
        let (tokens, end) = finish(handle);
        let want = if seed % 2 == 0 {
            expected_masked(prompt, MAX_TOKENS, |k| allowed(seed, k))
        } else {
            expected(prompt, MAX_TOKENS, false)
        };
        assert_eq!(tokens, want, "request {seed}");
        num_preemptions += end.num_preemptions;
    }
    for feed in traffic.feeds {
        feed.join().expect("no panic");
    }
    num_preemptions
}

#[test]
fn masked_and_other_requests_each_get_their_own_tokens() {
    both(|setup| {
        for pause in [Duration::ZERO, Duration::from_micros(300)] {
            let (engine, client) = setup.start();
            check(submit(&client, 40, pause));
            let deferrals = client.engine_status().unwrap().stats.num_deferrals;
            assert!(deferrals > 0, "some mask was late");
            assert_everything_came_back(&client);
            engine.stop().unwrap();
        }
    });
}

#[test]
fn preemption_loses_no_mask() {
    both(|setup| {
        let setup = Setup {
            num_blocks: 14,
            ..setup
        };
        let (engine, client) = setup.start();
        let num_preemptions = check(submit(&client, 24, Duration::from_micros(200)));
        assert!(num_preemptions > 0, "14 blocks do not hold eight sequences");
        assert_everything_came_back(&client);
        engine.stop().unwrap();
    });
}

#[test]
fn a_front_end_that_never_delivers_holds_up_nobody_and_its_request_times_out() {
    both(|setup| {
        let setup = Setup {
            mask_timeout: Duration::from_millis(200),
            ..setup
        };
        let (engine, client) = setup.start();
        let mut silent = client.submit(&masked(&[3; 20], 10)).unwrap();
        let mut other = client.submit(&Submission::new(&[4; 20], 100)).unwrap();
        assert_eq!(finish(&mut other).0, expected(&[4; 20], 100, false));
        let (tokens, end) = finish(&mut silent);
        assert!(tokens.is_empty());
        let late = RequestError::Engine(EngineError::MaskLate);
        assert_eq!(end.reason, FinishReason::Failed(late));
        drop((silent, other));
        assert_everything_came_back(&client);
        engine.stop().unwrap();
    });
}

#[test]
fn a_request_that_waits_for_its_mask_can_be_cancelled() {
    both(|setup| {
        let (engine, client) = setup.start();
        let mut waiting = client.submit(&masked(&[3; 20], 10)).unwrap();
        let mut feed = waiting.take_mask_feed().unwrap();
        assert_eq!(feed.deliver(None), Ok(true));
        let mut tokens = Vec::new();
        waiting
            .wait(&mut tokens, crate::TIMEOUT)
            .expect("one token");
        waiting.cancel().unwrap();
        let (rest, end) = finish(&mut waiting);
        assert_eq!(end.reason, FinishReason::Cancelled);
        assert_eq!((tokens.len(), rest.len()), (1, 0));
        drop((waiting, feed));
        assert_everything_came_back(&client);
        engine.stop().unwrap();
    });
}

#[test]
fn prompt_logprobs_are_complete_over_chunks_and_read_no_cache() {
    both(|setup| {
        let setup = Setup {
            max_num_batched_tokens: 24,
            ..setup
        };
        let (engine, client) = setup.start();
        let prompt: Vec<u32> = (10..110).collect();
        for round in 0..2 {
            let submission = Submission {
                prompt_logprobs: Some(0),
                ..Submission::new(&prompt, 3)
            };
            let mut handle = client.submit(&submission).unwrap();
            let mut plain = client.submit(&Submission::new(&prompt, 3)).unwrap();
            let (tokens, end) = finish(&mut handle);
            assert_eq!(tokens, expected(&prompt, 3, false));
            assert_eq!(end.num_cached_tokens, 0, "round {round}");
            let logprobs = handle.prompt_logprobs().expect("asked for");
            let scores: Vec<f32> = logprobs.iter().map(|entry| entry.sampled).collect();
            let want: Vec<f32> = (1..100).map(|p| prompt_score(&prompt, p)).collect();
            assert_eq!(scores, want);
            assert_eq!(finish(&mut plain).0, tokens);
        }
        engine.stop().unwrap();
    });
}
