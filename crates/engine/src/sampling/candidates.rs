//! The few tokens of a row that still matter: gathered by a bound, cut by a threshold, never sorted as a whole.

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
        Self {
            tokens: vec![0; vocab_size],
            values: vec![0.0; vocab_size],
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
    let reach = |numbers: &[f32]| simd.ge(map.lanes(simd, simd.load(numbers)), bounds);
    let mut len = 0;
    let mut push = |token: usize, value: f32| {
        tokens[len] = token as u32;
        values[len] = value;
        len += 1;
    };
    for (idx, (block, groups)) in logits.chunks(BLOCK).zip(maxima).enumerate() {
        if (0..GROUPS)
            .step_by(S::LANES)
            .all(|at| reach(&groups[at..]) == 0)
        {
            continue;
        }
        let mut token = idx * BLOCK;
        let vectors = block.chunks_exact(S::LANES);
        let rest = vectors.remainder();
        for numbers in vectors {
            let mut bits = reach(numbers);
            while bits != 0 {
                let lane = bits.trailing_zeros() as usize;
                push(token + lane, map.value(numbers[lane]));
                bits &= bits - 1;
            }
            token += S::LANES;
        }
        for (i, &x) in rest
            .iter()
            .enumerate()
            .filter(|&(_, &x)| map.value(x) >= bound)
        {
            push(token + i, map.value(x));
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
