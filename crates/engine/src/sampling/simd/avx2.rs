//! Eight lanes: AVX2.

use super::{Array, Simd};
use std::arch::x86_64::*;

/// Proof that the processor has what [`super::kernel!`] enables at this level.
#[derive(Clone, Copy, Debug)]
pub(in crate::sampling) struct Avx2(());

impl Avx2 {
    pub fn detect() -> Option<Self> {
        let has_all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt");
        has_all.then_some(Self(()))
    }
}

/// Methods that are one expression of intrinsics each.
macro_rules! operations {
    ($(fn $name:ident $(<const $bits:ident: u32>)? ($($arg:ident: $ty:ty),*) -> $ret:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name $(<const $bits: u32>)? (self, $($arg: $ty),*) -> $ret {
            // SAFETY: `self` exists, so the processor has these instructions; they touch registers
            // only.
            unsafe { $body }
        }
    )*};
}

impl Simd for Avx2 {
    type F = __m256;
    type U = __m256i;
    const LANES: usize = 8;

    operations! {
        fn splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        fn splat_u(x: u32) -> __m256i = _mm256_set1_epi32(x as i32);
        fn add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn ge(a: __m256, b: __m256) -> u32 = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a, b)) as u32;
        fn as_bits(x: __m256) -> __m256i = _mm256_castps_si256(x);
        fn as_floats(x: __m256i) -> __m256 = _mm256_castsi256_ps(x);
        fn to_float(x: __m256i) -> __m256 = _mm256_cvtepi32_ps(x);
        fn to_int(x: __m256) -> __m256i = _mm256_cvttps_epi32(x);
        fn add_u(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        fn and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        fn xor(a: __m256i, b: __m256i) -> __m256i = _mm256_xor_si256(a, b);
        fn max_i(a: __m256i, b: __m256i) -> __m256i = _mm256_max_epi32(a, b);
        fn shl<const BITS: u32>(x: __m256i) -> __m256i = _mm256_sll_epi32(x, _mm_cvtsi32_si128(BITS as i32));
        fn shr<const BITS: u32>(x: __m256i) -> __m256i = _mm256_srl_epi32(x, _mm_cvtsi32_si128(BITS as i32));
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> __m256 {
        let from = &from[..Self::LANES];
        // SAFETY: `self` as above; reads the 32 bytes of the slice just taken, no alignment needed.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn load_u(self, from: &[u32]) -> __m256i {
        let from = &from[..Self::LANES];
        // SAFETY: `self` as above; reads the 32 bytes of the slice just taken, no alignment needed.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store(self, x: __m256, to: &mut [f32]) {
        let to = &mut to[..Self::LANES];
        // SAFETY: `self` as above; writes the 32 bytes of the slice just taken, no alignment
        // needed.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn store_u(self, x: __m256i, to: &mut [u32]) {
        let to = &mut to[..Self::LANES];
        // SAFETY: `self` as above; writes the 32 bytes of the slice just taken, no alignment
        // needed.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), x) }
    }
    #[inline(always)]
    fn select(self, bits: u32, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` as above; registers only.
        unsafe {
            // Each lane shifts its bit up to the sign, which the blend looks at.
            let shifts = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
            let signs = _mm256_sllv_epi32(_mm256_set1_epi32(bits as i32), shifts);
            _mm256_blendv_ps(b, a, _mm256_castsi256_ps(signs))
        }
    }
    #[inline(always)]
    fn widening_mul(self, a: __m256i, b: u32) -> (__m256i, __m256i) {
        // SAFETY: `self` as above; registers only.
        unsafe {
            let b = _mm256_set1_epi32(b as i32);
            // The multiplier takes the even lanes; the odd ones are copied down for a second
            // product.
            let odd_lanes = _mm256_castps_si256(_mm256_movehdup_ps(_mm256_castsi256_ps(a)));
            let even = _mm256_castsi256_ps(_mm256_mul_epu32(a, b));
            let odd = _mm256_castsi256_ps(_mm256_mul_epu32(odd_lanes, b));
            let low = _mm256_blend_ps::<0xAA>(even, _mm256_moveldup_ps(odd));
            let high = _mm256_blend_ps::<0xAA>(_mm256_movehdup_ps(even), odd);
            (_mm256_castps_si256(low), _mm256_castps_si256(high))
        }
    }
    #[inline(always)]
    fn compress(self, bits: u32, x: __m256i) -> __m256i {
        let mut lanes = [0; Self::LANES];
        self.store_u(x, &mut lanes);
        self.load_u(&Array::<{ Self::LANES }>.compress(bits, lanes))
    }
    #[inline(always)]
    fn transpose_quads(self, [a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
        // SAFETY: `self` as above; registers only.
        unsafe {
            let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(ab_low, cd_low),
                _mm256_unpackhi_epi64(ab_low, cd_low),
                _mm256_unpacklo_epi64(ab_high, cd_high),
                _mm256_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }
}
