//! AVX-512 with VNNI: one register per logical vector.

use std::arch::x86_64::*;

use super::Simd;

/// AVX-512 F, BW, DQ, VL, VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY (all methods): the caller runs with the features enabled and follows the trait's contract for pointers.
impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type C = __m512i;

    const MAX_TOKENS: usize = 16;
    const COLUMNS: usize = 4;
    const WIDE_IS_SIGNED: bool = false;

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a hint, which faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        // SAFETY: see the impl.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(
                _mm256_loadu_si256(p.cast()),
            )))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn keep_lanes(v: __m512, from: usize, to: usize, other: __m512) -> __m512 {
        let mask = ((1u32 << to) - 1) & !((1u32 << from) - 1);
        // SAFETY: see the impl.
        unsafe { _mm512_mask_blend_ps(mask as u16, other, v) }
    }
    #[inline(always)]
    unsafe fn reduce_add(v: __m512) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let four = _mm_add_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(v: __m512) -> f32 {
        // SAFETY: see the impl.
        unsafe { _mm512_reduce_max_ps(v) }
    }
    #[inline(always)]
    unsafe fn round(v: __m512) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtps_epi32(v) }
    }
    #[inline(always)]
    unsafe fn exp2i(n: __m512i) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(
                n,
                _mm512_set1_epi32(127),
            )))
        }
    }
    #[inline(always)]
    unsafe fn to_f32(v: __m512i) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: __m512i) {
        // SAFETY: see the impl.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v)) }
    }
    #[inline(always)]
    unsafe fn reduce_add_i32(v: __m512i) -> i32 {
        // SAFETY: see the impl.
        unsafe { _mm512_reduce_add_epi32(v) }
    }
    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn load_codes(p: *const u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn nibbles(v: __m512i) -> (__m512i, __m512i) {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm512_set1_epi8(15);
            (
                _mm512_and_si512(v, low),
                _mm512_and_si512(_mm512_srli_epi16::<4>(v), low),
            )
        }
    }
    #[inline(always)]
    unsafe fn insert<const LEFT: u32>(codes: __m512i, plane: __m512i, mask: u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let plane = match LEFT {
                1 => _mm512_srli_epi16::<3>(plane),
                2 => _mm512_srli_epi16::<2>(plane),
                3 => _mm512_srli_epi16::<1>(plane),
                4 => plane,
                5 => _mm512_slli_epi16::<1>(plane),
                6 => _mm512_slli_epi16::<2>(plane),
                7 => _mm512_slli_epi16::<3>(plane),
                8 => _mm512_slli_epi16::<4>(plane),
                _ => unreachable!(),
            };
            // codes | (plane & mask) in one instruction.
            _mm512_ternarylogic_epi32::<0xf8>(codes, plane, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    unsafe fn code_to_f32(v: __m512i, byte: u32) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm512_set1_epi32(255);
            let lanes = match byte {
                0 => _mm512_and_si512(v, low),
                1 => _mm512_and_si512(_mm512_srli_epi32::<8>(v), low),
                2 => _mm512_and_si512(_mm512_srli_epi32::<16>(v), low),
                _ => _mm512_srli_epi32::<24>(v),
            };
            _mm512_cvtepi32_ps(lanes)
        }
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: __m512i, a: *const i8) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            _mm512_dpbusd_epi32(
                acc,
                codes,
                _mm512_set1_epi32(a.cast::<i32>().read_unaligned()),
            )
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: __m512i, codes: __m512i, a: *const i8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { Self::dot(acc, codes, a) }
    }
}
