//! How packed weights lie in memory: tiles of 16 rows, groups of 32 columns.
//!
//! A matrix `[rows, cols]` becomes `ceil(rows / 16)` tiles, one after another. Inside a tile, groups of 32 columns follow each other:
//!
//! ```text
//! tile  = super group × (groups / SUPER)          super group = header, SUPER × group
//! group = codes of 16 rows × 32 columns, scales of 16 rows, minimums of 16 rows
//! codes = step 0..8, each 16 rows × 4 columns: byte 4 * row + column % 4 belongs to column 4 * step + column % 4
//! ```
//!
//! so one 64-byte register holds a step: each 32-bit lane is a row's next four columns, which is the shape of the
//! integer dot-product instructions, and no sum ever crosses lanes. 4-bit codes pack steps 2i and 2i + 1 into the low and high
//! nibbles of one register; a fifth bit lies in a 64-byte plane (bit = step), a fifth and sixth in two planes
//! (bits 2 (step % 4), plane = step / 4). Scales of Q4_K, Q5_K and Q6_K stay factored as in the file: per-row f16 in the header of a super group
//! of 8 groups, small integers in the group. So nothing is rounded that the file did not round, and sizes equal the file's within 3 %.
//!
//! A value is `scale * code + min`, where formats symmetric about a power of two have `min = -2^k * scale`. Rows and columns that pad a
//! tile are all zero bytes, which decode to 0 in every format.

use izar_model::Dtype;

use super::simd::{LANES, Simd, unroll};

/// Columns of a group.
pub(super) const GROUP: usize = 32;
/// 64-byte registers of codes in a group.
pub(super) const STEPS: usize = GROUP / 4;

/// What the f32 kernels need of a layout: values, 16 rows at a time.
pub(super) trait Format {
    /// A group, decoded as far as is useful before the loop over its columns.
    type Decoded<S: Simd>: Copy;
    /// Bytes before the first group of a super group.
    const HEADER: usize;
    /// Groups in a super group.
    const SUPER: usize;
    /// Bytes of a group.
    const BYTES: usize;

    /// # Safety
    /// See [`Simd`]; `header` and `group` point into a tile of this format.
    unsafe fn decode<S: Simd>(header: *const u8, group: *const u8) -> Self::Decoded<S>;
    /// The weights of a column (0..32) of the group, for 16 rows.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn value<S: Simd>(group: &Self::Decoded<S>, column: usize) -> S::F;
}

/// What the integer kernels need beside: codes and their scales.
pub(super) trait Quantized: Format {
    /// Codes may exceed 63.
    const WIDE: bool = false;
    /// `Some(k)`: values are `scale * (code - 2^k)`; `None`: there is a minimum of its own.
    const CENTER: Option<u32>;
    /// Columns 0..16 and 16..32 have scales of their own.
    const HALVES: bool = false;

    /// # Safety
    /// As for [`Format::decode`].
    unsafe fn codes<S: Simd>(group: *const u8) -> [S::C; STEPS];
    /// Scales of the group's half 0 or 1.
    ///
    /// # Safety
    /// As for [`Format::decode`].
    unsafe fn scale<S: Simd>(header: *const u8, group: *const u8, half: usize) -> S::F;
    /// Minimums; only called where `CENTER` is `None`.
    ///
    /// # Safety
    /// As for [`Format::decode`].
    unsafe fn min<S: Simd>(_header: *const u8, _group: *const u8) -> S::F {
        unreachable!("a symmetric format has no minimums")
    }
}

/// Widens a group of a quantised format: 32 columns of 16 rows, 2 KiB that stay in the first-level cache.
#[inline(always)]
unsafe fn decode_quant<S: Simd, W: Quantized>(
    header: *const u8,
    group: *const u8,
) -> [S::F; GROUP] {
    // SAFETY: the caller's contract.
    unsafe {
        let low = W::scale::<S>(header, group, 0);
        let high = if W::HALVES {
            W::scale::<S>(header, group, 1)
        } else {
            low
        };
        let min = match W::CENTER {
            // Exact: a power of two times the scale.
            Some(shift) => {
                let center = S::splat(-((1 << shift) as f32));
                [S::mul(low, center), S::mul(high, center)]
            }
            None => [W::min::<S>(header, group); 2],
        };
        let codes = W::codes::<S>(group);
        let mut values = [low; GROUP];
        unroll!(half < 2 => {
            let scale = if half == 0 { low } else { high };
            unroll!(quarter < 4 => {
                // The remainders change nothing; they spare dead copies a bounds error.
                let step = (4 * half + quarter) % STEPS;
                unroll!(column < 4 => {
                    let code = S::code_to_f32(codes[step], column as u32);
                    // The product is exact in f32, so this rounds as ggml's multiply and add do.
                    values[4 * step + column] = S::fma(code, scale, min[half % 2]);
                });
            });
        });
        values
    }
}

#[inline(always)]
unsafe fn nibble_codes<S: Simd>(group: *const u8) -> [S::C; STEPS] {
    // SAFETY: the caller's contract: 256 bytes of nibbles come first in a group.
    unsafe {
        let (s0, s1) = S::nibbles(S::load_codes(group));
        let (s2, s3) = S::nibbles(S::load_codes(group.add(64)));
        let (s4, s5) = S::nibbles(S::load_codes(group.add(128)));
        let (s6, s7) = S::nibbles(S::load_codes(group.add(192)));
        [s0, s1, s2, s3, s4, s5, s6, s7]
    }
}

#[inline(always)]
unsafe fn five_bit_codes<S: Simd>(group: *const u8) -> [S::C; STEPS] {
    // SAFETY: the caller's contract: a plane of 64 bytes follows the nibbles.
    unsafe {
        let [s0, s1, s2, s3, s4, s5, s6, s7] = nibble_codes::<S>(group);
        let plane = S::load_codes(group.add(NIBBLES));
        [
            S::insert::<8>(s0, plane, 16),
            S::insert::<7>(s1, plane, 16),
            S::insert::<6>(s2, plane, 16),
            S::insert::<5>(s3, plane, 16),
            S::insert::<4>(s4, plane, 16),
            S::insert::<3>(s5, plane, 16),
            S::insert::<2>(s6, plane, 16),
            S::insert::<1>(s7, plane, 16),
        ]
    }
}

#[inline(always)]
unsafe fn six_bit_codes<S: Simd>(group: *const u8) -> [S::C; STEPS] {
    // SAFETY: the caller's contract: two planes of 64 bytes follow the nibbles.
    unsafe {
        let [s0, s1, s2, s3, s4, s5, s6, s7] = nibble_codes::<S>(group);
        let low = S::load_codes(group.add(NIBBLES));
        let high = S::load_codes(group.add(NIBBLES + PLANE));
        [
            S::insert::<8>(s0, low, 48),
            S::insert::<6>(s1, low, 48),
            S::insert::<4>(s2, low, 48),
            S::insert::<2>(s3, low, 48),
            S::insert::<8>(s4, high, 48),
            S::insert::<6>(s5, high, 48),
            S::insert::<4>(s6, high, 48),
            S::insert::<2>(s7, high, 48),
        ]
    }
}

/// Bytes of a group's nibbles, of a bit plane, of 16 f16.
pub(super) const NIBBLES: usize = 4 * 64;
pub(super) const PLANE: usize = 64;
pub(super) const HALVES16: usize = 2 * LANES;

macro_rules! quantized {
    (
        $(#[$doc:meta])* $name:ident {
            header: $header:expr, groups: $super:expr, codes: $codes:expr, tail: $tail:expr,
            $(wide: $wide:expr,)? center: $center:expr, $(halves: $halves:expr,)?
            load: $load:expr, scale: $scale:expr, $(min: $min:expr,)?
        }
    ) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl Format for $name {
            type Decoded<S: Simd> = [S::F; GROUP];
            const HEADER: usize = $header;
            const SUPER: usize = $super;
            const BYTES: usize = $codes + $tail;

            #[inline(always)]
            unsafe fn decode<S: Simd>(header: *const u8, group: *const u8) -> [S::F; GROUP] {
                // SAFETY: the caller's contract.
                unsafe { decode_quant::<S, Self>(header, group) }
            }
            #[inline(always)]
            unsafe fn value<S: Simd>(group: &[S::F; GROUP], column: usize) -> S::F {
                group[column]
            }
        }

        impl Quantized for $name {
            $(const WIDE: bool = $wide;)?
            const CENTER: Option<u32> = $center;
            $(const HALVES: bool = $halves;)?

            #[inline(always)]
            unsafe fn codes<S: Simd>(group: *const u8) -> [S::C; STEPS] {
                // SAFETY: the caller's contract.
                unsafe { $load(group) }
            }
            #[inline(always)]
            unsafe fn scale<S: Simd>(header: *const u8, group: *const u8, half: usize) -> S::F {
                // SAFETY: the caller's contract: the tail follows the codes.
                unsafe { $scale(header, group.add($codes), half) }
            }
            $(
                #[inline(always)]
                unsafe fn min<S: Simd>(header: *const u8, group: *const u8) -> S::F {
                    // SAFETY: the caller's contract: the tail follows the codes.
                    unsafe { $min(header, group.add($codes)) }
                }
            )?
        }
    };
}

#[inline(always)]
unsafe fn f16_scale<S: Simd>(_header: *const u8, tail: *const u8, _half: usize) -> S::F {
    // SAFETY: the caller's contract: 16 f16.
    unsafe { S::load_f16(tail.cast()) }
}

#[inline(always)]
unsafe fn f16_min<S: Simd>(_header: *const u8, tail: *const u8) -> S::F {
    // SAFETY: the caller's contract: 16 f16 after the scales.
    unsafe { S::load_f16(tail.add(HALVES16).cast()) }
}

#[inline(always)]
unsafe fn factored_scale<S: Simd>(header: *const u8, tail: *const u8, _half: usize) -> S::F {
    // SAFETY: the caller's contract: 16 f16 in the header, 16 bytes in the tail. f16 times 6 bits is exact.
    unsafe { S::mul(S::load_f16(header.cast()), S::load_u8(tail)) }
}

#[inline(always)]
unsafe fn factored_min<S: Simd>(header: *const u8, tail: *const u8) -> S::F {
    // SAFETY: the caller's contract. Exact, as the scale; the file subtracts its minimums.
    unsafe {
        let unit = S::sub(S::splat(0.0), S::load_f16(header.add(HALVES16).cast()));
        S::mul(unit, S::load_u8(tail.add(LANES)))
    }
}

#[inline(always)]
unsafe fn signed_scale<S: Simd>(header: *const u8, tail: *const u8, half: usize) -> S::F {
    // SAFETY: the caller's contract: 16 f16 in the header, 2 × 16 signed bytes in the tail. f16 times i8 is exact.
    unsafe {
        S::mul(
            S::load_f16(header.cast()),
            S::load_i8(tail.add(half * LANES).cast()),
        )
    }
}

#[inline(always)]
unsafe fn byte_codes<S: Simd>(group: *const u8) -> [S::C; STEPS] {
    // SAFETY: the caller's contract: 512 bytes.
    unsafe {
        [
            S::load_codes(group),
            S::load_codes(group.add(64)),
            S::load_codes(group.add(128)),
            S::load_codes(group.add(192)),
            S::load_codes(group.add(256)),
            S::load_codes(group.add(320)),
            S::load_codes(group.add(384)),
            S::load_codes(group.add(448)),
        ]
    }
}

quantized! {
    /// Q4_0: 4 bits around 8, f16 scale.
    Q4_0 {
        header: 0, groups: 1, codes: NIBBLES, tail: HALVES16,
        center: Some(3), load: nibble_codes::<S>, scale: f16_scale::<S>,
    }
}
quantized! {
    /// Q4_1: 4 bits, f16 scale and minimum.
    Q4_1 {
        header: 0, groups: 1, codes: NIBBLES, tail: 2 * HALVES16,
        center: None, load: nibble_codes::<S>, scale: f16_scale::<S>, min: f16_min::<S>,
    }
}
quantized! {
    /// Q5_0: 5 bits around 16, f16 scale.
    Q5_0 {
        header: 0, groups: 1, codes: NIBBLES + PLANE, tail: HALVES16,
        center: Some(4), load: five_bit_codes::<S>, scale: f16_scale::<S>,
    }
}
quantized! {
    /// Q5_1: 5 bits, f16 scale and minimum.
    Q5_1 {
        header: 0, groups: 1, codes: NIBBLES + PLANE, tail: 2 * HALVES16,
        center: None, load: five_bit_codes::<S>, scale: f16_scale::<S>, min: f16_min::<S>,
    }
}
quantized! {
    /// Q8_0: 8 bits around 128 (the file's signed bytes, shifted), f16 scale.
    Q8_0 {
        header: 0, groups: 1, codes: 8 * 64, tail: HALVES16,
        wide: true, center: Some(7), load: byte_codes::<S>, scale: f16_scale::<S>,
    }
}
quantized! {
    /// Q4_K: 4 bits, 6-bit scale and minimum in units of two f16.
    Q4K {
        header: 2 * HALVES16, groups: 8, codes: NIBBLES, tail: 2 * LANES,
        center: None, load: nibble_codes::<S>, scale: factored_scale::<S>, min: factored_min::<S>,
    }
}
quantized! {
    /// Q5_K: 5 bits, 6-bit scale and minimum in units of two f16.
    Q5K {
        header: 2 * HALVES16, groups: 8, codes: NIBBLES + PLANE, tail: 2 * LANES,
        center: None, load: five_bit_codes::<S>, scale: factored_scale::<S>, min: factored_min::<S>,
    }
}
quantized! {
    /// Q6_K: 6 bits around 32, an i8 scale per 16 columns in units of an f16.
    Q6K {
        header: HALVES16, groups: 8, codes: NIBBLES + 2 * PLANE, tail: 2 * LANES,
        center: Some(5), halves: true, load: six_bit_codes::<S>, scale: signed_scale::<S>,
    }
}

macro_rules! float {
    ($(#[$doc:meta])* $name:ident, $element:ty, $load:ident) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl Format for $name {
            type Decoded<S: Simd> = *const $element;
            const HEADER: usize = 0;
            const SUPER: usize = 1;
            const BYTES: usize = GROUP * LANES * size_of::<$element>();

            #[inline(always)]
            unsafe fn decode<S: Simd>(_header: *const u8, group: *const u8) -> *const $element {
                group.cast()
            }
            #[inline(always)]
            unsafe fn value<S: Simd>(group: &*const $element, column: usize) -> S::F {
                // SAFETY: the caller's contract: column after column, 16 rows each.
                unsafe { S::$load(group.add(column * LANES)) }
            }
        }
    };
}

float!(
    /// f32 as it is, 16 rows of a column side by side.
    F32, f32, load
);
float!(
    /// f16, widened when used.
    F16, u16, load_f16
);
float!(
    /// bf16, widened when used.
    Bf16, u16, load_bf16
);

/// The sizes of a format, for code that handles all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) header: usize,
    pub(super) groups: usize,
    pub(super) group_bytes: usize,
}

impl Geometry {
    const fn of<W: Format>() -> Self {
        Self {
            header: W::HEADER,
            groups: W::SUPER,
            group_bytes: W::BYTES,
        }
    }

    pub(super) const fn for_dtype(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::of::<F32>(),
            Dtype::F16 => Self::of::<F16>(),
            Dtype::Bf16 => Self::of::<Bf16>(),
            Dtype::Q8_0 => Self::of::<Q8_0>(),
            Dtype::Q4_0 => Self::of::<Q4_0>(),
            Dtype::Q4_1 => Self::of::<Q4_1>(),
            Dtype::Q5_0 => Self::of::<Q5_0>(),
            Dtype::Q5_1 => Self::of::<Q5_1>(),
            Dtype::Q4K => Self::of::<Q4K>(),
            Dtype::Q5K => Self::of::<Q5K>(),
            Dtype::Q6K => Self::of::<Q6K>(),
        }
    }

    /// Bytes of a tile of `groups` groups, a whole number of super groups.
    pub(super) const fn tile_bytes(self, groups: usize) -> usize {
        groups / self.groups * self.header + groups * self.group_bytes
    }

    /// Offset in a tile of group `group`'s super group header, and of the group itself.
    pub(super) const fn locate(self, group: usize) -> (usize, usize) {
        let whole = group / self.groups;
        let header = whole * (self.header + self.groups * self.group_bytes);
        (
            header,
            header + self.header + group % self.groups * self.group_bytes,
        )
    }
}
