//! Log-probabilities of prompts on the CUDA engine: complete over chunks, and those of the CPU's logits within bf16.

use izar_engine::CudaEngineOptions;
use izar_engine::driver::Placement;
use izar_transport::client::{FinishReason, Submission, TokenLogprobs};

use super::checkpoints::{all, write};
use super::engine::{finish, start};
use super::harness::{oracle, prompt};
use super::has_device;

/// Largest difference of a log-probability from the CPU's.
const TOLERANCE: f32 = 0.25;
/// Largest difference on average.
const MEAN_TOLERANCE: f32 = 0.04;
const NUM_TOP: usize = 5;

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let log_sum = sum.ln() as f32;
    logits.iter().map(|&x| x - max - log_sum).collect()
}

/// Compares what was found in the place of prompt token `position` with the CPU's `expected` (`[vocab]`); returns by how much
/// its log-probability is off.
fn check(found: &TokenLogprobs, token: u32, expected: &[f32], position: usize) -> f32 {
    let off = (found.sampled - expected[token as usize]).abs();
    assert!(
        off < TOLERANCE,
        "token {position}: {} instead of {}",
        found.sampled,
        expected[token as usize]
    );
    assert_eq!(found.top.len(), NUM_TOP, "token {position}");
    for (id, logprob) in &found.top {
        let wanted = expected[*id as usize];
        assert!(
            (logprob - wanted).abs() < TOLERANCE,
            "token {position}, {id}: {logprob} instead of {wanted}"
        );
    }
    assert!(found.top.is_sorted_by(|a, b| a.1 >= b.1), "{found:?}");
    // As many are at least so likely, give or take those about as likely.
    let at_least = |bar: f32| expected.iter().filter(|&&x| x >= bar).count() as u32;
    let own = expected[token as usize];
    let ranks = at_least(own + TOLERANCE)..=at_least(own - TOLERANCE);
    assert!(
        ranks.contains(&found.rank),
        "token {position}: rank {} not in {ranks:?}",
        found.rank
    );
    off
}

#[test]
fn prompts_are_scored_as_on_the_cpu_whatever_their_chunks() {
    if !has_device() {
        return;
    }
    let tiny = write(&all()[1].1);
    let vocab = tiny.checkpoint.config().vocab_size;
    let tokens = prompt(9, 203, vocab);
    let expected: Vec<Vec<f32>> = oracle(&tiny.checkpoint, &tokens)
        .iter()
        .map(|logits| log_softmax(logits))
        .collect();
    // Slices of 64 rows or fewer, chunks beyond 64 tokens by the library, rows of logits fewer than a chunk's.
    for (max_num_seqs, budget) in [(16, 24), (16, 64), (8, 300), (100, 150)] {
        for placement in [Placement::HostSync, Placement::HostAsync] {
            let running = start(
                &tiny.checkpoint,
                CudaEngineOptions {
                    placement,
                    max_num_seqs,
                    max_num_batched_tokens: budget,
                    ..CudaEngineOptions::default()
                },
            );
            let scored = Submission {
                prompt_logprobs: Some(NUM_TOP as u32),
                ignore_eos: true,
                ..Submission::new(&tokens, 6)
            };
            let plain = Submission {
                prompt_logprobs: None,
                ..scored
            };
            let short = Submission {
                prompt: &tokens[..1],
                ..scored
            };
            // The second round finds the prompt in the cache, and must not read it.
            for round in 0..2 {
                let mut handles =
                    [&scored, &plain, &scored, &short].map(|s| running.client.submit(s).unwrap());
                let outcomes: Vec<_> = handles.iter_mut().map(finish).collect();
                for (_, reason) in &outcomes {
                    assert_eq!(reason, &FinishReason::Length);
                }
                for which in [0, 2] {
                    let found = handles[which].prompt_logprobs().expect("asked for");
                    assert_eq!(found.len(), tokens.len() - 1);
                    let off = found.iter().zip(1..).map(|(found, position)| {
                        check(found, tokens[position], &expected[position - 1], position)
                    });
                    let off: Vec<f32> = off.collect();
                    let mean = off.iter().sum::<f32>() / off.len() as f32;
                    let largest = off.iter().copied().fold(0.0, f32::max);
                    eprintln!(
                        "{placement}, {max_num_seqs} and {budget}, round {round}: off by {mean:.4}, at most {largest:.4}"
                    );
                    assert!(mean < MEAN_TOLERANCE, "off by {mean}");
                }
                assert_eq!(handles[1].prompt_logprobs(), None);
                assert_eq!(handles[3].prompt_logprobs(), Some(vec![]));
                if budget <= 64 {
                    assert_eq!(outcomes[0].0, outcomes[1].0, "the same tokens either way");
                }
            }
            drop(running.client);
            running.engine.engine.stop().unwrap();
        }
    }
}
