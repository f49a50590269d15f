//! The few vector operations that sampling needs, on whatever this processor has.
//!
//! A kernel is written once over [`Simd`] and compiled for each [`Level`] by [`kernel!`]. Every
//! operation is exact or rounds each lane like the scalar operation does, and nothing is
//! contracted, so a kernel gives the same bits at every level.
//!
//! A value of a type that implements [`Simd`] proves that the processor has its instructions: that
//! is what makes its methods safe. Values come from [`Level`] only.

mod array;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

pub(super) use array::Array;
#[cfg(target_arch = "x86_64")]
pub(super) use {avx2::Avx2, avx512::Avx512};

/// Lanes of single-precision numbers and of 32-bit integers, as many of one as of the other.
pub(super) trait Simd: Copy {
    /// Numbers.
    type F: Copy;
    /// Integers.
    type U: Copy;
    const LANES: usize;

    fn splat(self, x: f32) -> Self::F;
    fn splat_u(self, x: u32) -> Self::U;
    /// Reads the first `LANES` numbers of a slice that has as many.
    fn load(self, from: &[f32]) -> Self::F;
    fn load_u(self, from: &[u32]) -> Self::U;
    fn store(self, x: Self::F, to: &mut [f32]);
    fn store_u(self, x: Self::U, to: &mut [u32]);

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`, hence `b` where either is not a number.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// Bit n is set if `a >= b` in lane n.
    fn ge(self, a: Self::F, b: Self::F) -> u32;
    /// `a` in lane n if bit n is set, else `b`.
    fn select(self, bits: u32, a: Self::F, b: Self::F) -> Self::F;

    fn as_bits(self, x: Self::F) -> Self::U;
    fn as_floats(self, x: Self::U) -> Self::F;
    /// The nearest number to a signed integer.
    fn to_float(self, x: Self::U) -> Self::F;
    /// The integer part of a number between -2^31 and 2^31, any integer for another.
    fn to_int(self, x: Self::F) -> Self::U;

    fn add_u(self, a: Self::U, b: Self::U) -> Self::U;
    fn and(self, a: Self::U, b: Self::U) -> Self::U;
    fn xor(self, a: Self::U, b: Self::U) -> Self::U;
    /// The larger signed integer.
    fn max_i(self, a: Self::U, b: Self::U) -> Self::U;
    fn shl<const BITS: u32>(self, x: Self::U) -> Self::U;
    fn shr<const BITS: u32>(self, x: Self::U) -> Self::U;
    /// The low and the high half of the 64-bit products.
    fn widening_mul(self, a: Self::U, b: u32) -> (Self::U, Self::U);
    /// Moves the lanes whose bits are set to the front, in order; the others hold anything.
    fn compress(self, bits: u32, x: Self::U) -> Self::U;
    /// Transposes each 4 x 4 square: lane `4 q + i` of vector `j` becomes lane `4 q + j` of vector
    /// `i`.
    fn transpose_quads(self, x: [Self::U; 4]) -> [Self::U; 4];
}

/// The instructions that kernels use.
#[derive(Clone, Copy, Debug)]
pub(super) enum Level {
    Portable(Array<4>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    /// All that this processor has, the best last.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let wide = [
            Avx2::detect().map(Self::Avx2),
            Avx512::detect().map(Self::Avx512),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let wide: [Option<Self>; 0] = [];
        std::iter::once(Self::Portable(Array)).chain(wide.into_iter().flatten())
    }

    /// The best this processor has.
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::Portable(Array))
    }
}

/// Defines a function of a [`Level`] that runs `body`, a function generic over [`Simd`], compiled
/// for that level.
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "the level comes on top of the kernel's own")]
        $vis fn $name(level: $crate::sampling::simd::Level, $($arg: $ty),*) $(-> $ret)? {
            use $crate::sampling::simd;
            // Out of line like the others, whose features keep them so: inlined into its caller, the
            // compiler's vectoriser has broken it.
            #[inline(never)]
            fn portable(simd: simd::Array<4>, $($arg: $ty),*) $(-> $ret)? {
                $body(simd, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
            fn avx512(simd: simd::Avx512, $($arg: $ty),*) $(-> $ret)? {
                $body(simd, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2(simd: simd::Avx2, $($arg: $ty),*) $(-> $ret)? {
                $body(simd, $($arg),*)
            }
            match level {
                simd::Level::Portable(simd) => portable(simd, $($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: a value of `Avx2` exists only where its `detect` found every feature
                // enabled above.
                simd::Level::Avx2(simd) => unsafe { avx2(simd, $($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as for `Avx2`.
                simd::Level::Avx512(simd) => unsafe { avx512(simd, $($arg),*) },
            }
        }
    };
}
pub(super) use kernel;

#[cfg(test)]
mod tests;
