//! swiglu against f64 on the host.

use izar_kernels::{Matrix, swiglu};

use crate::{Gpu, POISON, gpu, relative_error};

fn check(gpu: &mut Gpu, tokens: u32, width: u32) {
    let (x_stride, y_stride) = (2 * width + 8, width + 16);
    let x = gpu.random((tokens * x_stride) as usize, 16.0);
    let y = gpu.poisoned(((tokens + 1) * y_stride) as usize);
    let x_view = Matrix::strided(&x, 0, tokens, 2 * width, x_stride).unwrap();
    let y_view = Matrix::strided(&y, 0, tokens, width, y_stride).unwrap();
    swiglu(&gpu.stream, x_view, y_view).unwrap();
    let (x, y) = (gpu.read(&x), gpu.read(&y));
    for (token, got) in y.chunks(y_stride as usize).enumerate() {
        let written = if token < tokens as usize {
            width as usize
        } else {
            0
        };
        let rest = &got[written..];
        assert!(rest.iter().all(|v| v.to_bits() == POISON), "token {token}");
        if written == 0 {
            continue;
        }
        let row = &x[token * x_stride as usize..];
        let (gate, up) = row[..2 * written].split_at(written);
        let wanted = gate.iter().zip(up).map(|(gate, up)| {
            let gate = gate.to_f64();
            gate / (1.0 + (-gate).exp()) * up.to_f64()
        });
        let error = relative_error(got[..written].iter().map(|v| v.to_f64()), wanted);
        // Half a unit in the last place of bf16.
        assert!(
            error < 4e-3,
            "[{tokens}, {width}] token {token}: {error:.2e}"
        );
    }
}

#[test]
fn every_width_of_the_models_is_right() {
    let Some(mut gpu) = gpu() else { return };
    // Qwen3-30B-A3B, Llama-2-7B and -13B, Llama-3-8B, Phi-4, Qwen2.5-7B, -14B, -32B, Qwen3-32B.
    for width in [768, 11008, 13824, 14336, 17920, 18944, 27648, 25600] {
        check(&mut gpu, 3, width);
    }
    for width in [8, 2040, 2048, 2056] {
        for tokens in [1, 65, 700] {
            check(&mut gpu, tokens, width);
        }
    }
}

#[test]
fn large_gates_saturate_and_do_not_overflow() {
    let Some(mut gpu) = gpu() else { return };
    let x = gpu.random(2 * 1024, 4000.0);
    let y = gpu.poisoned(1024);
    let (x_view, y_view) = (
        Matrix::dense(&x, 1, 2048).unwrap(),
        Matrix::dense(&y, 1, 1024).unwrap(),
    );
    swiglu(&gpu.stream, x_view, y_view).unwrap();
    assert!(gpu.read(&y).iter().all(|value| value.is_finite()));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let Some(mut gpu) = gpu() else { return };
    let buffer = gpu.random(4096, 1.0);
    let view = |rows, width| Matrix::dense(&buffer, rows, width).unwrap();
    assert!(swiglu(&gpu.stream, view(2, 64), view(2, 40)).is_err());
    assert!(swiglu(&gpu.stream, view(2, 64), view(3, 32)).is_err());
    assert!(swiglu(&gpu.stream, view(2, 24), view(2, 12)).is_err());
}
