//! Everything that changes logits before the temperature: bias, masks, penalties, in this order.
//!
//! The order is vLLM's where it matters: a bias is added before the repetition penalty looks at the
//! sign, and the multiplicative penalty comes before the additive ones. Masked tokens get -∞, which
//! no later edit undoes.

use super::row::RowState;
use super::simd::{Level, Simd, kernel};

/// Whether `row` masks any token at its present position.
pub(super) fn has_masks(row: &RowState, grammar: Option<&[u32]>) -> bool {
    grammar.is_some() || row.has_allowed_ids || masks_stop_ids(row) || !row.bad_words.is_empty()
}

/// Whether `row` changes any logit at its present position.
pub(super) fn has_edits(row: &RowState, grammar: Option<&[u32]>) -> bool {
    has_masks(row, grammar) || !row.logit_bias.is_empty() || !row.counts.seen().is_empty()
}

fn masks_stop_ids(row: &RowState) -> bool {
    row.num_generated < row.params.min_tokens && !row.stop_ids.is_empty()
}

/// Applies all of `row`'s edits to `logits` (`[vocab_size]`). `grammar`: bit `id % 32` of word `id /
/// 32` is set if allowed.
pub(super) fn apply(level: Level, logits: &mut [f32], row: &RowState, grammar: Option<&[u32]>) {
    for pair in &row.logit_bias {
        logits[pair.token as usize] += pair.bias;
    }
    if row.has_allowed_ids {
        mask(level, logits, &row.allowed_ids);
    }
    if let Some(grammar) = grammar {
        mask(level, logits, grammar);
    }
    if masks_stop_ids(row) {
        for &token in &row.stop_ids {
            logits[token as usize] = f32::NEG_INFINITY;
        }
    }
    mask_bad_words(logits, row);
    penalise(logits, row);
}

/// Masks the last token of every bad word whose other tokens were just generated.
fn mask_bad_words(logits: &mut [f32], row: &RowState) {
    for word in super::params::BadWords(&row.bad_words).iter().flatten() {
        let Some((&last, prefix)) = word.split_last() else {
            continue;
        };
        if row.tail.ends_with(prefix) {
            logits[last as usize] = f32::NEG_INFINITY;
        }
    }
}

fn penalise(logits: &mut [f32], row: &RowState) {
    let params = &row.params;
    let repetition = params.repetition_penalty;
    for seen in row.counts.seen() {
        let mut x = logits[seen.token as usize];
        if repetition != 1.0 {
            x = if x > 0.0 {
                x / repetition
            } else {
                x * repetition
            };
        }
        if seen.num_generated > 0 {
            x -= params.frequency_penalty * seen.num_generated as f32;
            x -= params.presence_penalty;
        }
        logits[seen.token as usize] = x;
    }
}

/// Gives +∞ its meaning, a token that is certain: the infinite logits become 0 and all others -∞.
pub(super) fn level_infinite(logits: &mut [f32]) {
    for x in logits {
        *x = if *x == f32::INFINITY {
            0.0
        } else {
            f32::NEG_INFINITY
        };
    }
}

kernel! {
    /// Sets the logits whose bit in `allowed` is clear to -∞. Tokens beyond the mask are not
    /// allowed.
    fn mask(logits: &mut [f32], allowed: &[u32]) = mask_lanes
}

#[inline(always)]
fn mask_lanes<S: Simd>(simd: S, logits: &mut [f32], allowed: &[u32]) {
    let masked = simd.splat(f32::NEG_INFINITY);
    let bits = allowed.iter().copied().chain(std::iter::repeat(0));
    for (numbers, bits) in logits.chunks_mut(32).zip(bits) {
        if numbers.len() < 32 {
            for (bit, x) in numbers.iter_mut().enumerate() {
                *x = if bits >> bit & 1 != 0 {
                    *x
                } else {
                    f32::NEG_INFINITY
                };
            }
        } else if bits != u32::MAX {
            for at in (0..32).step_by(S::LANES) {
                let numbers = &mut numbers[at..];
                simd.store(simd.select(bits >> at, simd.load(numbers), masked), numbers);
            }
        }
    }
}
