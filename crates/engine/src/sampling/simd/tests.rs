//! Every operation of every level against the same operation on single lanes.

use super::*;
use proptest::prelude::*;

/// What all operations make of the inputs, as bits.
#[inline(always)]
fn apply_all<S: Simd>(simd: S, a: &[u32], b: &[u32], bits: u64) -> Vec<Vec<u32>> {
    let mut out = Vec::new();
    for at in (0..a.len()).step_by(4 * S::LANES) {
        let lanes = |from: &[u32], i: usize| simd.load_u(&from[at + i * S::LANES..]);
        for i in 0..4 {
            let (ua, ub) = (lanes(a, i), lanes(b, i));
            let (fa, fb) = (simd.as_floats(ua), simd.as_floats(ub));
            // Numbers below 2^31, for the conversion.
            let small = simd.mul(simd.to_float(ua), simd.splat(0.999));
            let (low, high) = simd.widening_mul(ua, b[0]);
            let lane_bits = (bits >> (at + i * S::LANES)) as u32;
            let results = [
                simd.as_bits(simd.add(fa, fb)),
                simd.as_bits(simd.sub(fa, fb)),
                simd.as_bits(simd.mul(fa, fb)),
                simd.as_bits(simd.max(fa, fb)),
                simd.as_bits(simd.select(lane_bits, fa, fb)),
                simd.as_bits(simd.select(simd.ge(fa, fb), fa, fb)),
                simd.as_bits(simd.to_float(ua)),
                simd.to_int(small),
                simd.add_u(ua, ub),
                simd.and(ua, ub),
                simd.xor(ua, simd.splat_u(b[1])),
                simd.max_i(ua, ub),
                simd.shl::<7>(ua),
                simd.shr::<9>(ua),
                low,
                high,
            ];
            out.resize(results.len(), Vec::new());
            for (out, result) in out.iter_mut().zip(results) {
                let mut numbers = [0.0; 16];
                simd.store(simd.as_floats(result), &mut numbers);
                let mut words = [0; 16];
                simd.store_u(result, &mut words);
                assert_eq!(numbers.map(f32::to_bits), words);
                out.extend(&words[..S::LANES]);
            }
        }
    }
    // Which NaN comes out of an operation is the one thing that hardware may choose.
    for word in out.iter_mut().flatten() {
        if f32::from_bits(*word).is_nan() {
            *word = f32::NAN.to_bits();
        }
    }
    out
}

fn transposed<S: Simd>(simd: S) -> Vec<u32> {
    let numbers: Vec<u32> = (0..4 * S::LANES as u32).collect();
    let vectors = std::array::from_fn(|i| simd.load_u(&numbers[i * S::LANES..]));
    let mut out = vec![0; numbers.len()];
    for (i, vector) in simd.transpose_quads(vectors).into_iter().enumerate() {
        simd.store_u(vector, &mut out[i * S::LANES..]);
    }
    out
}

kernel! {
    fn all_at(a: &[u32], b: &[u32], bits: u64) -> Vec<Vec<u32>> = apply_all
}

kernel! {
    fn transposed_at() -> Vec<u32> = transposed
}

/// The lanes that compression keeps, of every vector of `numbers`.
fn compressed<S: Simd>(simd: S, numbers: &[u32], bits: u64) -> Vec<u32> {
    let mut out = Vec::new();
    for at in (0..numbers.len()).step_by(S::LANES) {
        let bits = (bits >> at) as u32 & ((1u32 << S::LANES) - 1);
        let mut front = [0; 16];
        simd.store_u(simd.compress(bits, simd.load_u(&numbers[at..])), &mut front);
        out.extend(&front[..bits.count_ones() as usize]);
    }
    out
}

kernel! {
    fn compressed_at(numbers: &[u32], bits: u64) -> Vec<u32> = compressed
}

proptest! {
    #[test]
    fn compression_keeps_the_lanes_asked_for(numbers: [u32; 64], bits: u64) {
        let kept = numbers.iter().enumerate().filter(|&(i, _)| bits >> i & 1 == 1);
        let kept: Vec<u32> = kept.map(|(_, &number)| number).collect();
        for level in Level::available() {
            prop_assert_eq!(&compressed_at(level, &numbers, bits), &kept, "{:?}", level);
        }
    }

    #[test]
    fn every_level_gives_the_bits_of_single_lanes(a: [u32; 64], b: [u32; 64], small: [f32; 64], bits: u64) {
        let small = small.map(f32::to_bits);
        let one = |b: &[u32]| apply_all(Array::<1>, &a, b, bits);
        for level in Level::available() {
            // Random bits make mostly huge or tiny numbers, so mix in others.
            prop_assert_eq!(all_at(level, &a, &b, bits), one(&b), "{:?}", level);
            prop_assert_eq!(all_at(level, &a, &small, bits), one(&small), "{:?}", level);
        }
    }
}

#[test]
fn quads_are_transposed_at_every_level() {
    for level in Level::available() {
        let out = transposed_at(level);
        let lanes = out.len() / 4;
        for (at, &word) in out.iter().enumerate() {
            let (vector, lane) = (at / lanes, at % lanes);
            let expected = lane % 4 * lanes + (lane - lane % 4 + vector);
            assert_eq!(word as usize, expected, "{level:?}");
        }
    }
}
