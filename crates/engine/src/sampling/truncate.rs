//! min-p, top-k and top-p as one threshold on the scaled logits.
//!
//! Each of the three keeps the tokens above some value and drops those below, so all three together
//! do, too. Tokens with equal logits are kept or dropped together. Masses are sums of integers
//! ([`mass::mass()`]), so that they do not depend on the order of summation: every instruction set,
//! thread count and device finds the same threshold.

use super::candidates::{Affine, Candidates};
use super::elementary::ln_positive;
use super::mass;
use super::params::SamplingParams;
use super::scan::{GroupMaxima, larger};
use super::selection::Selection;
use super::simd::Level;

/// What remains to be sampled from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kept {
    /// Every token that is not masked.
    All,
    /// Those in the candidate list.
    Listed,
}

/// Applies min-p, top-k and top-p in this order. `map` gives scaled logits of at most 0, the
/// largest being 0.
///
/// Top-p counts the mass of what the other two kept, renormalised, as vLLM does: a token stays if
/// the mass of the strictly more likely ones is below `top_p`.
pub(super) fn truncate(
    level: Level,
    logits: &[f32],
    maxima: &[GroupMaxima],
    map: Affine,
    params: &SamplingParams,
    candidates: &mut Candidates,
    selection: &mut Selection,
) -> Kept {
    // Below every finite value, above what is masked.
    let mut bound = f32::MIN;
    if params.min_p > 0.0 {
        // `ln_positive` wants a normal number.
        bound = ln_positive(larger(params.min_p, f32::MIN_POSITIVE));
    }
    let top_k = params.top_k as usize;
    let top_p = f64::from(params.top_p);
    let target;
    if top_k > 0 && top_k < logits.len() {
        // The larger one, and `bound` where the other is not a number (-∞ times 0).
        let start = larger(kth_group_value(maxima, map, top_k, selection), bound);
        candidates.gather(level, logits, maxima, map, start);
        if candidates.values().len() > top_k {
            let kth = selection.kth_largest(candidates.values(), top_k);
            candidates.retain_at_least(kth);
        }
        target = top_p * candidates.weigh(level) as f64;
    } else if params.min_p > 0.0 {
        candidates.gather(level, logits, maxima, map, bound);
        target = top_p * candidates.weigh(level) as f64;
    } else if params.top_p < 1.0 {
        target = top_p * mass::total_mass(level, logits, map) as f64;
        gather_mass(level, logits, maxima, map, target, candidates);
    } else {
        return Kept::All;
    }
    if params.top_p < 1.0 {
        let cut = selection.threshold(candidates.values(), candidates.masses(), target);
        candidates.retain_at_least(cut);
    }
    Kept::Listed
}

/// A value that at least `k` tokens reach: the k-th largest of the group maxima, or -∞ if that is
/// not worth finding.
pub(super) fn kth_group_value(
    maxima: &[GroupMaxima],
    map: Affine,
    k: usize,
    selection: &mut Selection,
) -> f32 {
    let groups = maxima.as_flattened();
    if k > groups.len() / 2 {
        return f32::NEG_INFINITY;
    }
    map.value(selection.kth_largest(groups, k))
}

/// Gathers and weighs the most likely tokens until they weigh `target` or more; a superset of the
/// smallest such set.
fn gather_mass(
    level: Level,
    logits: &[f32],
    maxima: &[GroupMaxima],
    map: Affine,
    target: f64,
    candidates: &mut Candidates,
) {
    // Steps that widen; below -22 the mass of a token is 0.
    for bound in [-4.0, -9.0, -23.0] {
        candidates.gather(level, logits, maxima, map, bound);
        if candidates.weigh(level) as f64 >= target {
            return;
        }
    }
}
