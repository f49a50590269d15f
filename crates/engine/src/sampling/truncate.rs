//! min-p, top-k and top-p as one threshold on the scaled logits.
//!
//! Each of the three keeps the tokens above some value and drops those below, so all three together do, too. Tokens with equal
//! logits are kept or dropped together. Masses are sums of integers ([`mass`]), so that they do not depend on the order of
//! summation: every instruction set, thread count and device finds the same threshold.

use super::candidates::{Affine, Candidates, Selection};
use super::elementary::{exp_nonpositive, ln_positive};
use super::lanes::{LANES, multiversion};
use super::params::SamplingParams;
use super::scan::{GroupMaxima, larger};

/// The unnormalised probability e^z of a scaled logit z ≤ 0 in units of 2^-30, rounded.
///
/// The most likely token has 2^30; tokens below 2^-31 of it weigh nothing. A row of any vocabulary stays below 2^53.
#[inline(always)]
pub fn mass(z: f32) -> u64 {
    u64::from(mass32(z))
}

#[inline(always)]
fn mass32(z: f32) -> u32 {
    const ONE: f32 = 1_073_741_824.0; // 2^30
    let scaled = exp_nonpositive(z) * ONE + 0.5;
    // Does nothing for z ≤ 0; a NaN would become `ONE`, too.
    let scaled = if scaled < ONE { scaled } else { ONE };
    // SAFETY: just limited to at most 2^30; not below 0, as the exponential is not: inside the range of `i32`.
    unsafe { scaled.to_int_unchecked::<i32>() as u32 }
}

/// What remains to be sampled from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kept {
    /// Every token that is not masked.
    All,
    /// Those in the candidate list.
    Listed,
}

/// Applies min-p, top-k and top-p in this order. `map` gives scaled logits of at most 0, the largest being 0.
///
/// Top-p counts the mass of what the other two kept, renormalised, as vLLM does: a token stays if
/// the mass of the strictly more likely ones is below `top_p`.
pub(super) fn truncate(
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
        // 2^-149 is the smallest number there is, but `ln_positive` wants a normal one.
        bound = ln_positive(larger(params.min_p, f32::MIN_POSITIVE));
    }
    let top_k = params.top_k as usize;
    let has_top_k = top_k > 0 && top_k < logits.len();
    let has_top_p = params.top_p < 1.0;
    let top_p = f64::from(params.top_p);

    if has_top_k {
        let start = larger(bound, kth_group_value(maxima, map, top_k, selection));
        candidates.gather(logits, maxima, map, start);
        if candidates.values().len() > top_k {
            let kth = selection.threshold(candidates.values(), |_| 1, top_k as f64);
            candidates.retain_at_least(kth);
        }
    } else if params.min_p > 0.0 {
        candidates.gather(logits, maxima, map, bound);
    } else if has_top_p {
        let target = top_p * total_mass(logits, map) as f64;
        gather_mass(logits, maxima, map, target, candidates);
        let cut = selection.threshold(candidates.values(), mass, target);
        candidates.retain_at_least(cut);
        return Kept::Listed;
    } else {
        return Kept::All;
    }
    if has_top_p {
        let total: u64 = candidates.values().iter().map(|&z| mass(z)).sum();
        let cut = selection.threshold(candidates.values(), mass, top_p * total as f64);
        candidates.retain_at_least(cut);
    }
    Kept::Listed
}

/// A value that at least `k` tokens reach: the k-th largest of the group maxima, or the smallest value of all.
pub(super) fn kth_group_value(
    maxima: &[GroupMaxima],
    map: Affine,
    k: usize,
    selection: &mut Selection,
) -> f32 {
    let groups = maxima.as_flattened();
    if k > groups.len() / 2 {
        return f32::MIN;
    }
    let kth = selection.threshold(groups, |_| 1, k as f64);
    // Masked groups have no finite value.
    larger(map.value(kth), f32::MIN)
}

/// Gathers the most likely tokens until they weigh `target` or more; a superset of the smallest such set.
fn gather_mass(
    logits: &[f32],
    maxima: &[GroupMaxima],
    map: Affine,
    target: f64,
    candidates: &mut Candidates,
) {
    // Steps that widen, each with a few times the tokens; below -22 the mass of a token is 0.
    for bound in [-3.0, -6.0, -11.0, -23.0] {
        candidates.gather(logits, maxima, map, bound);
        let gathered: u64 = candidates.values().iter().map(|&z| mass(z)).sum();
        if gathered as f64 >= target {
            return;
        }
    }
}

multiversion! {
    /// The mass of the whole row.
    fn total_mass(logits: &[f32], map: Affine) -> u64 = total_mass_body
}

#[inline(always)]
fn total_mass_body(logits: &[f32], map: Affine) -> u64 {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut sums = [0u64; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] += u64::from(mass32(map.value(chunk[lane])));
        }
    }
    let rest: u64 = rest.iter().map(|&x| mass(map.value(x))).sum();
    sums.into_iter().sum::<u64>() + rest
}
