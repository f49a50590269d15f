//! rms_norm against f64 on the host.

use izar_kernels::{Matrix, RmsNorm, rms_norm};

use crate::{Gpu, POISON, gpu, relative_error};

const EPSILON: f32 = 1e-5;

fn check(gpu: &mut Gpu, tokens: u32, hidden: u32, with_residual: bool) {
    let (n, h) = (tokens as usize, hidden as usize);
    let stride = hidden + 8;
    let x = gpu.random(n * stride as usize, 4.0);
    let residual = gpu.random(n * h, 4.0);
    let weight = gpu.random(h, 2.0);
    let y = gpu.poisoned((n + 1) * h);
    let (x_host, residual_host, weight_host) =
        (gpu.read(&x), gpu.read(&residual), gpu.read(&weight));
    let norm = RmsNorm {
        x: Matrix::strided(&x, 0, tokens, hidden, stride).unwrap(),
        residual: with_residual.then(|| Matrix::dense(&residual, tokens, hidden).unwrap()),
        weight: Matrix::dense(&weight, 1, hidden).unwrap(),
        y: Matrix::dense(&y, tokens, hidden).unwrap(),
        epsilon: EPSILON,
    };
    rms_norm(&gpu.stream, &norm).unwrap();
    let (got, kept) = (gpu.read(&y), gpu.read(&residual));
    for token in 0..n {
        let row: Vec<f64> = (0..h)
            .map(|i| {
                let sum = x_host[token * stride as usize + i].to_f32();
                let skip = residual_host[token * h + i].to_f32();
                let value = half::bf16::from_f32(if with_residual { sum + skip } else { sum });
                let wanted = if with_residual {
                    value
                } else {
                    residual_host[token * h + i]
                };
                assert_eq!(kept[token * h + i], wanted, "residual {token}, {i}");
                value.to_f64()
            })
            .collect();
        let mean = row.iter().map(|v| v * v).sum::<f64>() / h as f64;
        let inverse = 1.0 / (mean + f64::from(EPSILON)).sqrt();
        let wanted = row
            .iter()
            .zip(&weight_host)
            .map(|(v, w)| v * inverse * w.to_f64());
        let got = got[token * h..(token + 1) * h].iter().map(|v| v.to_f64());
        let error = relative_error(got, wanted);
        // Half a unit in the last place of bf16.
        assert!(
            error < 4e-3,
            "[{tokens}, {hidden}] token {token}: {error:.2e}"
        );
    }
    assert!(
        got[n * h..].iter().all(|v| v.to_bits() == POISON),
        "wrote past y"
    );
}

#[test]
fn rows_of_every_length_are_normalised_with_and_without_residual() {
    let Some(mut gpu) = gpu() else { return };
    for hidden in [8, 64, 2040, 2048, 3584, 4096, 5120, 8184, 8192] {
        for tokens in [1, 3, 64] {
            check(&mut gpu, tokens, hidden, false);
            check(&mut gpu, tokens, hidden, true);
        }
    }
}

#[test]
fn rows_that_the_kernel_has_no_code_for_are_refused() {
    let Some(mut gpu) = gpu() else { return };
    for hidden in [4, 12, 8200] {
        let x = gpu.random(hidden as usize, 1.0);
        let row = Matrix::dense(&x, 1, hidden).unwrap();
        let norm = RmsNorm {
            x: row,
            residual: None,
            weight: row,
            y: row,
            epsilon: EPSILON,
        };
        assert!(rms_norm(&gpu.stream, &norm).is_err(), "{hidden}");
    }
}
