//! The sampler from outside: against a naive reference, against exact probabilities, and by its
//! promises.

mod distribution;
mod logprobs;
mod margin;
mod promises;
mod reference;
mod semantics;

use izar_engine::sampling::{LogitBias, RowLimits, RowState, SamplingParams, TokenLists};

/// A row for small vocabularies, with room for long histories.
fn row(vocab_size: usize) -> RowState {
    RowState::new(RowLimits {
        vocab_size,
        max_model_len: 1 << 20,
        max_logprobs: 32,
    })
}

/// A row bound to a sequence that has only just begun.
fn fresh(vocab_size: usize, params: &SamplingParams) -> RowState {
    bound(vocab_size, params, &TokenLists::default(), &[], &[])
}

fn bound(
    vocab_size: usize,
    params: &SamplingParams,
    lists: &TokenLists<'_>,
    prompt: &[u32],
    generated: &[u32],
) -> RowState {
    let mut row = row(vocab_size);
    let outcome = row.bind(params, lists, prompt, generated.iter().copied());
    outcome.expect("valid parameters");
    row
}

fn bias(pairs: &[(u32, f32)]) -> Vec<LogitBias> {
    let pairs = pairs.iter();
    pairs
        .map(|&(token, bias)| LogitBias { token, bias })
        .collect()
}

/// Bell-shaped logits that depend on `seed` only.
fn bell(vocab_size: usize, deviation: f32, seed: u64) -> Vec<f32> {
    use izar_engine::sampling::philox::{key, philox4x32_10};
    let uniform = |word: u32| word as f32 / 4_294_967_296.0 - 0.5;
    (0..vocab_size as u32)
        .map(|i| {
            let words = philox4x32_10([i, 0, 0, 99], key(seed));
            // The sum of four uniforms has a deviation of sqrt(1/3).
            words.iter().map(|&word| uniform(word)).sum::<f32>() * 1.732 * deviation
        })
        .collect()
}
