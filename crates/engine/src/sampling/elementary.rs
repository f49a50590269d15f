//! `exp`, `ln` and the Gumbel transform, defined operation by operation.
//!
//! Every function here is a fixed sequence of IEEE 754 single-precision additions, multiplications
//! and divisions, each rounded to nearest, and of integer operations on the bits: no fused
//! multiply-add, no library call. So it gives the same bits on every CPU and, written with
//! `__fadd_rn`, `__fmul_rn` and `__fdiv_rn`, on a GPU.

use super::simd::{Array, Simd};

/// Adding this to a number below 2^22 in magnitude rounds it to an integer, which is then in the
/// low bits of the sum.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts, the first with so few bits that its product with a small integer is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// `e^z` underflows to a denormal below about -87.3; arguments are raised to this.
const MIN_EXPONENT: f32 = -87.0;

/// `e^z` for z ≤ 0, within 2 ulp; e^-87 (1.6e-38) for anything below -87, -∞ included, and for what
/// is not a number.
#[inline(always)]
pub fn exp_nonpositive(z: f32) -> f32 {
    exp_nonpositive_lanes(Array::<1>, [z])[0]
}

#[inline(always)]
pub(super) fn exp_nonpositive_lanes<S: Simd>(simd: S, z: S::F) -> S::F {
    let times_plus = |a, b, c| simd.add(simd.mul(a, b), simd.splat(c));
    let z = simd.max(z, simd.splat(MIN_EXPONENT));
    let rounded = times_plus(z, simd.splat(LOG2_E), ROUND);
    let n = simd.sub(rounded, simd.splat(ROUND));
    let r = simd.sub(z, simd.mul(n, simd.splat(LN2_HIGH)));
    let r = simd.sub(r, simd.mul(n, simd.splat(LN2_LOW)));
    // (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2, interpolated at Chebyshev nodes.
    let p = simd.splat(1.392_618_4e-3);
    let p = times_plus(p, r, 8.363_179e-3);
    let p = times_plus(p, r, 4.166_655_6e-2);
    let p = times_plus(p, r, 1.666_657_6e-1);
    let p = times_plus(p, r, 0.5);
    let mantissa = simd.add(simd.mul(p, simd.mul(r, r)), r);
    let mantissa = simd.add(mantissa, simd.splat(1.0));
    // The integer n is in the low bits of `rounded`.
    let n = simd.shl::<23>(simd.as_bits(rounded));
    let power = simd.add_u(n, simd.splat_u(1.0f32.to_bits()));
    simd.mul(mantissa, simd.as_floats(power))
}

/// `2 atanh(s)` for |s| ≤ 1/3.
#[inline(always)]
fn twice_atanh(s: f32) -> f32 {
    let t = s * s;
    // (atanh(s) / s - 1) / s^2 in t = s^2 on [0, 1/9], interpolated at Chebyshev nodes.
    let mut p = 1.161_246_1e-1;
    p = p * t + 1.085_323_1e-1;
    p = p * t + 1.429_618_3e-1;
    p = p * t + 1.999_985_3e-1;
    p = p * t + 3.333_333_4e-1;
    let s2 = s + s;
    s2 + s2 * (t * p)
}

/// `ln(x)` for positive normal x: absolute error below 1e-6 beside the rounding of the result.
#[inline(always)]
pub fn ln_positive(x: f32) -> f32 {
    // x = 2^n * m with m in [0.75, 1.5), so that ln near 1 keeps its relative accuracy.
    let above = x.to_bits().wrapping_sub(0.75f32.to_bits());
    let n = ((above as i32) >> 23) as f32;
    let m = f32::from_bits((above & 0x007F_FFFF).wrapping_add(0.75f32.to_bits()));
    let s = (m - 1.0) / (m + 1.0);
    n * LN2_LOW + twice_atanh(s) + n * LN2_HIGH
}

/// 2^-32 and 2^-33: a random word as a number in the middle of its interval of (0, 1).
const WORD: f32 = 1.0 / 4_294_967_296.0;
const HALF_WORD: f32 = 1.0 / 8_589_934_592.0;

/// A standard Gumbel variate, `-ln(-ln(1 - v))` with `v = (word + 1/2) / 2^32`.
///
/// Small words give large variates (at most 22.9), and single precision is finest near zero: the
/// tail that decides races among very unlikely tokens is exact to 2^-33.
#[inline(always)]
pub fn gumbel(word: u32) -> f32 {
    let exponential = if word < 1 << 31 {
        // -ln(1 - v) = 2 atanh(v / (2 - v)), accurate relative to v however small.
        let v = word as f32 * WORD + HALF_WORD;
        twice_atanh(v / (2.0 - v))
    } else {
        let rest = !word as f32 * WORD + HALF_WORD;
        -ln_positive(rest)
    };
    -ln_positive(exponential)
}

/// No Gumbel variate is larger.
pub const MAX_GUMBEL: f32 = 22.9;

/// At least `gumbel(word)`, by at most 1 where that is large, for a few integer operations.
///
/// `-ln(1 - v) ≥ v` gives `gumbel ≤ -ln v`, and the bits of a float read as an integer are a lower
/// bound of its base-2 logarithm: between powers of two it is the chord of a concave function.
#[inline(always)]
pub fn gumbel_upper_bound(word: u32) -> f32 {
    gumbel_upper_bound_lanes(Array::<1>, [word])[0]
}

#[inline(always)]
pub(super) fn gumbel_upper_bound_lanes<S: Simd>(simd: S, word: S::U) -> S::F {
    // Half the word, because vector units convert signed integers only; rounding down keeps it a
    // lower bound.
    let half = simd.to_float(simd.shr::<1>(word));
    // log2 = bits / 2^23 - 127 - 31. The slack covers the roundings of this function and of
    // `gumbel`.
    let bits = simd.to_float(simd.as_bits(half));
    let scaled = simd.mul(bits, simd.splat(-std::f32::consts::LN_2 / 8_388_608.0));
    simd.add(scaled, simd.splat(158.0 * std::f32::consts::LN_2 + 1e-4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> impl Iterator<Item = u32> {
        let edges = [
            0,
            1,
            2,
            3,
            (1 << 31) - 1,
            1 << 31,
            (1 << 31) + 1,
            u32::MAX - 1,
            u32::MAX,
        ];
        let spread = (0..200_000u32).map(|i| i.wrapping_mul(2_654_435_761));
        let small = (0..32).flat_map(|shift| (0..64).map(move |i| ((1u64 << shift) + i) as u32));
        edges.into_iter().chain(spread).chain(small)
    }

    fn exact_gumbel(word: u32) -> f64 {
        let v = (f64::from(word) + 0.5) / 4_294_967_296.0;
        -(-(-v).ln_1p()).ln()
    }

    #[test]
    fn exp_is_within_two_ulp() {
        for i in 0..=870_000 {
            let z = -(i as f32) * 1e-4;
            let exact = f64::from(z).exp();
            let error = (f64::from(exp_nonpositive(z)) / exact - 1.0).abs();
            assert!(error < 2.4e-7, "e^{z}: relative error {error:e}");
        }
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert!(exp_nonpositive(f32::NEG_INFINITY) < 2e-38);
    }

    #[test]
    fn ln_is_within_a_micro_unit() {
        for word in words().filter(|&w| w > 0) {
            for x in [word as f32, word as f32 * WORD, 1.0 + word as f32 * WORD] {
                let exact = f64::from(x).ln();
                let error = (f64::from(ln_positive(x)) - exact).abs();
                assert!(
                    error < 4e-7 + exact.abs() * 1.2e-7,
                    "ln {x}: error {error:e}"
                );
            }
        }
        assert_eq!(ln_positive(1.0), 0.0);
    }

    #[test]
    fn gumbel_follows_its_definition() {
        for word in words() {
            let exact = exact_gumbel(word);
            let got = f64::from(gumbel(word));
            assert!(
                (got - exact).abs() < 1e-6 + exact.abs() * 2.4e-7,
                "{word}: {got} for {exact}"
            );
            assert!(got <= f64::from(MAX_GUMBEL));
        }
    }

    #[test]
    fn upper_bound_holds_and_is_close_in_the_tail() {
        for word in words() {
            let bound = gumbel_upper_bound(word);
            assert!(bound >= gumbel(word), "{word}");
            if word > 64 && word < 1 << 30 {
                assert!(
                    bound - gumbel(word) < 0.3,
                    "{word}: {bound} for {}",
                    gumbel(word)
                );
            }
        }
    }
}
