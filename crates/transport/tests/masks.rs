//! Token masks and prompt log probabilities, from a client to a mock engine and back.

mod common;

use std::future::poll_fn;

use common::{block_on, collect, eager, eventually, ids, is_unused, small_ring, with_mock};
use izar_transport::client::{FeedProgress, FinishReason, MaskFeed, Submission};
use izar_transport::mock_engine::MockOptions;

/// The vocabulary that masked requests of these tests are written for: that of the default mock.
const VOCAB: u32 = 1 << 17;

fn masked(prompt: &[u32], max_tokens: u32) -> Submission<'_> {
    Submission {
        masked_vocab_size: VOCAB,
        ..Submission::new(prompt, max_tokens)
    }
}

fn only(token: u32) -> Vec<u32> {
    let mut mask = vec![0; VOCAB.div_ceil(32) as usize];
    mask[token as usize / 32] = 1 << (token % 32);
    mask
}

/// Answers every token of the request by `mask`, on a thread of its own, and returns the tokens that it saw.
fn feed(
    mut feed: MaskFeed,
    mut mask: impl FnMut(&[u32]) -> Option<Vec<u32>> + Send + 'static,
) -> std::thread::JoinHandle<Vec<u32>> {
    std::thread::spawn(move || {
        let mut tokens = Vec::new();
        loop {
            if !feed.deliver(mask(&tokens).as_deref()).expect("reachable") {
                return tokens;
            }
            let before = tokens.len();
            while tokens.len() == before {
                let progress = block_on(poll_fn(|cx| feed.poll_tokens(cx, &mut tokens)));
                if progress == FeedProgress::Over {
                    return tokens;
                }
            }
        }
    })
}

#[test]
fn a_masked_request_says_what_its_masks_allow() {
    with_mock(
        &small_ring(),
        eager(),
        MockOptions::default(),
        |client, _| {
            // The mock would count from 7; every third token is free.
            let mut handle = client.submit(&masked(&[7], 9)).expect("submit");
            let masks = handle.take_mask_feed().expect("masked");
            assert!(handle.take_mask_feed().is_none(), "one feed a request");
            let feeding = feed(masks, |tokens| match tokens.len() % 3 {
                2 => None,
                _ => Some(only(90_000 + tokens.len() as u32)),
            });
            let (tokens, finish) = collect(&mut handle);
            assert_eq!(finish.reason, FinishReason::Length);
            let expected = [90_000, 90_001, 9, 90_003, 90_004, 12, 90_006, 90_007, 15];
            assert_eq!(ids(&tokens), expected);
            let seen = feeding.join().expect("no panic");
            assert!(expected.starts_with(&seen));
            drop(handle);
            eventually("all space is back", || is_unused(&client));
        },
    );
}

#[test]
fn a_request_whose_masks_do_not_come_holds_up_nobody_and_can_be_cancelled() {
    with_mock(
        &small_ring(),
        eager(),
        MockOptions::default(),
        |client, engine| {
            let mut late = client.submit(&masked(&[7], 9)).expect("submit");
            let mut masks = late.take_mask_feed().expect("masked");
            let mut other = client.submit(&Submission::new(&[1], 50)).expect("submit");
            assert_eq!(collect(&mut other).0.len(), 50);
            assert_eq!((late.num_taken(), engine.stats().num_running), (0, 1));
            late.cancel().expect("reachable");
            assert_eq!(collect(&mut late).1.reason, FinishReason::Cancelled);
            eventually("the slot is back", || client.stats().slots_in_use == 0);
            assert_eq!(
                masks.deliver(None),
                Ok(false),
                "nothing is written to a slot that was given back"
            );
            drop((late, other, masks));
            eventually("all space is back", || is_unused(&client));
        },
    );
}

#[test]
fn prompt_logprobs_come_with_the_first_token() {
    with_mock(
        &small_ring(),
        eager(),
        MockOptions::default(),
        |client, _| {
            let submission = Submission {
                prompt_logprobs: Some(2),
                logprobs: Some(1),
                ..Submission::new(&[5, 6, 7], 3)
            };
            let mut handle = client.submit(&submission).expect("submit");
            let (tokens, _) = collect(&mut handle);
            let prompt = handle.prompt_logprobs().expect("asked for");
            let tops: Vec<u32> = prompt.iter().map(|entry| entry.top[0].0).collect();
            assert_eq!(tops, [6, 7]);
            assert!(prompt.iter().all(|entry| entry.top.len() == 2));
            assert!(
                tokens
                    .iter()
                    .all(|t| t.logprobs.as_ref().is_some_and(|l| l.top.len() == 1))
            );
            let mut plain = client.submit(&Submission::new(&[5], 3)).expect("submit");
            collect(&mut plain);
            assert!(plain.prompt_logprobs().is_none());
            let one = Submission {
                prompt_logprobs: Some(0),
                ..Submission::new(&[5], 1)
            };
            let mut one = client.submit(&one).expect("submit");
            collect(&mut one);
            assert_eq!(one.prompt_logprobs(), Some(Vec::new()));
        },
    );
}
