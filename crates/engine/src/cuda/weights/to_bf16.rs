//! Elements of a checkpoint, rounded to bf16: to nearest, ties to even, NaN stays NaN.

use half::bf16;
use izar_model::{Dtype, TensorView};

/// Elements decoded at a time from a quantised tensor: a few rows' worth, so that they stay in the first cache.
const CHUNK: usize = 4096;

/// Decodes `view` into `out`, which has room for exactly its elements.
///
/// # Panics
/// If it has not.
pub(super) fn convert(view: &TensorView<'_>, out: &mut [bf16]) {
    assert_eq!(out.len(), view.rows * view.cols, "elements of {view:?}");
    match view.dtype {
        Dtype::Bf16 => bytemuck::cast_slice_mut(out).copy_from_slice(view.data),
        Dtype::F16 => {
            let (elements, _) = view.data.as_chunks::<2>();
            for (out, bytes) in out.iter_mut().zip(elements) {
                *out = of_f32_bits(f16_to_f32_bits(u16::from_le_bytes(*bytes)));
            }
        }
        Dtype::F32 => {
            let (elements, _) = view.data.as_chunks::<4>();
            for (out, bytes) in out.iter_mut().zip(elements) {
                *out = of_f32_bits(u32::from_le_bytes(*bytes));
            }
        }
        quantised => convert_blocks(quantised, view.data, out),
    }
}

fn convert_blocks(dtype: Dtype, data: &[u8], out: &mut [bf16]) {
    let mut decoded = [0.0; CHUNK];
    let bytes = CHUNK / dtype.block_len() * dtype.block_bytes();
    for (out, data) in out.chunks_mut(CHUNK).zip(data.chunks(bytes)) {
        let decoded = &mut decoded[..out.len()];
        dtype.dequantize(data, decoded);
        for (out, value) in out.iter_mut().zip(decoded) {
            *out = of_f32_bits(value.to_bits());
        }
    }
}

/// Without branches, so that loops over it use vector instructions.
#[inline(always)]
fn of_f32_bits(bits: u32) -> bf16 {
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    let is_nan = bits & 0x7FFF_FFFF > 0x7F80_0000;
    bf16::from_bits(if is_nan { quiet } else { rounded } as u16)
}

/// As above. Subnormals are normalised by a multiplication, which is exact.
#[inline(always)]
fn f16_to_f32_bits(half: u16) -> u32 {
    let half = u32::from(half);
    let (sign, magnitude) = ((half & 0x8000) << 16, (half & 0x7FFF) << 13);
    // 2^112: the distance of the two exponents' biases.
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = magnitude | 0x7F80_0000;
    sign | if magnitude >= 0x0F80_0000 {
        special
    } else {
        finite
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn every_f16_becomes_the_nearest_bf16() {
        for bits in 0..=u16::MAX {
            let wanted = f16::from_bits(bits).to_f32();
            let got = f32::from_bits(f16_to_f32_bits(bits));
            assert!(
                got == wanted || (got.is_nan() && wanted.is_nan()),
                "{bits:#x}: {got} is not {wanted}"
            );
            let rounded = of_f32_bits(got.to_bits());
            let wanted = bf16::from_f32(wanted);
            assert!(
                rounded == wanted || (rounded.is_nan() && wanted.is_nan()),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn f32_rounds_to_nearest_with_ties_to_even() {
        let mut state = 1u32;
        for _ in 0..1_000_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            for bits in [
                state,
                state & 0xFFFF_0000 | 0x8000,
                state & 0xFFFF_0000 | 0x7FFF,
            ] {
                let wanted = bf16::from_f32(f32::from_bits(bits));
                let got = of_f32_bits(bits);
                assert!(
                    got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan()),
                    "{bits:#x}"
                );
            }
        }
    }

    #[test]
    fn quantised_rows_longer_than_a_chunk_decode_like_their_reference() {
        for dtype in Dtype::ALL {
            let (rows, cols) = (5, 2304);
            let bytes = rows * dtype.row_bytes(cols).unwrap();
            // Scales of any bits: NaN and infinities decode the same, too.
            let data: Vec<u8> = (0..bytes).map(|i| (i * 37 % 251) as u8).collect();
            let view = TensorView {
                name: "t",
                dtype,
                rows,
                cols,
                data: &data,
            };
            let mut got = vec![bf16::ZERO; rows * cols];
            convert(&view, &mut got);
            for (got, wanted) in got.iter().zip(view.to_f32()) {
                let wanted = bf16::from_f32(wanted);
                assert!(
                    *got == wanted || (got.is_nan() && wanted.is_nan()),
                    "{dtype}"
                );
            }
        }
    }
}
