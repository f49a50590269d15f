//! Sixteen lanes: AVX-512 with its byte, double-word and vector-length extensions.

use super::Simd;
use std::arch::x86_64::*;

/// Proof that the processor has what [`super::kernel!`] enables at this level.
#[derive(Clone, Copy, Debug)]
pub(in crate::sampling) struct Avx512(());

impl Avx512 {
    pub fn detect() -> Option<Self> {
        let has_all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
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

impl Simd for Avx512 {
    type F = __m512;
    type U = __m512i;
    const LANES: usize = 16;

    operations! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn splat_u(x: u32) -> __m512i = _mm512_set1_epi32(x as i32);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn ge(a: __m512, b: __m512) -> u32 = u32::from(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b));
        fn select(bits: u32, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(bits as u16, b, a);
        fn compress(bits: u32, x: __m512i) -> __m512i = _mm512_maskz_compress_epi32(bits as u16, x);
        fn as_bits(x: __m512) -> __m512i = _mm512_castps_si512(x);
        fn as_floats(x: __m512i) -> __m512 = _mm512_castsi512_ps(x);
        fn to_float(x: __m512i) -> __m512 = _mm512_cvtepi32_ps(x);
        fn to_int(x: __m512) -> __m512i = _mm512_cvttps_epi32(x);
        fn add_u(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn xor(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
        fn max_i(a: __m512i, b: __m512i) -> __m512i = _mm512_max_epi32(a, b);
        fn shl<const BITS: u32>(x: __m512i) -> __m512i = _mm512_slli_epi32::<BITS>(x);
        fn shr<const BITS: u32>(x: __m512i) -> __m512i = _mm512_srli_epi32::<BITS>(x);
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> __m512 {
        let from = &from[..Self::LANES];
        // SAFETY: `self` as above; reads the 64 bytes of the slice just taken, no alignment needed.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn load_u(self, from: &[u32]) -> __m512i {
        let from = &from[..Self::LANES];
        // SAFETY: `self` as above; reads the 64 bytes of the slice just taken, no alignment needed.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store(self, x: __m512, to: &mut [f32]) {
        let to = &mut to[..Self::LANES];
        // SAFETY: `self` as above; writes the 64 bytes of the slice just taken, no alignment
        // needed.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn store_u(self, x: __m512i, to: &mut [u32]) {
        let to = &mut to[..Self::LANES];
        // SAFETY: `self` as above; writes the 64 bytes of the slice just taken, no alignment
        // needed.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), x) }
    }
    #[inline(always)]
    fn widening_mul(self, a: __m512i, b: u32) -> (__m512i, __m512i) {
        // SAFETY: `self` as above; registers only.
        unsafe {
            let b = _mm512_set1_epi32(b as i32);
            // The multiplier takes the even lanes; the odd ones are copied down for a second
            // product.
            let odd_lanes = _mm512_castps_si512(_mm512_movehdup_ps(_mm512_castsi512_ps(a)));
            let even = _mm512_castsi512_ps(_mm512_mul_epu32(a, b));
            let odd = _mm512_castsi512_ps(_mm512_mul_epu32(odd_lanes, b));
            let low = _mm512_mask_moveldup_ps(even, 0xAAAA, odd);
            let high = _mm512_mask_movehdup_ps(odd, 0x5555, even);
            (_mm512_castps_si512(low), _mm512_castps_si512(high))
        }
    }
    #[inline(always)]
    fn transpose_quads(self, [a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
        // SAFETY: `self` as above; registers only.
        unsafe {
            let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab_low, cd_low),
                _mm512_unpackhi_epi64(ab_low, cd_low),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }
}
