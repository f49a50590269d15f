//! The few tokens of a row that still matter: gathered by a bound, cut by a threshold, never sorted
//! as a whole.

use super::mass;
use super::scan::{BLOCK, GROUPS, GroupMaxima};
use super::simd::{Level, Simd, kernel};

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

    #[inline(always)]
    pub fn lanes<S: Simd>(self, simd: S, logits: S::F) -> S::F {
        simd.mul(
            simd.sub(logits, simd.splat(self.shift)),
            simd.splat(self.scale),
        )
    }
}

/// Tokens and their values, in the order of the vocabulary.
#[derive(Debug)]
pub(super) struct Candidates {
    tokens: Vec<u32>,
    values: Vec<f32>,
    masses: Vec<u32>,
    len: usize,
}

impl Candidates {
    pub fn new(vocab_size: usize) -> Self {
        // Whole vectors are stored, whatever part of them counts.
        let room = vocab_size + LANE_NUMBERS.len();
        Self {
            tokens: vec![0; room],
            values: vec![0.0; room],
            masses: vec![0; vocab_size],
            len: 0,
        }
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens[..self.len]
    }

    pub fn values(&self) -> &[f32] {
        &self.values[..self.len]
    }

    /// Computes the masses of the values, which are scaled logits, and returns their sum.
    pub fn weigh(&mut self, level: Level) -> u64 {
        mass::weigh(
            level,
            &self.values[..self.len],
            &mut self.masses[..self.len],
        )
    }

    /// The masses that [`Candidates::weigh`] computed; nothing may have been dropped since.
    pub fn masses(&self) -> &[u32] {
        &self.masses[..self.len]
    }

    /// Replaces the list by every token whose value is at least `bound` (which is finite).
    pub fn gather(
        &mut self,
        level: Level,
        logits: &[f32],
        maxima: &[GroupMaxima],
        map: Affine,
        bound: f32,
    ) {
        self.len = gather(
            level,
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

/// What to add to the token of lane 0.
const LANE_NUMBERS: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

kernel! {
    fn gather(
        logits: &[f32],
        maxima: &[GroupMaxima],
        map: Affine,
        bound: f32,
        tokens: &mut [u32],
        values: &mut [f32],
    ) -> usize = gather_lanes
}

#[inline(always)]
fn gather_lanes<S: Simd>(
    simd: S,
    logits: &[f32],
    maxima: &[GroupMaxima],
    map: Affine,
    bound: f32,
    tokens: &mut [u32],
    values: &mut [f32],
) -> usize {
    let bounds = simd.splat(bound);
    let scaled = |numbers: &[f32]| map.lanes(simd, simd.load(numbers));
    let order = simd.load_u(&LANE_NUMBERS);
    let mut len = 0;
    for (idx, (block, groups)) in logits.chunks(BLOCK).zip(maxima).enumerate() {
        let is_below = |at| simd.ge(scaled(&groups[at..]), bounds) == 0;
        if (0..GROUPS).step_by(S::LANES).all(is_below) {
            continue;
        }
        let mut token = (idx * BLOCK) as u32;
        let vectors = block.chunks_exact(S::LANES);
        let rest = vectors.remainder();
        for numbers in vectors {
            let value = scaled(numbers);
            let bits = simd.ge(value, bounds);
            if bits != 0 {
                let lanes = simd.add_u(order, simd.splat_u(token));
                simd.store_u(simd.compress(bits, lanes), &mut tokens[len..]);
                let values_kept = simd.compress(bits, simd.as_bits(value));
                simd.store(simd.as_floats(values_kept), &mut values[len..]);
                len += bits.count_ones() as usize;
            }
            token += S::LANES as u32;
        }
        for (i, &x) in rest
            .iter()
            .enumerate()
            .filter(|&(_, &x)| map.value(x) >= bound)
        {
            tokens[len] = token + i as u32;
            values[len] = map.value(x);
            len += 1;
        }
    }
    len
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
            let map = Affine { shift: 1.5, scale: 0.7 };
            let all = logits.iter().enumerate().map(|(i, &x)| (i as u32, map.value(x)));
            let expected: Vec<_> = all.filter(|&(_, v)| v >= bound).collect();
            let retained: Vec<_> = expected.iter().copied().filter(|&(_, v)| v >= bound + 3.0).collect();
            let pairs = |c: &Candidates| -> Vec<(u32, f32)> {
                c.tokens().iter().copied().zip(c.values().iter().copied()).collect()
            };
            for level in Level::available() {
                let mut maxima = vec![[0.0; GROUPS]; logits.len().div_ceil(BLOCK)];
                scan(level, &logits, &mut maxima);
                let mut candidates = Candidates::new(logits.len());
                candidates.gather(level, &logits, &maxima, map, bound);
                prop_assert_eq!(pairs(&candidates), expected.clone());
                candidates.retain_at_least(bound + 3.0);
                prop_assert_eq!(pairs(&candidates), retained.clone());
            }
        }
    }
}
