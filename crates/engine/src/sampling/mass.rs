//! Probability mass as integers, so that its sums are the same in any order.

use super::candidates::Affine;
use super::elementary::exp_nonpositive_lanes;
use super::scan::BLOCK;
use super::simd::{Array, Simd, kernel};

/// The unnormalised probability e^z of a scaled logit z ≤ 0 in units of 2^-30, rounded.
///
/// The most likely token has 2^30; tokens below 2^-31 of it weigh nothing. A row of any vocabulary
/// stays below 2^53.
#[inline(always)]
pub fn mass(z: f32) -> u64 {
    u64::from(mass_lanes(Array::<1>, [z])[0])
}

#[inline(always)]
fn mass_lanes<S: Simd>(simd: S, z: S::F) -> S::U {
    const ONE: f32 = 1_073_741_824.0; // 2^30
    let scaled = simd.mul(exp_nonpositive_lanes(simd, z), simd.splat(ONE));
    simd.to_int(simd.add(scaled, simd.splat(0.5)))
}

kernel! {
    /// The mass of the whole row, whose scaled logits are `map` of the logits.
    pub(super) fn total_mass(logits: &[f32], map: Affine) -> u64 = total_mass_lanes
}

#[inline(always)]
fn total_mass_lanes<S: Simd>(simd: S, logits: &[f32], map: Affine) -> u64 {
    let mut total = 0;
    for block in logits.chunks(BLOCK) {
        let mut sum = LaneSums::new(simd);
        let vectors = block.chunks_exact(S::LANES);
        for &x in vectors.remainder() {
            total += mass(map.value(x));
        }
        for numbers in vectors {
            sum.add(simd, mass_lanes(simd, map.lanes(simd, simd.load(numbers))));
        }
        total += sum.total(simd);
    }
    total
}

kernel! {
    /// Fills `masses` with those of the scaled logits `values` and returns their sum. Both are of
    /// the same length.
    pub(super) fn weigh(values: &[f32], masses: &mut [u32]) -> u64 = weigh_lanes
}

#[inline(always)]
fn weigh_lanes<S: Simd>(simd: S, values: &[f32], masses: &mut [u32]) -> u64 {
    let mut total = 0;
    for (values, masses) in values.chunks(BLOCK).zip(masses.chunks_mut(BLOCK)) {
        let mut sum = LaneSums::new(simd);
        let vectors = values.chunks_exact(S::LANES);
        let rest = vectors.remainder();
        let mut slots = masses.chunks_exact_mut(S::LANES);
        for (numbers, slots) in vectors.zip(&mut slots) {
            let mass = mass_lanes(simd, simd.load(numbers));
            simd.store_u(mass, slots);
            sum.add(simd, mass);
        }
        for (&z, slot) in rest.iter().zip(slots.into_remainder()) {
            *slot = mass(z) as u32;
            total += mass(z);
        }
        total += sum.total(simd);
    }
    total
}

/// Sums of masses, one for each lane, in halves of 16 bits: up to [`BLOCK`] masses of up to 2^30
/// fit.
struct LaneSums<S: Simd> {
    low: S::U,
    high: S::U,
}

impl<S: Simd> LaneSums<S> {
    #[inline(always)]
    fn new(simd: S) -> Self {
        Self {
            low: simd.splat_u(0),
            high: simd.splat_u(0),
        }
    }

    #[inline(always)]
    fn add(&mut self, simd: S, mass: S::U) {
        self.low = simd.add_u(self.low, simd.and(mass, simd.splat_u(0xFFFF)));
        self.high = simd.add_u(self.high, simd.shr::<16>(mass));
    }

    #[inline(always)]
    fn total(self, simd: S) -> u64 {
        let mut lanes = [[0; 16]; 2];
        simd.store_u(self.low, &mut lanes[0]);
        simd.store_u(self.high, &mut lanes[1]);
        let [low, high] = lanes.map(|lanes| lanes.iter().map(|&lane| u64::from(lane)).sum::<u64>());
        low + (high << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mass_is_the_rounded_exponential() {
        for i in 0..300_000 {
            let z = -(i as f32) * 1e-4;
            let exact = f64::from(z).exp() * 2f64.powi(30);
            assert!((mass(z) as f64 - exact).abs() <= 0.51 + exact * 3e-7, "{z}");
        }
        assert_eq!(mass(0.0), 1 << 30);
        assert_eq!(mass(f32::NEG_INFINITY), 0);
    }

    proptest! {
        #[test]
        fn every_level_sums_the_same(logits in prop::collection::vec(-30f32..0.0, 1..3000), scale in 0.1f32..3.0) {
            let map = Affine { shift: 0.0, scale };
            let values: Vec<f32> = logits.iter().map(|&x| map.value(x)).collect();
            let expected: Vec<u32> = values.iter().map(|&z| mass(z) as u32).collect();
            let total: u64 = expected.iter().map(|&m| u64::from(m)).sum();
            for level in Level::available() {
                let mut masses = vec![0; values.len()];
                prop_assert_eq!(weigh(level, &values, &mut masses), total);
                prop_assert_eq!(&masses, &expected);
                prop_assert_eq!(total_mass(level, &logits, map), total);
            }
        }

        #[test]
        fn a_block_of_certainties_does_not_overflow(len in 1usize..5000) {
            for level in Level::available() {
                let map = Affine { shift: 0.0, scale: 1.0 };
                prop_assert_eq!(total_mass(level, &vec![0.0; len], map), (len as u64) << 30);
            }
        }
    }
}
