//! Lanes as arrays: for processors without wider ones known here, and, with one lane, for scalar
//! code that must give the same bits as the vector code.

use super::Simd;

/// `N` lanes.
#[derive(Clone, Copy, Debug)]
pub(in crate::sampling) struct Array<const N: usize>;

#[inline(always)]
fn zip<T: Copy, R, const N: usize>(a: [T; N], b: [T; N], f: impl Fn(T, T) -> R) -> [R; N] {
    std::array::from_fn(|n| f(a[n], b[n]))
}

impl<const N: usize> Simd for Array<N> {
    type F = [f32; N];
    type U = [u32; N];
    const LANES: usize = N;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }
    #[inline(always)]
    fn splat_u(self, x: u32) -> [u32; N] {
        [x; N]
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> [f32; N] {
        std::array::from_fn(|n| from[n])
    }
    #[inline(always)]
    fn load_u(self, from: &[u32]) -> [u32; N] {
        std::array::from_fn(|n| from[n])
    }
    #[inline(always)]
    fn store(self, x: [f32; N], to: &mut [f32]) {
        to[..N].copy_from_slice(&x);
    }
    #[inline(always)]
    fn store_u(self, x: [u32; N], to: &mut [u32]) {
        to[..N].copy_from_slice(&x);
    }
    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn max(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn ge(self, a: [f32; N], b: [f32; N]) -> u32 {
        (0..N).map(|n| u32::from(a[n] >= b[n]) << n).sum()
    }
    #[inline(always)]
    fn select(self, bits: u32, a: [f32; N], b: [f32; N]) -> [f32; N] {
        std::array::from_fn(|n| if bits >> n & 1 != 0 { a[n] } else { b[n] })
    }
    #[inline(always)]
    fn as_bits(self, x: [f32; N]) -> [u32; N] {
        x.map(f32::to_bits)
    }
    #[inline(always)]
    fn as_floats(self, x: [u32; N]) -> [f32; N] {
        x.map(f32::from_bits)
    }
    #[inline(always)]
    fn to_float(self, x: [u32; N]) -> [f32; N] {
        x.map(|x| x as i32 as f32)
    }
    #[inline(always)]
    fn to_int(self, x: [f32; N]) -> [u32; N] {
        x.map(|x| x as i32 as u32)
    }
    #[inline(always)]
    fn add_u(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        zip(a, b, u32::wrapping_add)
    }
    #[inline(always)]
    fn and(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn xor(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        zip(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn max_i(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        zip(a, b, |a, b| (a as i32).max(b as i32) as u32)
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self, x: [u32; N]) -> [u32; N] {
        x.map(|x| x << BITS)
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self, x: [u32; N]) -> [u32; N] {
        x.map(|x| x >> BITS)
    }
    #[inline(always)]
    fn widening_mul(self, a: [u32; N], b: u32) -> ([u32; N], [u32; N]) {
        let high = a.map(|a| ((u64::from(a) * u64::from(b)) >> 32) as u32);
        (a.map(|a| a.wrapping_mul(b)), high)
    }
    #[inline(always)]
    fn compress(self, bits: u32, x: [u32; N]) -> [u32; N] {
        let mut front = [0; N];
        let mut len = 0;
        for (n, &lane) in x.iter().enumerate() {
            // Written whether it counts or not: there is room, as `len` is at most `n`.
            front[len] = lane;
            len += (bits >> n & 1) as usize;
        }
        front
    }
    #[inline(always)]
    fn transpose_quads(self, x: [[u32; N]; 4]) -> [[u32; N]; 4] {
        std::array::from_fn(|i| std::array::from_fn(|n| x[n % 4][n - n % 4 + i]))
    }
}
