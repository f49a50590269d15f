//! The operations in plain Rust: the definition that the other instruction sets are tested against.
//!
//! Most are calls: inlined into unrolled kernels, sixteen scalar operations each, they would make
//! megabytes of code for machines that have vector units this crate does not use.

use half::{bf16, f16};

use super::{LANES, Simd};

/// No instruction set in particular.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Lanes<T> = [T; LANES];

#[inline]
fn map<T: Copy, U>(a: Lanes<T>, f: impl Fn(T) -> U) -> Lanes<U> {
    std::array::from_fn(|i| f(a[i]))
}

#[inline]
fn zip(a: Lanes<f32>, b: Lanes<f32>, f: impl Fn(f32, f32) -> f32) -> Lanes<f32> {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline]
unsafe fn read<T: Copy>(p: *const T) -> Lanes<T> {
    // SAFETY: the trait's contract: 16 elements at any alignment.
    unsafe { p.cast::<Lanes<T>>().read_unaligned() }
}

// SAFETY (all methods): pointers follow the trait's contract; there is no instruction set to require.
impl Simd for Portable {
    type F = Lanes<f32>;
    type I = Lanes<i32>;
    type C = [[u8; 4]; LANES];

    const MAX_TOKENS: usize = 1;
    const COLUMNS: usize = 1;
    const WIDE_IS_SIGNED: bool = false;

    #[inline]
    unsafe fn prefetch(_p: *const u8) {}
    #[inline]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: see the impl.
        unsafe { read(p) }
    }
    #[inline]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: see the impl.
        unsafe { p.cast::<Self::F>().write_unaligned(v) }
    }
    #[inline(never)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: see the impl.
        map(unsafe { read(p) }, |bits| f16::from_bits(bits).to_f32())
    }
    #[inline(never)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        // SAFETY: see the impl.
        unsafe {
            p.cast::<Lanes<u16>>()
                .write_unaligned(map(v, |x| f16::from_f32(x).to_bits()))
        }
    }
    #[inline(never)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: see the impl.
        map(unsafe { read(p) }, |bits| bf16::from_bits(bits).to_f32())
    }
    #[inline(never)]
    unsafe fn load_u8(p: *const u8) -> Self::F {
        // SAFETY: see the impl.
        map(unsafe { read(p) }, f32::from)
    }
    #[inline(never)]
    unsafe fn load_i8(p: *const i8) -> Self::F {
        // SAFETY: see the impl.
        map(unsafe { read(p) }, f32::from)
    }
    #[inline(never)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(never)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(never)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(never)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(never)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(never)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(never)]
    unsafe fn abs(a: Self::F) -> Self::F {
        map(a, f32::abs)
    }
    #[inline(never)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(never)]
    unsafe fn keep_lanes(v: Self::F, from: usize, to: usize, other: Self::F) -> Self::F {
        std::array::from_fn(|i| {
            if (from..to).contains(&i) {
                v[i]
            } else {
                other[i]
            }
        })
    }
    #[inline(never)]
    unsafe fn reduce_add(mut v: Self::F) -> f32 {
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] += v[i + half];
            }
        }
        v[0]
    }
    #[inline(never)]
    unsafe fn reduce_max(v: Self::F) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(never)]
    unsafe fn round(v: Self::F) -> Self::I {
        // Out of range (only non-finite input gets here) saturates; its value is never used.
        map(v, |x| x.round_ties_even() as i32)
    }
    #[inline(never)]
    unsafe fn exp2i(n: Self::I) -> Self::F {
        map(n, |n| f32::from_bits((n.wrapping_add(127) as u32) << 23))
    }
    #[inline(never)]
    unsafe fn to_f32(v: Self::I) -> Self::F {
        map(v, |x| x as f32)
    }
    #[inline(never)]
    unsafe fn store_i8(p: *mut i8, v: Self::I) {
        // SAFETY: see the impl.
        unsafe { p.cast::<Lanes<i8>>().write_unaligned(map(v, |x| x as i8)) }
    }
    #[inline(never)]
    unsafe fn reduce_add_i32(v: Self::I) -> i32 {
        v.into_iter().fold(0, i32::wrapping_add)
    }
    #[inline(never)]
    unsafe fn splat_i32(x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(never)]
    unsafe fn load_codes(p: *const u8) -> Self::C {
        // SAFETY: see the impl.
        unsafe { p.cast::<Self::C>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn nibbles(v: Self::C) -> (Self::C, Self::C) {
        (
            map(v, |lane| lane.map(|x| x & 15)),
            map(v, |lane| lane.map(|x| x >> 4)),
        )
    }
    #[inline(never)]
    unsafe fn insert<const LEFT: u32>(codes: Self::C, plane: Self::C, mask: u8) -> Self::C {
        std::array::from_fn(|i| {
            std::array::from_fn(|b| {
                codes[i][b] | ((u32::from(plane[i][b]) << LEFT) >> 4) as u8 & mask
            })
        })
    }
    #[inline(never)]
    unsafe fn code_to_f32(v: Self::C, byte: u32) -> Self::F {
        map(v, |lane| f32::from(lane[byte as usize]))
    }
    #[inline(never)]
    unsafe fn dot(acc: Self::I, codes: Self::C, a: *const i8) -> Self::I {
        // SAFETY: the trait's contract: 4 bytes.
        let a = unsafe { a.cast::<[i8; 4]>().read_unaligned() };
        std::array::from_fn(|i| {
            (0..4).fold(acc[i], |acc, b| {
                acc + i32::from(codes[i][b]) * i32::from(a[b])
            })
        })
    }
    #[inline(never)]
    unsafe fn dot_wide(acc: Self::I, codes: Self::C, a: *const i8) -> Self::I {
        // SAFETY: as for `dot`.
        unsafe { Self::dot(acc, codes, a) }
    }
}
