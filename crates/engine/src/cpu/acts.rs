//! Activations as the matrix kernels read them.
//!
//! The tokens of a step are cut into blocks of `width` (1, 4 or 16: the smallest that holds a small step at once). In a block, group after group of 32 features, token after token:
//!
//! ```text
//! codes   [block][group][token][32]   i8   x / scale, rounded to nearest even
//! meta    [block][group][4][token]    4 B  scale = max |x| / 127 (f32), scale * sum (f32), sum of codes (i32), of the first 16 (i32)
//! values  [block][feature][token]     f32  x itself
//! ```
//!
//! so a kernel reaches every token of a block from one base address. Integers are kept for quantised weights in the fast mode,
//! f32 for everything else, both where both kinds of weights read the same activations.
//!
//! A group that holds a NaN or an infinity gets a NaN scale, which reaches every output: bad numbers stay visible.

use super::format::GROUP;
use super::memory::{Buffer, Shared};
use super::simd::{LANES, Simd};

/// Which representations are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Precision {
    /// 8-bit codes with scales.
    pub(super) codes: bool,
    /// f32.
    pub(super) values: bool,
}

/// Storage for the activations of `capacity` tokens.
pub(super) struct Acts {
    precision: Precision,
    capacity: usize,
    groups: usize,
    codes: Buffer<i8>,
    meta: Buffer<u32>,
    values: Buffer<f32>,
}

/// The largest block of tokens.
pub(super) const MAX_WIDTH: usize = 16;

/// Words of metadata per token and group.
pub(super) const META: usize = 4;

impl Acts {
    /// Room for `capacity` tokens of `features` features (padded to whole groups; padding reads zero).
    pub(super) fn new(
        capacity: usize,
        features: usize,
        precision: Precision,
    ) -> std::io::Result<Self> {
        let capacity = capacity.next_multiple_of(MAX_WIDTH);
        let groups = features.div_ceil(GROUP);
        let elements = capacity * groups * GROUP;
        let if_wanted = |wanted: bool, len: usize| if wanted { len } else { 0 };
        Ok(Self {
            precision,
            capacity,
            groups,
            codes: Buffer::zeroed(if_wanted(precision.codes, elements))?,
            meta: Buffer::zeroed(if_wanted(precision.codes, capacity * groups * META))?,
            values: Buffer::zeroed(if_wanted(precision.values, elements))?,
        })
    }

    /// The view of a step whose blocks are `width` wide.
    pub(super) fn view(&mut self, width: usize) -> ActsView {
        assert!(
            matches!(width, 1 | 4 | MAX_WIDTH),
            "blocks of {width} tokens"
        );
        ActsView {
            precision: self.precision,
            capacity: self.capacity,
            groups: self.groups,
            width,
            codes: self.codes.shared(),
            meta: self.meta.shared(),
            values: self.values.shared(),
        }
    }
}

/// The block width for a step of `num_tokens`.
pub(super) const fn block_width(num_tokens: usize) -> usize {
    match num_tokens {
        0 | 1 => 1,
        2..=4 => 4,
        _ => MAX_WIDTH,
    }
}

/// Activations of one step, shared by the ranks. Each (token, group) is written by one rank in a phase before any rank reads it.
#[derive(Clone, Copy)]
pub(super) struct ActsView {
    pub(super) precision: Precision,
    capacity: usize,
    pub(super) groups: usize,
    pub(super) width: usize,
    codes: Shared<i8>,
    meta: Shared<u32>,
    values: Shared<f32>,
}

impl ActsView {
    /// The codes of block `block`, all groups.
    #[inline(always)]
    pub(super) fn codes(&self, block: usize) -> *mut i8 {
        let len = self.groups * self.width * GROUP;
        self.codes.at(block * len, len)
    }

    /// The metadata of block `block`, all groups.
    #[inline(always)]
    pub(super) fn meta(&self, block: usize) -> *mut u32 {
        let len = self.groups * self.width * META;
        self.meta.at(block * len, len)
    }

    /// The values of block `block`, all features.
    #[inline(always)]
    pub(super) fn values(&self, block: usize) -> *mut f32 {
        let len = self.groups * self.width * GROUP;
        self.values.at(block * len, len)
    }

    /// Writes features `32 * group..` of a token.
    ///
    /// # Safety
    /// See [`Simd`]; no other rank touches this token's group in this phase.
    #[inline(always)]
    pub(super) unsafe fn store_group<S: Simd>(&self, token: usize, group: usize, x: [S::F; 2]) {
        assert!(token < self.capacity && group < self.groups);
        let (block, lane) = (token / self.width, token % self.width);
        // SAFETY: in bounds by the assertion; unshared by the contract.
        unsafe {
            if self.precision.codes {
                self.quantize::<S>(block, lane, group, x);
            }
            if self.precision.values {
                let out = self.values(block).add(group * GROUP * self.width + lane);
                scatter::<S>(out, self.width, x[0]);
                scatter::<S>(out.add(LANES * self.width), self.width, x[1]);
            }
        }
    }

    #[inline(always)]
    unsafe fn quantize<S: Simd>(&self, block: usize, lane: usize, group: usize, x: [S::F; 2]) {
        // SAFETY: the caller's contract; in bounds as computed.
        unsafe {
            let largest = S::reduce_max(S::max(S::abs(x[0]), S::abs(x[1])));
            // One NaN check for the group: a sum of finite magnitudes can only overflow to infinity.
            let total = S::reduce_add(S::add(S::abs(x[0]), S::abs(x[1])));
            let scale = if total.is_finite() {
                largest / 127.0
            } else {
                f32::NAN
            };
            let inverse = if scale > 0.0 { 127.0 / largest } else { 0.0 };
            let inverse = S::splat(if inverse.is_finite() { inverse } else { 0.0 });
            let (low, high) = (
                S::round(S::mul(x[0], inverse)),
                S::round(S::mul(x[1], inverse)),
            );
            let codes = self.codes(block).add((group * self.width + lane) * GROUP);
            S::store_i8(codes, low);
            S::store_i8(codes.add(LANES), high);
            let (low, high) = (S::reduce_add_i32(low), S::reduce_add_i32(high));
            let sum = low.wrapping_add(high);
            let meta = self.meta(block).add(group * META * self.width + lane);
            *meta = scale.to_bits();
            *meta.add(self.width) = (scale * sum as f32).to_bits();
            *meta.add(2 * self.width) = sum as u32;
            *meta.add(3 * self.width) = low as u32;
        }
    }

    /// Copies a token's activations from another view of the same width in features.
    ///
    /// # Safety
    /// No other rank writes the source, or touches the destination token, in this phase.
    pub(super) unsafe fn copy_token(&self, token: usize, from: &ActsView, source: usize) {
        assert!(token < self.capacity && source < from.capacity && self.groups == from.groups);
        assert_eq!(self.precision, from.precision);
        let (block, lane) = (token / self.width, token % self.width);
        let (from_block, from_lane) = (source / from.width, source % from.width);
        // SAFETY: both tokens are in bounds, asserted above; the contract keeps other ranks away.
        unsafe {
            for group in 0..self.groups * usize::from(self.precision.codes) {
                let codes = from
                    .codes(from_block)
                    .add((group * from.width + from_lane) * GROUP);
                let out = self.codes(block).add((group * self.width + lane) * GROUP);
                std::ptr::copy_nonoverlapping(codes, out, GROUP);
                for word in group * META..(group + 1) * META {
                    let value = *from.meta(from_block).add(word * from.width + from_lane);
                    *self.meta(block).add(word * self.width + lane) = value;
                }
            }
            for feature in 0..self.groups * GROUP * usize::from(self.precision.values) {
                let value = *from
                    .values(from_block)
                    .add(feature * from.width + from_lane);
                *self.values(block).add(feature * self.width + lane) = value;
            }
        }
    }
}

/// Writes 16 lanes `stride` apart.
#[inline(always)]
unsafe fn scatter<S: Simd>(out: *mut f32, stride: usize, v: S::F) {
    // SAFETY: the caller's contract: 16 elements at that stride.
    unsafe {
        if stride == 1 {
            S::store(out, v);
            return;
        }
        let mut lanes = [0.0f32; LANES];
        S::store(lanes.as_mut_ptr(), v);
        for (i, lane) in lanes.into_iter().enumerate() {
            *out.add(i * stride) = lane;
        }
    }
}
