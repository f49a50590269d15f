//! Activations × packed weights: `out[token][row] = Σ_k act[token][k] · weight[row][k]`.
//!
//! Two arithmetics over the same tiles:
//!
//! - *integer*: 8-bit activation codes times weight codes, summed exactly in i32 within a group of 32 columns; per group one
//!   f32 multiply-add with the product of the two scales (and one for the minimum).
//! - *f32*: weights widened to f32 in registers, one multiply-add per column.
//!
//! Every output is one chain of multiply-adds over k in ascending order. Token tiles, row tiles, threads and instruction sets only change which chains
//! run side by side, so a token's result is the same bits alone, in any batch and on any team. General matrix
//! libraries (`gemm`, candle's quantised matmul) do not promise that: their blocking of k, or a separate matrix-vector path, depends on the number of
//! rows; and none multiplies several tokens by weights that stay quantised in registers. That is why these kernels are ours.
//!
//! Bound: a single token streams the weights once (memory bandwidth); from about 8 tokens on, the multipliers
//! (64 MAC per cycle and core for VNNI on Zen 4, 16 for f32) are the limit. `examples/cpu_bench.rs` prints both ceilings.

use std::marker::PhantomData;

use izar_model::Dtype;

use super::acts::{ActsView, MAX_WIDTH, META};
use super::format::{self, Format, GROUP, Quantized, STEPS};
use super::memory::Shared;
use super::pack::Matrix;
use super::simd::{Isa, Kernel, LANES, Simd, run, unroll};

/// Multiplies tiles `first_tile..first_tile + num_tiles` by tokens `0..num_tokens` of block `block`.
pub(super) struct TileProduct<'a> {
    pub(super) matrix: &'a Matrix,
    /// The arena that holds `matrix`.
    pub(super) weights: Shared<u8>,
    pub(super) first_tile: usize,
    pub(super) num_tiles: usize,
    pub(super) acts: &'a ActsView,
    pub(super) block: usize,
    pub(super) num_tokens: usize,
    /// Integer arithmetic; needs quantised weights and activation codes.
    pub(super) integer: bool,
    /// `[MAX_WIDTH][stride]`: token `m`'s results for the tiles, 16 each, start at `m * stride`. Rows from
    /// `num_tokens` up to the next power of two are overwritten with rubbish.
    pub(super) out: &'a mut [f32],
    pub(super) stride: usize,
}

/// Pointers of one call, checked.
#[derive(Clone, Copy)]
struct Operands {
    weights: *const u8,
    tile_bytes: usize,
    num_tiles: usize,
    groups: usize,
    width: usize,
    /// Block base plus the first token's offset.
    codes: *const i8,
    meta: *const u32,
    values: *const f32,
    out: *mut f32,
    stride: usize,
}

impl TileProduct<'_> {
    /// Runs on `isa`. The view's activations of the block must be written, and by no rank in this phase.
    pub(super) fn run(self, isa: Isa) {
        let Self {
            matrix,
            acts,
            block,
            ..
        } = self;
        assert!(self.num_tokens >= 1 && self.num_tokens <= acts.width);
        assert!(self.first_tile + self.num_tiles <= matrix.num_tiles());
        assert_eq!(
            acts.groups,
            matrix.groups(),
            "in features of the matrix and the activations"
        );
        assert!(self.stride >= self.num_tiles * LANES);
        assert!(
            self.out.len()
                >= (acts.width.min(MAX_WIDTH) - 1) * self.stride + self.num_tiles * LANES
        );
        let tile_bytes = matrix.tile_bytes();
        let start = matrix.offset + self.first_tile * tile_bytes;
        let operands = Operands {
            weights: self.weights.at(start, self.num_tiles * tile_bytes),
            tile_bytes,
            num_tiles: self.num_tiles,
            groups: acts.groups,
            width: acts.width,
            codes: if self.integer {
                acts.codes(block)
            } else {
                std::ptr::null()
            },
            meta: if self.integer {
                acts.meta(block)
            } else {
                std::ptr::null()
            },
            values: if self.integer {
                std::ptr::null()
            } else {
                acts.values(block)
            },
            out: self.out.as_mut_ptr(),
            stride: self.stride,
        };
        // SAFETY: all ranges were checked above; weights are not written after loading, activations not in
        // this phase, `out` is borrowed mutably.
        unsafe {
            match (matrix.dtype, self.integer) {
                (Dtype::Q8_0, true) => integer::<format::Q8_0>(isa, operands, self.num_tokens),
                (Dtype::Q4_0, true) => integer::<format::Q4_0>(isa, operands, self.num_tokens),
                (Dtype::Q4_1, true) => integer::<format::Q4_1>(isa, operands, self.num_tokens),
                (Dtype::Q5_0, true) => integer::<format::Q5_0>(isa, operands, self.num_tokens),
                (Dtype::Q5_1, true) => integer::<format::Q5_1>(isa, operands, self.num_tokens),
                (Dtype::Q4K, true) => integer::<format::Q4K>(isa, operands, self.num_tokens),
                (Dtype::Q5K, true) => integer::<format::Q5K>(isa, operands, self.num_tokens),
                (Dtype::Q6K, true) => integer::<format::Q6K>(isa, operands, self.num_tokens),
                (Dtype::F32 | Dtype::F16 | Dtype::Bf16, true) => {
                    panic!("{} weights have no codes", matrix.dtype)
                }
                (Dtype::F32, false) => float::<format::F32>(isa, operands, self.num_tokens),
                (Dtype::F16, false) => float::<format::F16>(isa, operands, self.num_tokens),
                (Dtype::Bf16, false) => float::<format::Bf16>(isa, operands, self.num_tokens),
                (Dtype::Q8_0, false) => float::<format::Q8_0>(isa, operands, self.num_tokens),
                (Dtype::Q4_0, false) => float::<format::Q4_0>(isa, operands, self.num_tokens),
                (Dtype::Q4_1, false) => float::<format::Q4_1>(isa, operands, self.num_tokens),
                (Dtype::Q5_0, false) => float::<format::Q5_0>(isa, operands, self.num_tokens),
                (Dtype::Q5_1, false) => float::<format::Q5_1>(isa, operands, self.num_tokens),
                (Dtype::Q4K, false) => float::<format::Q4K>(isa, operands, self.num_tokens),
                (Dtype::Q5K, false) => float::<format::Q5K>(isa, operands, self.num_tokens),
                (Dtype::Q6K, false) => float::<format::Q6K>(isa, operands, self.num_tokens),
            }
        }
    }
}

/// The largest token tile an instruction set runs.
const fn max_tokens(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => 16,
        Isa::Avx2 => 4,
        Isa::Portable => 1,
    }
}

/// Cuts `num_tokens` into token tiles and calls `tile(first token, tile width)`. Widths are powers of two; with `coarse`,
/// powers of four. A tile never leaves the block: blocks are 1, 4 or 16 wide.
fn for_each_token_tile(
    isa: Isa,
    num_tokens: usize,
    coarse: bool,
    mut tile: impl FnMut(usize, usize),
) {
    let mut first = 0;
    while first < num_tokens {
        let mut width = (num_tokens - first)
            .next_power_of_two()
            .min(max_tokens(isa));
        if coarse && !width.trailing_zeros().is_multiple_of(2) {
            width *= 2;
        }
        tile(first, width);
        first += width;
    }
}

unsafe fn integer<W: Quantized>(isa: Isa, operands: Operands, num_tokens: usize) {
    for_each_token_tile(isa, num_tokens, false, |first, width| {
        // SAFETY: the caller's contract; `first + width` is within the block.
        unsafe {
            let operands = operands.skip_tokens(first);
            match width {
                1 => run(isa, IntegerTile::<W, 1>(operands, PhantomData)),
                2 => run(isa, IntegerTile::<W, 2>(operands, PhantomData)),
                4 => run(isa, IntegerTile::<W, 4>(operands, PhantomData)),
                8 => run(isa, IntegerTile::<W, 8>(operands, PhantomData)),
                _ => run(isa, IntegerTile::<W, 16>(operands, PhantomData)),
            }
        }
    });
}

/// Coarser than [`integer`]: this arithmetic is for checking and for float checkpoints, and every width costs compile time.
unsafe fn float<W: Format>(isa: Isa, operands: Operands, num_tokens: usize) {
    for_each_token_tile(isa, num_tokens, true, |first, width| {
        // SAFETY: as in `integer`.
        unsafe {
            let operands = operands.skip_tokens(first);
            match width {
                1 => run(isa, FloatTile::<W, 1, 4>(operands, PhantomData)),
                4 => run(isa, FloatTile::<W, 4, 1>(operands, PhantomData)),
                _ => run(isa, FloatTile::<W, 16, 1>(operands, PhantomData)),
            }
        }
    });
}

impl Operands {
    /// The same product without the first `token` tokens.
    unsafe fn skip_tokens(mut self, token: usize) -> Self {
        // Null stays unused; wrapping arithmetic keeps it defined.
        self.codes = self.codes.wrapping_add(token * GROUP);
        self.meta = self.meta.wrapping_add(token);
        self.values = self.values.wrapping_add(token);
        // SAFETY: `token` is below the block's width, and `out` has a row for each.
        self.out = unsafe { self.out.add(token * self.stride) };
        self
    }
}

/// The integer product of one token tile of `M`.
struct IntegerTile<W, const M: usize>(Operands, PhantomData<W>);

impl<W: Quantized, const M: usize> Kernel for IntegerTile<W, M> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if const { M > S::MAX_TOKENS } {
            unreachable!("token tiles are cut to fit the instruction set");
        }
        let o = self.0;
        for tile in 0..o.num_tiles {
            // SAFETY: the tile, the block's groups and the rows of `out` are in bounds, by `TileProduct::run`.
            unsafe {
                let mut acc = [S::splat(0.0); M];
                let mut weights = o.weights.add(tile * o.tile_bytes);
                let mut group = 0;
                while group < o.groups {
                    let header = weights;
                    weights = weights.add(W::HEADER);
                    for _ in 0..W::SUPER {
                        let codes = o.codes.add(group * o.width * GROUP);
                        let meta = o.meta.add(group * o.width * META);
                        integer_group::<S, W, M>(&mut acc, header, weights, codes, meta, o.width);
                        weights = weights.add(W::BYTES);
                        group += 1;
                    }
                }
                unroll!(m < M of 16 => { S::store(o.out.add(m * o.stride + tile * LANES), acc[m]); });
            }
        }
    }
}

/// One group of 32 columns for a token tile.
#[inline(always)]
unsafe fn integer_group<S: Simd, W: Quantized, const M: usize>(
    acc: &mut [S::F; M],
    header: *const u8,
    group: *const u8,
    acts: *const i8,
    meta: *const u32,
    width: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let weights = W::codes::<S>(group);
        let low = W::scale::<S>(header, group, 0);
        let high = if W::HALVES {
            W::scale::<S>(header, group, 1)
        } else {
            low
        };
        let min = if W::CENTER.is_none() {
            W::min::<S>(header, group)
        } else {
            low
        };
        unroll!(m < M of 16 => {
            let acts = acts.add(m * GROUP);
            let act_scale = S::splat(f32::from_bits(*meta.add(m)));
            if W::HALVES {
                let sum_low = *meta.add(3 * width + m) as i32;
                let sum_high = (*meta.add(2 * width + m) as i32).wrapping_sub(sum_low);
                let first = dot_steps::<S, W, 0, { STEPS / 2 }>(&weights, acts, sum_low);
                let second = dot_steps::<S, W, { STEPS / 2 }, STEPS>(&weights, acts, sum_high);
                acc[m] = S::fma(S::mul(S::to_f32(first), low), act_scale, acc[m]);
                acc[m] = S::fma(S::mul(S::to_f32(second), high), act_scale, acc[m]);
            } else {
                let sum = *meta.add(2 * width + m) as i32;
                let dot = dot_steps::<S, W, 0, STEPS>(&weights, acts, sum);
                acc[m] = S::fma(S::mul(S::to_f32(dot), low), act_scale, acc[m]);
            }
            if W::CENTER.is_none() {
                acc[m] = S::fma(min, S::splat(f32::from_bits(*meta.add(width + m))), acc[m]);
            }
        });
    }
}

/// Σ over steps `FROM..TO` of (code - center) · a, exactly; `sum` is Σ a over the same columns.
#[inline(always)]
unsafe fn dot_steps<S: Simd, W: Quantized, const FROM: usize, const TO: usize>(
    weights: &[S::C; STEPS],
    acts: *const i8,
    sum: i32,
) -> S::I {
    // SAFETY: the caller's contract: 32 codes of one token.
    unsafe {
        let mut dot = match W::CENTER {
            Some(_) if W::WIDE && S::WIDE_IS_SIGNED => S::splat_i32(0),
            Some(shift) => S::splat_i32(sum.wrapping_neg() << shift),
            None => S::splat_i32(0),
        };
        let mut step = FROM;
        while step < TO {
            let acts = acts.add(4 * step);
            dot = if W::WIDE {
                S::dot_wide(dot, weights[step], acts)
            } else {
                S::dot(dot, weights[step], acts)
            };
            step += 1;
        }
        dot
    }
}

/// The f32 product of one token tile of `M`, `R` weight tiles side by side (to have enough chains in flight).
struct FloatTile<W, const M: usize, const R: usize>(Operands, PhantomData<W>);

impl<W: Format, const M: usize, const R: usize> Kernel for FloatTile<W, M, R> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if const { M > S::MAX_TOKENS } {
            unreachable!("token tiles are cut to fit the instruction set");
        }
        let o = self.0;
        let mut tile = 0;
        // SAFETY: tiles, groups and rows of `out` are in bounds, by `TileProduct::run`.
        unsafe {
            while tile + R <= o.num_tiles {
                float_tiles::<S, W, M, R>(&o, tile);
                tile += R;
            }
            while tile < o.num_tiles {
                float_tiles::<S, W, M, 1>(&o, tile);
                tile += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn float_tiles<S: Simd, W: Format, const M: usize, const R: usize>(
    o: &Operands,
    tile: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [[S::splat(0.0); M]; R];
        let mut header = o.weights.add(tile * o.tile_bytes);
        let mut values = o.values;
        for group in 0..o.groups {
            if group > 0 && group.is_multiple_of(W::SUPER) {
                header = header.add(W::HEADER + W::SUPER * W::BYTES);
            }
            let offset = W::HEADER + group % W::SUPER * W::BYTES;
            let mut decoded = [W::decode::<S>(header, header.add(offset)); R];
            unroll!(r < R => {
                if r > 0 {
                    let header = header.add(r * o.tile_bytes);
                    decoded[r] = W::decode::<S>(header, header.add(offset));
                }
            });
            for column in 0..GROUP {
                unroll!(r < R => {
                    let weight = W::value::<S>(&decoded[r], column);
                    unroll!(m < M of 16 => { acc[r][m] = S::fma(weight, S::splat(*values.add(m)), acc[r][m]); });
                });
                values = values.add(o.width);
            }
        }
        unroll!(r < R => {
            unroll!(m < M of 16 => { S::store(o.out.add(m * o.stride + (tile + r) * LANES), acc[r][m]); });
        });
    }
}

#[cfg(test)]
mod tests;
