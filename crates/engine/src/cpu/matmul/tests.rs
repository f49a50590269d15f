//! Kernels against references computed from the checkpoint's own rows, on every instruction set of the machine.

use super::*;
use crate::cpu::acts::{Acts, Precision, block_width};
use crate::cpu::memory::Buffer;
use crate::cpu::testing::{StoreRow, pack, random_tensor, random_values};

const QUANTIZED: [Dtype; 8] = [
    Dtype::Q8_0,
    Dtype::Q4_0,
    Dtype::Q4_1,
    Dtype::Q5_0,
    Dtype::Q5_1,
    Dtype::Q4K,
    Dtype::Q5K,
    Dtype::Q6K,
];

/// Stores `num_tokens` random rows and multiplies; returns `[token][row]`.
fn product(
    isa: Isa,
    matrix: &Matrix,
    arena: &mut Buffer<u8>,
    rows: &[Vec<f32>],
    integer: bool,
) -> Vec<Vec<f32>> {
    let precision = Precision {
        codes: integer,
        values: !integer,
    };
    let mut acts = Acts::new(rows.len(), matrix.cols, precision).unwrap();
    let view = acts.view(block_width(rows.len()));
    for (token, row) in rows.iter().enumerate() {
        // SAFETY: one thread, a detected instruction set.
        unsafe { run(isa, StoreRow { view, token, row }) };
    }
    let stride = matrix.num_tiles() * LANES;
    let mut out = vec![0.0; MAX_WIDTH * stride];
    let mut results = Vec::new();
    for (block, tokens) in rows.chunks(view.width).enumerate() {
        TileProduct {
            matrix,
            weights: arena.shared(),
            first_tile: 0,
            num_tiles: matrix.num_tiles(),
            acts: &view,
            block,
            num_tokens: tokens.len(),
            integer,
            out: &mut out,
            stride,
        }
        .run(isa);
        results.extend((0..tokens.len()).map(|m| out[m * stride..][..matrix.rows].to_vec()));
    }
    results
}

fn random_rows(num_tokens: usize, cols: usize) -> Vec<Vec<f32>> {
    (0..num_tokens)
        .map(|token| random_values(cols, 100 + token as u64))
        .collect()
}

fn dequantized(view: &izar_model::TensorView<'_>) -> Vec<Vec<f32>> {
    (0..view.rows)
        .map(|row| {
            let mut out = vec![0.0; view.cols];
            view.dequantize_row(row, &mut out);
            out
        })
        .collect()
}

#[test]
fn f32_products_are_the_ascending_chain_of_multiply_adds() {
    for dtype in Dtype::ALL {
        let data = random_tensor(dtype, 37, 512, 11);
        let view = data.view();
        let (matrix, mut arena) = pack(&view, 37);
        let weights = dequantized(&view);
        for num_tokens in [1, 2, 3, 7, 8, 16, 21] {
            let rows = random_rows(num_tokens, 512);
            for isa in Isa::available() {
                let got = product(isa, &matrix, &mut arena, &rows, false);
                for (token, row) in rows.iter().enumerate() {
                    for (r, weight) in weights.iter().enumerate() {
                        let expected = weight
                            .iter()
                            .zip(row)
                            .fold(0.0f32, |acc, (w, x)| w.mul_add(*x, acc));
                        assert_eq!(
                            got[token][r].to_bits(),
                            expected.to_bits(),
                            "{dtype}, {num_tokens} tokens, {}: token {token} row {r}: {} is not {expected}",
                            isa.name(),
                            got[token][r],
                        );
                    }
                }
            }
        }
    }
}

/// What the integer kernels should give, from dequantised weights and re-quantised activations in f64.
fn integer_reference(weights: &[f32], row: &[f32]) -> f64 {
    row.chunks(GROUP)
        .zip(weights.chunks(GROUP))
        .map(|(x, w)| {
            let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let scale = f64::from(largest / 127.0);
            let code = |x: f32| f64::from((x * (127.0 / largest)).round_ties_even());
            x.iter()
                .zip(w)
                .map(|(x, w)| code(*x) * scale * f64::from(*w))
                .sum::<f64>()
        })
        .sum()
}

#[test]
fn integer_products_equal_the_product_with_rounded_activations() {
    for dtype in QUANTIZED {
        let data = random_tensor(dtype, 37, 512, 13);
        let view = data.view();
        let (matrix, mut arena) = pack(&view, 37);
        let weights = dequantized(&view);
        let rows = random_rows(5, 512);
        for isa in Isa::available() {
            let got = product(isa, &matrix, &mut arena, &rows, true);
            for (token, row) in rows.iter().enumerate() {
                for (r, weight) in weights.iter().enumerate() {
                    let expected = integer_reference(weight, row);
                    let size: f64 = weight
                        .iter()
                        .zip(row)
                        .map(|(w, x)| f64::from((w * x).abs()))
                        .sum();
                    let error = (f64::from(got[token][r]) - expected).abs();
                    assert!(
                        error <= size * 1e-5,
                        "{dtype} on {}: {} is not {expected}",
                        isa.name(),
                        got[token][r]
                    );
                }
            }
        }
    }
}

#[test]
fn integer_products_are_the_same_bits_on_every_instruction_set_and_in_any_batch() {
    for dtype in QUANTIZED {
        let data = random_tensor(dtype, 48, 768, 17);
        let (matrix, mut arena) = pack(&data.view(), 48);
        let rows = random_rows(19, 768);
        let alone: Vec<Vec<f32>> = rows
            .iter()
            .map(|row| {
                product(
                    Isa::Portable,
                    &matrix,
                    &mut arena,
                    std::slice::from_ref(row),
                    true,
                )
                .remove(0)
            })
            .collect();
        for isa in Isa::available() {
            for num_tokens in [1, 2, 5, 8, 13, 16, 19] {
                let got = product(isa, &matrix, &mut arena, &rows[..num_tokens], true);
                for (token, got) in got.iter().enumerate() {
                    let same = got
                        .iter()
                        .zip(&alone[token])
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(
                        same,
                        "{dtype}, {num_tokens} tokens on {}: token {token} differs",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
fn extreme_codes_do_not_saturate() {
    for dtype in QUANTIZED {
        let data = crate::cpu::testing::extreme_tensor(dtype, 16, 256);
        let view = data.view();
        let (matrix, mut arena) = pack(&view, 16);
        let weights = dequantized(&view);
        for sign in [1.0, -1.0] {
            let rows = vec![vec![sign; 256]];
            for isa in Isa::available() {
                let got = product(isa, &matrix, &mut arena, &rows, true);
                for (r, weight) in weights.iter().enumerate() {
                    let expected: f32 = weight.iter().sum::<f32>() * sign;
                    assert!(
                        (got[0][r] - expected).abs() <= expected.abs() * 1e-4,
                        "{dtype} on {}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
fn a_bad_activation_reaches_every_output() {
    for bad in [f32::NAN, f32::INFINITY] {
        let data = random_tensor(Dtype::Q4_1, 16, 256, 19);
        let (matrix, mut arena) = pack(&data.view(), 16);
        let mut rows = random_rows(2, 256);
        rows[0][100] = bad;
        for isa in Isa::available() {
            let got = product(isa, &matrix, &mut arena, &rows, true);
            assert!(got[0].iter().all(|x| x.is_nan()) && got[1].iter().all(|x| x.is_finite()));
        }
    }
}
