//! AVX2, FMA and F16C: two registers per logical vector.

use std::arch::x86_64::*;

use super::Simd;

/// AVX2, FMA, F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Low and high half of a logical vector.
type Pair<T> = [T; 2];

#[inline(always)]
fn both<T: Copy, U>(a: Pair<T>, f: impl Fn(T) -> U) -> Pair<U> {
    [f(a[0]), f(a[1])]
}

#[inline(always)]
fn zip<T: Copy>(a: Pair<T>, b: Pair<T>, f: impl Fn(T, T) -> T) -> Pair<T> {
    [f(a[0], b[0]), f(a[1], b[1])]
}

// SAFETY (all methods): the caller runs with the features enabled and follows the trait's contract for pointers.
impl Simd for Avx2 {
    type F = Pair<__m256>;
    type I = Pair<__m256i>;
    type C = Pair<__m256i>;

    const MAX_TOKENS: usize = 4;
    const COLUMNS: usize = 1;
    const WIDE_IS_SIGNED: bool = true;

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a hint, which faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: see the impl.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: see the impl.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        // SAFETY: see the impl.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(
                p.add(8).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]),
            );
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            both([p, p.add(8)], |p| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(
                    _mm_loadu_si128(p.cast()),
                )))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            both([p, p.add(8)], |p| {
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            both([p, p.add(8)], |p| {
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))
            })
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { zip(a, b, |a, b| _mm256_add_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { zip(a, b, |a, b| _mm256_sub_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { zip(a, b, |a, b| _mm256_mul_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { zip(a, b, |a, b| _mm256_div_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { zip(a, b, |a, b| _mm256_max_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { zip(a, b, |a, b| _mm256_min_ps(a, b)) }
    }
    #[inline(always)]
    unsafe fn abs(a: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe { both(a, |a| _mm256_andnot_ps(_mm256_set1_ps(-0.0), a)) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm256_fmadd_ps(a[0], b[0], c[0]),
                _mm256_fmadd_ps(a[1], b[1], c[1]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn keep_lanes(v: Self::F, from: usize, to: usize, other: Self::F) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let below = |lane: usize| {
                let lane = _mm256_set1_epi32(lane as i32);
                let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
                [
                    _mm256_cmpgt_epi32(lane, low),
                    _mm256_cmpgt_epi32(lane, high),
                ]
            };
            let keep = zip(below(from), below(to), |from, to| {
                _mm256_andnot_si256(from, to)
            });
            [
                _mm256_blendv_ps(other[0], v[0], _mm256_castsi256_ps(keep[0])),
                _mm256_blendv_ps(other[1], v[1], _mm256_castsi256_ps(keep[1])),
            ]
        }
    }
    #[inline(always)]
    unsafe fn reduce_add(v: Self::F) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let eight = _mm256_add_ps(v[0], v[1]);
            let four = _mm_add_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(v: Self::F) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let eight = _mm256_max_ps(v[0], v[1]);
            let four = _mm_max_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn round(v: Self::F) -> Self::I {
        // SAFETY: see the impl.
        unsafe { both(v, |v| _mm256_cvtps_epi32(v)) }
    }
    #[inline(always)]
    unsafe fn exp2i(n: Self::I) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            both(n, |n| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
                    n,
                    _mm256_set1_epi32(127),
                )))
            })
        }
    }
    #[inline(always)]
    unsafe fn to_f32(v: Self::I) -> Self::F {
        // SAFETY: see the impl.
        unsafe { both(v, |v| _mm256_cvtepi32_ps(v)) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: Self::I) {
        // SAFETY: see the impl. Lanes hold -128..=127, so that the saturating packs change nothing.
        unsafe {
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(v[0], v[1]));
            let bytes = _mm_packs_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(p.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn reduce_add_i32(v: Self::I) -> i32 {
        // SAFETY: see the impl.
        unsafe {
            let eight = _mm256_add_epi32(v[0], v[1]);
            let four = _mm_add_epi32(
                _mm256_castsi256_si128(eight),
                _mm256_extracti128_si256::<1>(eight),
            );
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
        }
    }
    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> Self::I {
        // SAFETY: see the impl.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn load_codes(p: *const u8) -> Self::C {
        // SAFETY: see the impl.
        unsafe {
            [
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(32).cast()),
            ]
        }
    }
    #[inline(always)]
    unsafe fn nibbles(v: Self::C) -> (Self::C, Self::C) {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_set1_epi8(15);
            (
                both(v, |v| _mm256_and_si256(v, low)),
                both(v, |v| _mm256_and_si256(_mm256_srli_epi16::<4>(v), low)),
            )
        }
    }
    #[inline(always)]
    unsafe fn insert<const LEFT: u32>(codes: Self::C, plane: Self::C, mask: u8) -> Self::C {
        // SAFETY: see the impl.
        unsafe {
            let plane = both(plane, |plane| match LEFT {
                1 => _mm256_srli_epi16::<3>(plane),
                2 => _mm256_srli_epi16::<2>(plane),
                3 => _mm256_srli_epi16::<1>(plane),
                4 => plane,
                5 => _mm256_slli_epi16::<1>(plane),
                6 => _mm256_slli_epi16::<2>(plane),
                7 => _mm256_slli_epi16::<3>(plane),
                8 => _mm256_slli_epi16::<4>(plane),
                _ => unreachable!(),
            });
            let mask = _mm256_set1_epi8(mask as i8);
            zip(codes, plane, |codes, plane| {
                _mm256_or_si256(codes, _mm256_and_si256(plane, mask))
            })
        }
    }
    #[inline(always)]
    unsafe fn code_to_f32(v: Self::C, byte: u32) -> Self::F {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_set1_epi32(255);
            both(v, |v| {
                let lanes = match byte {
                    0 => _mm256_and_si256(v, low),
                    1 => _mm256_and_si256(_mm256_srli_epi32::<8>(v), low),
                    2 => _mm256_and_si256(_mm256_srli_epi32::<16>(v), low),
                    _ => _mm256_srli_epi32::<24>(v),
                };
                _mm256_cvtepi32_ps(lanes)
            })
        }
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::I, codes: Self::C, a: *const i8) -> Self::I {
        // SAFETY: see the impl. 63 · 127 · 2 fits the 16-bit sums of `maddubs`.
        unsafe {
            let a = _mm256_set1_epi32(a.cast::<i32>().read_unaligned());
            let ones = _mm256_set1_epi16(1);
            zip(acc, codes, |acc, codes| {
                _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, a), ones))
            })
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: Self::I, codes: Self::C, a: *const i8) -> Self::I {
        // SAFETY: see the impl. `maddubs` would saturate on codes up to 255, so the sign of each weight moves to the
        // activation: |w| ≤ 128 and |a| ≤ 127, and 128 · 127 · 2 fits 16 bits.
        unsafe {
            let a = _mm256_set1_epi32(a.cast::<i32>().read_unaligned());
            let ones = _mm256_set1_epi16(1);
            zip(acc, codes, |acc, codes| {
                let w = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
                let products = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
                _mm256_add_epi32(acc, _mm256_madd_epi16(products, ones))
            })
        }
    }
}
