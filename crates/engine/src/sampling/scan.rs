//! The first look at a row: its largest logit, the largest of each group, and whether any is not a number.

use super::lanes::{BLOCK, LANES, multiversion};

/// The largest logits of one block, one for each lane.
pub(super) type GroupMaxima = [f32; LANES];

/// What a scan finds out about a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scan {
    pub max: f32,
    pub has_nan: bool,
}

multiversion! {
    /// Fills `maxima` (one for each block of `logits`) and returns the largest of all, -∞ if there is none.
    pub(super) fn scan(logits: &[f32], maxima: &mut [GroupMaxima]) -> Scan = scan_body
}

#[inline(always)]
fn scan_body(logits: &[f32], maxima: &mut [GroupMaxima]) -> Scan {
    let mut row_max = [f32::NEG_INFINITY; LANES];
    let mut row_bits = [0i32; LANES];
    for (block, maxima) in logits.chunks(BLOCK).zip(maxima) {
        let (max, bits) = scan_block(block);
        for lane in 0..LANES {
            row_max[lane] = larger(max[lane], row_max[lane]);
            row_bits[lane] = row_bits[lane].max(bits[lane]);
        }
        *maxima = max;
    }
    Scan {
        max: row_max.into_iter().fold(f32::NEG_INFINITY, larger),
        has_nan: row_bits
            .into_iter()
            .any(|bits| bits > f32::INFINITY.to_bits() as i32),
    }
}

/// The larger of the two, `b` if `a` is not a number: one vector instruction, unlike `f32::max`.
#[inline(always)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Per lane: the largest number, and the largest magnitude as bits, which is above that of infinity only for NaN.
#[inline(always)]
fn scan_block(block: &[f32]) -> (GroupMaxima, [i32; LANES]) {
    // Four chains, because one would wait for the previous maximum at every step.
    const CHAINS: usize = 4;
    let mut max = [[f32::NEG_INFINITY; LANES]; CHAINS];
    let mut bits = [[0i32; LANES]; CHAINS];
    let (wide, rest) = block.as_chunks::<{ CHAINS * LANES }>();
    for numbers in wide {
        for chain in 0..CHAINS {
            for lane in 0..LANES {
                let x = numbers[chain * LANES + lane];
                max[chain][lane] = larger(x, max[chain][lane]);
                bits[chain][lane] = bits[chain][lane].max(magnitude(x));
            }
        }
    }
    for (i, &x) in rest.iter().enumerate() {
        let lane = i % LANES;
        max[0][lane] = larger(x, max[0][lane]);
        bits[0][lane] = bits[0][lane].max(magnitude(x));
    }
    for chain in 1..CHAINS {
        for lane in 0..LANES {
            max[0][lane] = larger(max[chain][lane], max[0][lane]);
            bits[0][lane] = bits[0][lane].max(bits[chain][lane]);
        }
    }
    (max[0], bits[0])
}

#[inline(always)]
fn magnitude(x: f32) -> i32 {
    (x.to_bits() & 0x7FFF_FFFF) as i32
}

/// The lowest token whose logit equals `max`, given the group maxima of the row.
pub(super) fn first_of(logits: &[f32], maxima: &[GroupMaxima], max: f32) -> u32 {
    let block = maxima.iter().position(|groups| groups.contains(&max));
    let block = block.expect("the maximum is that of some group");
    let start = block * BLOCK;
    let within = logits[start..].iter().position(|&x| x == max);
    (start + within.expect("the group maximum is some logit of the block")) as u32
}

multiversion! {
    /// How many logits are at least `bound`.
    pub(super) fn count_at_least(logits: &[f32], bound: f32) -> u32 = count_at_least_body
}

#[inline(always)]
fn count_at_least_body(logits: &[f32], bound: f32) -> u32 {
    let mut counts = [0u32; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            counts[lane] += u32::from(chunk[lane] >= bound);
        }
    }
    let rest = rest.iter().filter(|&&x| x >= bound).count() as u32;
    counts.into_iter().sum::<u32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn scan_equals_a_plain_loop(
            logits in prop::collection::vec(prop_oneof![9 => -50f32..50.0, 1 => Just(f32::NEG_INFINITY)], 1..4000),
        ) {
            let mut maxima = vec![[0.0; LANES]; logits.len().div_ceil(BLOCK)];
            let found = scan(&logits, &mut maxima);
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            prop_assert_eq!(found, Scan { max, has_nan: false });
            for (block, groups) in logits.chunks(BLOCK).zip(&maxima) {
                for (lane, &max) in groups.iter().enumerate() {
                    let group = block.iter().skip(lane).step_by(LANES).copied();
                    prop_assert_eq!(max, group.fold(f32::NEG_INFINITY, f32::max));
                }
            }
            let first = logits.iter().position(|&x| x == max).unwrap_or(0) as u32;
            prop_assert_eq!(first_of(&logits, &maxima, max), first);
            let bound = logits[0];
            let count = logits.iter().filter(|&&x| x >= bound).count() as u32;
            prop_assert_eq!(count_at_least(&logits, bound), count);
        }

        #[test]
        fn a_nan_anywhere_is_found(len in 1usize..3000, at in 0usize..3000, negative: bool) {
            let mut logits = vec![f32::INFINITY; len];
            logits[at % len] = if negative { -f32::NAN } else { f32::NAN };
            let mut maxima = vec![[0.0; LANES]; len.div_ceil(BLOCK)];
            prop_assert!(scan(&logits, &mut maxima).has_nan);
        }
    }
}
