//! The vector operations the kernels are written in, once for every instruction set.
//!
//! A [`Kernel`] is generic over [`Simd`] and is compiled once per instruction set inside a `#[target_feature]` entry
//! point ([`run`]); everything below it is `inline(always)`. The logical vector is always 16 lanes wide, so a reduction has the
//! same shape everywhere, and every operation rounds once as IEEE 754 says: all instruction sets give the same bits.
//!
//! Methods are `unsafe` because the caller must be inside an entry point of the right instruction set, and
//! because those that take pointers read or write exactly 16 elements there (fewer where the method says so).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;

/// Lanes of the logical vector, and rows of a weight tile.
pub(super) const LANES: usize = 16;

/// Instruction sets the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever the target always has. Correct, not fast.
    Portable,
    /// AVX2, FMA and F16C (x86-64-v3).
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

impl Isa {
    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni");
            if avx2 && avx512 {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// Every instruction set this machine can run, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let best = Self::detect();
        [Self::Portable, Self::Avx2, Self::Avx512]
            .into_iter()
            .filter(move |&isa| isa <= best)
    }

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512 VNNI",
        }
    }
}

/// A kernel with its arguments, written once over [`Simd`].
pub(super) trait Kernel {
    /// Runs with the vectors of one instruction set. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The instruction set exists and is enabled in the caller, and the kernel's own contract holds.
    unsafe fn run<S: Simd>(self);
}

/// Runs a kernel with an instruction set.
///
/// # Safety
/// `isa` comes from [`Isa::available`] or [`Isa::detect`], and the kernel's own contract holds.
#[inline]
pub(super) unsafe fn run<K: Kernel>(isa: Isa, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn avx512<K: Kernel>(kernel: K) {
        // SAFETY: the caller's contract, passed on.
        unsafe { kernel.run::<Avx512>() }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2<K: Kernel>(kernel: K) {
        // SAFETY: the caller's contract, passed on.
        unsafe { kernel.run::<Avx2>() }
    }
    // SAFETY: `isa` says that the features exist; the rest is the caller's contract.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2(kernel),
            _ => kernel.run::<Portable>(),
        }
    }
}

/// Repeats a block for `i` in `0..n` with a constant `i` in each copy, so that arrays it indexes live in registers. `n` is a constant of at
/// most 4, or of at most 16 when written `n of 16`; copies beyond it are not even compiled.
macro_rules! unroll {
    ($i:ident < $n:expr => $body:block) => {
        $crate::cpu::simd::unroll!(@ $i $n, $body, 0 1 2 3)
    };
    ($i:ident < $n:ident of 16 => $body:block) => {
        $crate::cpu::simd::unroll!(@ $i $n, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $i:ident $n:expr, $body:block, $($step:literal)*) => {
        $(if const { $step < $n } {
            let $i: usize = $step;
            $body
        })*
    };
}
pub(super) use unroll;

/// Sixteen f32, sixteen i32, or 64 unsigned bytes that are 16 rows × 4 consecutive weight codes.
///
/// # Safety
/// See the module documentation: all methods need the instruction set; pointers are unaligned and cover 16 elements.
pub(super) trait Simd: Copy + 'static {
    /// 16 × f32.
    type F: Copy;
    /// 16 × i32.
    type I: Copy;
    /// 16 × 4 × u8.
    type C: Copy;

    /// The largest token tile whose accumulators fit the registers.
    const MAX_TOKENS: usize;
    /// Vectors that a register tile may hold beside each other for each of 4 rows.
    const COLUMNS: usize;
    /// Whether [`Simd::dot_wide`] takes its codes around 128 rather than around 0.
    const WIDE_IS_SIGNED: bool;

    /// Asks for the cache line at `p`; any address is allowed.
    unsafe fn prefetch(p: *const u8);
    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn store_f16(p: *mut u16, v: Self::F);
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// 16 unsigned bytes, widened.
    unsafe fn load_u8(p: *const u8) -> Self::F;
    /// 16 signed bytes, widened.
    unsafe fn load_i8(p: *const i8) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// The larger of each lane; `b` if either is a NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller of each lane; `b` if either is a NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    /// a·b + c, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `v` in lanes `from..to`, `other` elsewhere.
    unsafe fn keep_lanes(v: Self::F, from: usize, to: usize, other: Self::F) -> Self::F;
    /// Pairwise: lane i with lane i + 8, then + 4, + 2, + 1.
    unsafe fn reduce_add(v: Self::F) -> f32;
    unsafe fn reduce_max(v: Self::F) -> f32;
    /// Nearest integer, ties to even. Lanes must be within ±2³⁰.
    unsafe fn round(v: Self::F) -> Self::I;
    /// 2ⁿ for n in -127..=127, where 2⁻¹²⁷ reads 0.
    unsafe fn exp2i(n: Self::I) -> Self::F;
    unsafe fn to_f32(v: Self::I) -> Self::F;
    /// The low byte of each lane.
    unsafe fn store_i8(p: *mut i8, v: Self::I);
    unsafe fn reduce_add_i32(v: Self::I) -> i32;
    unsafe fn splat_i32(x: i32) -> Self::I;

    /// 64 bytes.
    unsafe fn load_codes(p: *const u8) -> Self::C;
    /// The low and the high nibble of every byte.
    unsafe fn nibbles(v: Self::C) -> (Self::C, Self::C);
    /// `codes | (plane shifted left by LEFT - 4 bits) & mask` per byte, for masks no shifted-in neighbour bit reaches.
    unsafe fn insert<const LEFT: u32>(codes: Self::C, plane: Self::C, mask: u8) -> Self::C;
    /// Byte `byte` of every lane as f32.
    unsafe fn code_to_f32(v: Self::C, byte: u32) -> Self::F;
    /// Per lane, acc + Σ code·a over 4 codes under 64 and the 4 signed bytes at `a`.
    unsafe fn dot(acc: Self::I, codes: Self::C, a: *const i8) -> Self::I;
    /// As [`Simd::dot`] for codes up to 255, taken as code - 128 if [`Simd::WIDE_IS_SIGNED`].
    unsafe fn dot_wide(acc: Self::I, codes: Self::C, a: *const i8) -> Self::I;
}
