//! The first look at a row: its largest logit, the largest of each group, and whether any is not a
//! number.

use super::simd::{Simd, kernel};

/// Logits per block.
pub(super) const BLOCK: usize = 1024;

/// Groups per block: logits at equal positions modulo this.
pub(super) const GROUPS: usize = 16;

/// The largest logits of one block, one for each group.
pub(super) type GroupMaxima = [f32; GROUPS];

/// What a scan finds out about a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scan {
    pub max: f32,
    pub has_nan: bool,
}

kernel! {
    /// Fills `maxima` (one for each block of `logits`) and returns the largest of all, -∞ if there
    /// is none.
    pub(super) fn scan(logits: &[f32], maxima: &mut [GroupMaxima]) -> Scan = scan_lanes
}

/// Vectors handled together, each with its own running maximum: one alone would wait for itself at
/// every step.
const CHAINS: usize = 4;

/// At least the lanes of [`CHAINS`] vectors.
const MAX_STRIDE: usize = 64;

#[inline(always)]
fn scan_lanes<S: Simd>(simd: S, logits: &[f32], maxima: &mut [GroupMaxima]) -> Scan {
    let mut magnitude = [simd.splat_u(0); CHAINS];
    for (block, maxima) in logits.chunks(BLOCK).zip(maxima.iter_mut()) {
        let mut max = [simd.splat(f32::NEG_INFINITY); CHAINS];
        let strides = block.chunks_exact(CHAINS * S::LANES);
        let rest = strides.remainder();
        for stride in strides {
            scan_stride(simd, stride, &mut max, &mut magnitude);
        }
        if !rest.is_empty() {
            let mut stride = [f32::NEG_INFINITY; MAX_STRIDE];
            stride[..rest.len()].copy_from_slice(rest);
            scan_stride(simd, &stride, &mut max, &mut magnitude);
        }
        *maxima = fold_to_groups(simd, max);
    }
    let mut words = [0; MAX_STRIDE];
    for (chain, words) in magnitude.into_iter().zip(words.chunks_exact_mut(S::LANES)) {
        simd.store_u(chain, words);
    }
    Scan {
        max: max_of_groups(simd, maxima),
        has_nan: words.into_iter().any(|bits| bits > f32::INFINITY.to_bits()),
    }
}

/// Updates the running maxima, and those of the magnitudes as bits, which are above infinity's only
/// for NaN.
#[inline(always)]
fn scan_stride<S: Simd>(
    simd: S,
    stride: &[f32],
    max: &mut [S::F; CHAINS],
    magnitude: &mut [S::U; CHAINS],
) {
    let no_sign = simd.splat_u(0x7FFF_FFFF);
    for (chain, numbers) in stride.chunks_exact(S::LANES).take(CHAINS).enumerate() {
        let x = simd.load(numbers);
        max[chain] = simd.max(x, max[chain]);
        magnitude[chain] = simd.max_i(simd.and(simd.as_bits(x), no_sign), magnitude[chain]);
    }
}

#[inline(always)]
fn fold_to_groups<S: Simd>(simd: S, chains: [S::F; CHAINS]) -> GroupMaxima {
    let mut groups = [f32::NEG_INFINITY; GROUPS];
    for (chain, max) in chains.into_iter().enumerate() {
        let group = &mut groups[chain * S::LANES % GROUPS..];
        let both = simd.max(max, simd.load(group));
        simd.store(both, group);
    }
    groups
}

#[inline(always)]
fn max_of_groups<S: Simd>(simd: S, maxima: &[GroupMaxima]) -> f32 {
    let mut max = [f32::NEG_INFINITY; GROUPS];
    for groups in maxima {
        for at in (0..GROUPS).step_by(S::LANES) {
            let both = simd.max(simd.load(&groups[at..]), simd.load(&max[at..]));
            simd.store(both, &mut max[at..]);
        }
    }
    max.into_iter().fold(f32::NEG_INFINITY, larger)
}

/// The larger of the two, `b` if `a` is not a number: one instruction, unlike `f32::max`.
#[inline(always)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The lowest token whose logit equals `max`, given the group maxima of the row.
pub(super) fn first_of(logits: &[f32], maxima: &[GroupMaxima], max: f32) -> u32 {
    let block = maxima.iter().position(|groups| groups.contains(&max));
    let block = block.expect("the maximum is that of some group");
    let start = block * BLOCK;
    let within = logits[start..].iter().position(|&x| x == max);
    (start + within.expect("the group maximum is some logit of the block")) as u32
}

kernel! {
    /// How many logits are at least `bound`.
    pub(super) fn count_at_least(logits: &[f32], bound: f32) -> u32 = count_at_least_lanes
}

#[inline(always)]
fn count_at_least_lanes<S: Simd>(simd: S, logits: &[f32], bound: f32) -> u32 {
    let bounds = simd.splat(bound);
    let vectors = logits.chunks_exact(S::LANES);
    let rest = vectors.remainder().iter().filter(|&&x| x >= bound).count() as u32;
    let counts = vectors.map(|numbers| simd.ge(simd.load(numbers), bounds).count_ones());
    counts.sum::<u32>() + rest
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_level_equals_a_plain_loop(
            logits in prop::collection::vec(prop_oneof![9 => -50f32..50.0, 1 => Just(f32::NEG_INFINITY)], 1..4000),
        ) {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let first = logits.iter().position(|&x| x == max).unwrap_or(0) as u32;
            let bound = logits[0];
            let count = logits.iter().filter(|&&x| x >= bound).count() as u32;
            for level in Level::available() {
                let mut maxima = vec![[0.0; GROUPS]; logits.len().div_ceil(BLOCK)];
                let found = scan(level, &logits, &mut maxima);
                prop_assert_eq!(found, Scan { max, has_nan: false });
                for (block, groups) in logits.chunks(BLOCK).zip(&maxima) {
                    for (at, &max) in groups.iter().enumerate() {
                        let group = block.iter().skip(at).step_by(GROUPS).copied();
                        prop_assert_eq!(max, group.fold(f32::NEG_INFINITY, f32::max));
                    }
                }
                prop_assert_eq!(first_of(&logits, &maxima, max), first);
                prop_assert_eq!(count_at_least(level, &logits, bound), count);
            }
        }

        #[test]
        fn a_nan_anywhere_is_found(len in 1usize..3000, at in 0usize..3000, negative: bool) {
            let mut logits = vec![f32::INFINITY; len];
            logits[at % len] = if negative { -f32::NAN } else { f32::NAN };
            let mut maxima = vec![[0.0; GROUPS]; len.div_ceil(BLOCK)];
            for level in Level::available() {
                prop_assert!(scan(level, &logits, &mut maxima).has_nan);
            }
        }
    }
}
