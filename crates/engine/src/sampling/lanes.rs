//! Loops over a whole row of logits, compiled for several instruction sets and chosen at run time.
//!
//! Bodies are plain Rust over arrays of [`LANES`] numbers, in a shape that the compiler turns into vector code. Rust never
//! contracts a multiplication and an addition into one rounding, so every instruction set gives the same bits.

/// Numbers handled together; one AVX-512 register.
pub(super) const LANES: usize = 16;

/// Logits per block. Each lane of a block is a *group* of `BLOCK / LANES` logits, those at `lane + i * LANES`.
pub(super) const BLOCK: usize = 1024;

/// Defines a function whose body is compiled for AVX-512, AVX2 and the baseline, and picks one when called.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,bmi1,bmi2,lzcnt,popcnt")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                match $crate::sampling::lanes::isa() {
                    // SAFETY: `isa` answers Avx512 only on a processor that has every feature enabled above.
                    $crate::sampling::lanes::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above, for Avx2.
                    $crate::sampling::lanes::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::sampling::lanes::Isa::Baseline => {}
                }
            }
            $body($($arg),*)
        }
    };
}
pub(super) use multiversion;

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) enum Isa {
    Avx512,
    Avx2,
    Baseline,
}

/// The widest instruction set of this processor that the functions are compiled for.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn isa() -> Isa {
    // Each answer is cached by the standard library; asking costs one load.
    let bits = is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (bits, avx512, is_x86_feature_detected!("avx2")) {
        (true, true, _) => Isa::Avx512,
        (true, _, true) => Isa::Avx2,
        _ => Isa::Baseline,
    }
}
