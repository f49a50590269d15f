//! The few tokens of a row that still matter: gathered by a bound, cut by exact selection, never sorted as a whole.

use super::lanes::{BLOCK, LANES, multiversion};
use super::scan::{GroupMaxima, larger};

/// How logits become values: `(logit - shift) * scale`, rising with the logit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine {
    pub shift: f32,
    pub scale: f32,
}

impl Affine {
    /// Values are the logits themselves.
    pub const IDENTITY: Self = Self {
        shift: 0.0,
        scale: 1.0,
    };

    #[inline(always)]
    pub fn value(self, logit: f32) -> f32 {
        (logit - self.shift) * self.scale
    }
}

/// Tokens and their values, in the order of the vocabulary.
#[derive(Debug)]
pub(super) struct Candidates {
    tokens: Vec<u32>,
    values: Vec<f32>,
    len: usize,
}

impl Candidates {
    pub fn new(vocab_size: usize) -> Self {
        // A chunk is written as a whole before the length moves on.
        let room = vocab_size + LANES;
        Self {
            tokens: vec![0; room],
            values: vec![0.0; room],
            len: 0,
        }
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens[..self.len]
    }

    pub fn values(&self) -> &[f32] {
        &self.values[..self.len]
    }

    /// Replaces the list by every token whose value is at least `bound` (which is finite).
    pub fn gather(&mut self, logits: &[f32], maxima: &[GroupMaxima], map: Affine, bound: f32) {
        self.len = gather(
            logits,
            maxima,
            map,
            bound,
            &mut self.tokens,
            &mut self.values,
        );
    }

    /// Drops every token whose value is below `bound`.
    pub fn retain_at_least(&mut self, bound: f32) {
        let mut kept = 0;
        for i in 0..self.len {
            self.tokens[kept] = self.tokens[i];
            self.values[kept] = self.values[i];
            kept += usize::from(self.values[i] >= bound);
        }
        self.len = kept;
    }
}

multiversion! {
    fn gather(
        logits: &[f32],
        maxima: &[GroupMaxima],
        map: Affine,
        bound: f32,
        tokens: &mut [u32],
        values: &mut [f32],
    ) -> usize = gather_body
}

#[inline(always)]
fn gather_body(
    logits: &[f32],
    maxima: &[GroupMaxima],
    map: Affine,
    bound: f32,
    tokens: &mut [u32],
    values: &mut [f32],
) -> usize {
    let mut len = 0;
    let mut push = |token: u32, value: f32| {
        tokens[len] = token;
        values[len] = value;
        len += usize::from(value >= bound);
    };
    for (idx, (block, groups)) in logits.chunks(BLOCK).zip(maxima).enumerate() {
        if map.value(groups.iter().copied().fold(f32::NEG_INFINITY, larger)) >= bound {
            gather_block(block, (idx * BLOCK) as u32, map, bound, &mut push);
        }
    }
    len
}

#[inline(always)]
fn gather_block(
    block: &[f32],
    first: u32,
    map: Affine,
    bound: f32,
    push: &mut impl FnMut(u32, f32),
) {
    let (chunks, rest) = block.as_chunks::<LANES>();
    let mut token = first;
    for chunk in chunks {
        let values = chunk.map(|x| map.value(x));
        if values.iter().any(|&value| value >= bound) {
            for (lane, &value) in values.iter().enumerate() {
                push(token + lane as u32, value);
            }
        }
        token += LANES as u32;
    }
    for (lane, &x) in rest.iter().enumerate() {
        push(token + lane as u32, map.value(x));
    }
}

/// Bits of a value looked at in each round of selection.
const DIGIT_BITS: u32 = 11;
const ROUNDS: u32 = 3;

/// Finds the value at which a cumulative weight, counted from the largest value down, reaches a target.
///
/// A radix selection over the bits of the values: exact, and linear however the values are spread.
#[derive(Debug)]
pub(super) struct Selection {
    histogram: Box<[u64; 1 << DIGIT_BITS]>,
}

impl Selection {
    pub fn new() -> Self {
        Self {
            histogram: Box::new([0; 1 << DIGIT_BITS]),
        }
    }

    /// The largest value v such that values at least v weigh `target` or more together; the smallest value if
    /// all weigh less. Weights are below 2^53 in total, so that the comparison with `target` is exact.
    pub fn threshold(&mut self, values: &[f32], weight: impl Fn(f32) -> u64, target: f64) -> f32 {
        let mut prefix = 0u32;
        let mut above = 0u64;
        for round in 0..ROUNDS {
            // 11 + 11 + 10 bits.
            let shift = 32u32.saturating_sub((round + 1) * DIGIT_BITS);
            let known = 32 - (round * DIGIT_BITS);
            self.histogram.fill(0);
            for &value in values {
                let key = falling_key(value);
                if u64::from(key) >> known == u64::from(prefix) >> known {
                    let digit = (key >> shift) as usize & ((1 << (known - shift)) - 1);
                    self.histogram[digit] += weight(value);
                }
            }
            let digit = self.reach(&mut above, target);
            prefix |= digit << shift;
        }
        value_of_falling_key(prefix)
    }

    /// The first digit at which the weight reaches the target (or the last that has any), and the weight before it.
    fn reach(&self, above: &mut u64, target: f64) -> u32 {
        let mut last = (0, *above);
        for (digit, &weight) in self.histogram.iter().enumerate() {
            if weight > 0 {
                last = (digit as u32, *above);
                if (*above + weight) as f64 >= target {
                    break;
                }
                *above += weight;
            }
        }
        *above = last.1;
        last.0
    }
}

/// A key that falls as the value rises; both zeros have the same.
#[inline(always)]
fn falling_key(value: f32) -> u32 {
    // Adding zero turns the negative zero into the positive one.
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 1 {
        bits
    } else {
        0x7FFF_FFFF - bits
    }
}

#[inline(always)]
fn value_of_falling_key(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 {
        key
    } else {
        0x7FFF_FFFF - key
    })
}

#[cfg(test)]
mod tests {
    use super::super::scan::scan;
    use super::*;
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            4 => -20f32..20.0,
            1 => (-3i32..3).prop_map(|i| i as f32),
            1 => Just(-0.0f32),
            1 => -1e-3f32..1e-3,
        ];
        prop::collection::vec(value, 1..3000)
    }

    proptest! {
        #[test]
        fn gathered_are_exactly_those_above_the_bound(logits in values(), bound in -20f32..20.0) {
            let mut maxima = vec![[0.0; LANES]; logits.len().div_ceil(BLOCK)];
            scan(&logits, &mut maxima);
            let map = Affine { shift: 1.5, scale: 0.7 };
            let mut candidates = Candidates::new(logits.len());
            candidates.gather(&logits, &maxima, map, bound);
            let all = logits.iter().enumerate().map(|(i, &x)| (i as u32, map.value(x)));
            let expected: Vec<_> = all.filter(|&(_, v)| v >= bound).collect();
            let pairs = |c: &Candidates| -> Vec<(u32, f32)> {
                c.tokens().iter().copied().zip(c.values().iter().copied()).collect()
            };
            prop_assert_eq!(pairs(&candidates), expected.clone());
            candidates.retain_at_least(bound + 3.0);
            let expected: Vec<_> = expected.into_iter().filter(|&(_, v)| v >= bound + 3.0).collect();
            prop_assert_eq!(pairs(&candidates), expected);
        }

        #[test]
        fn threshold_equals_a_sorted_walk(values in values(), fraction in 0f64..1.2) {
            let weight = |v: f32| (v.abs() * 1000.0) as u64 % 97 + 1;
            let total: u64 = values.iter().map(|&v| weight(v)).sum();
            let target = fraction * total as f64;
            let mut sorted = values.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let mut sum = 0;
            let expected = sorted.iter().copied().find(|&v| {
                sum += weight(v);
                sum as f64 >= target
            });
            let got = Selection::new().threshold(&values, weight, target);
            prop_assert_eq!(got, expected.unwrap_or(sorted[sorted.len() - 1]));
        }

        #[test]
        fn keys_order_values_downwards(a: f32, b: f32) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            prop_assert_eq!(falling_key(a).cmp(&falling_key(b)), b.partial_cmp(&a).unwrap());
            prop_assert_eq!(value_of_falling_key(falling_key(a)), a);
        }
    }
}
