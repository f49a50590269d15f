//! linear against f64 on the device, and its launches from graphs.

use half::bf16;
use izar_kernels::{
    DeviceBuffer, Graph, Linear, LinearError, LinearProjection, Matrix, Output,
    reference_projection,
};

use crate::{Gpu, POISON, gpu, relative_error};

/// bf16 rounding of the outputs; of f32 ones, of the order of summation.
const TOLERANCE: f64 = 4e-3;
const TOLERANCE_F32: f64 = 2e-5;

#[derive(Debug, Clone, Copy)]
struct Case {
    rows: u32,
    depth: u32,
    tokens: u32,
    bias: bool,
    residual: bool,
}

impl Gpu {
    fn check_linear(&mut self, linear: &Linear, case: Case) {
        let Case {
            rows,
            depth,
            tokens,
            ..
        } = case;
        let (x_stride, y_stride) = (depth + 16, rows + 8);
        let weight = self.random((rows * depth) as usize, 3.4 / (depth as f32).sqrt());
        let x = self.random((tokens * x_stride) as usize, 2.0);
        let bias = self.random(rows as usize, 2.0);
        let skip = self.random((tokens * y_stride) as usize, 2.0);
        let y = self.poisoned(((tokens + 1) * y_stride) as usize);
        let reference =
            DeviceBuffer::<f64>::new(self.stream.device(), (tokens * rows) as usize).unwrap();
        let weight_view = Matrix::dense(&weight, rows, depth).unwrap();
        let x_view = Matrix::strided(&x, 0, tokens, depth, x_stride).unwrap();
        let view = |buffer| Matrix::strided(buffer, 0, tokens, rows, y_stride).unwrap();
        let projection = LinearProjection {
            weight: weight_view,
            x: x_view,
            y: view(&y).into(),
            bias: case.bias.then(|| Matrix::dense(&bias, 1, rows).unwrap()),
            residual: case.residual.then(|| view(&skip)),
        };
        linear.project(&self.stream, &projection).unwrap();
        reference_projection(&self.stream, weight_view, x_view, &reference, false).unwrap();
        let (got, bias, skip) = (self.read(&y), self.read(&bias), self.read(&skip));
        let mut wanted = vec![0.0; reference.len()];
        reference.read(&self.stream, &mut wanted).unwrap();
        let (stride, rows) = (y_stride as usize, rows as usize);
        for (i, wanted) in wanted.iter_mut().enumerate() {
            let (token, row) = (i / rows, i % rows);
            *wanted += if case.bias { bias[row].to_f64() } else { 0.0 };
            *wanted += if case.residual {
                skip[token * stride + row].to_f64()
            } else {
                0.0
            };
        }
        for (token, got) in got.chunks(stride).enumerate() {
            let written = if token < tokens as usize { rows } else { 0 };
            let poisoned = got[written..].iter().all(|value| value.to_bits() == POISON);
            assert!(poisoned, "{case:?}: wrote outside token {token}");
        }
        let got = got.chunks(stride).take(tokens as usize);
        let got = got.flat_map(|row| row[..rows].iter().map(|value| value.to_f64()));
        let error = relative_error(got, wanted);
        assert!(error < TOLERANCE, "{case:?}: {error:.2e}");
    }
}

#[test]
fn layers_of_the_models_are_right() {
    let Some(mut gpu) = gpu() else { return };
    let linear = Linear::new(gpu.stream.device(), &gpu.stream).unwrap();
    eprintln!("{linear:?}");
    // Rows and depth of qkv, output, gate_up, down.
    let layers = [
        [(12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008)], // Llama-2-7B
        [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)],  // Llama-3-8B
        [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)],  // Qwen2.5-7B
        [(7680, 5120), (5120, 5120), (35840, 5120), (5120, 17920)],  // Phi-4
        [(10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)], // Qwen3-32B
    ];
    for (index, [qkv, output, gate_up, down]) in layers.into_iter().enumerate() {
        // The oracle is one thread an output: few tokens for all, many for one model.
        let tokens: &[u32] = if index == 1 { &[65, 96, 300] } else { &[72] };
        for &tokens in tokens {
            let mut check = |(rows, depth), bias, residual| {
                let case = Case {
                    rows,
                    depth,
                    tokens,
                    bias,
                    residual,
                };
                gpu.check_linear(&linear, case);
            };
            check(qkv, true, false);
            check(output, false, true);
            check(gate_up, false, false);
            check(down, true, true);
        }
    }
}

#[test]
fn token_counts_and_shapes_off_every_tile_edge_are_right() {
    let Some(mut gpu) = gpu() else { return };
    let linear = Linear::new(gpu.stream.device(), &gpu.stream).unwrap();
    for tokens in [1, 7, 64, 65, 127, 128, 129, 257, 1000] {
        for (rows, depth) in [(8, 8), (264, 520), (1000, 1032)] {
            for (bias, residual) in [(false, false), (true, false), (false, true), (true, true)] {
                gpu.check_linear(
                    &linear,
                    Case {
                        rows,
                        depth,
                        tokens,
                        bias,
                        residual,
                    },
                );
            }
        }
    }
}

#[test]
fn logits_are_f32() {
    let Some(mut gpu) = gpu() else { return };
    let linear = Linear::new(gpu.stream.device(), &gpu.stream).unwrap();
    for (rows, depth, tokens) in [(1000, 576, 65), (32064, 3072, 70)] {
        let weight = gpu.random((rows * depth) as usize, 3.4 / (depth as f32).sqrt());
        let x = gpu.random((tokens * depth) as usize, 2.0);
        let y = DeviceBuffer::<f32>::new(gpu.stream.device(), (tokens * rows) as usize).unwrap();
        let reference = DeviceBuffer::<f64>::new(gpu.stream.device(), y.len()).unwrap();
        let (weight, x) = (
            Matrix::dense(&weight, rows, depth).unwrap(),
            Matrix::dense(&x, tokens, depth).unwrap(),
        );
        let projection = LinearProjection {
            weight,
            x,
            y: Matrix::dense(&y, tokens, rows).unwrap().into(),
            bias: None,
            residual: None,
        };
        linear.project(&gpu.stream, &projection).unwrap();
        reference_projection(&gpu.stream, weight, x, &reference, false).unwrap();
        let (mut got, mut wanted) = (vec![0.0; y.len()], vec![0.0; y.len()]);
        y.read(&gpu.stream, &mut got).unwrap();
        reference.read(&gpu.stream, &mut wanted).unwrap();
        let error = relative_error(got.into_iter().map(f64::from), wanted);
        assert!(
            error < TOLERANCE_F32,
            "[{tokens}, {rows}, {depth}]: {error:.2e}"
        );
    }
}

#[test]
fn a_captured_chain_can_be_launched_from_the_device_and_repeats_its_bits() {
    let Some(mut gpu) = gpu() else { return };
    let linear = Linear::new(gpu.stream.device(), &gpu.stream).unwrap();
    let (tokens, size) = (200, 2048);
    let weights: Vec<_> = (0..6)
        .map(|_| gpu.random((size * size) as usize, 0.08))
        .collect();
    let start = gpu.random((tokens * size) as usize, 2.0);
    let start = gpu.read(&start);
    let (a, b) = (gpu.poisoned(start.len()), gpu.poisoned(start.len()));
    let graph = Graph::capture(&gpu.stream, |stream| {
        for (i, weight) in weights.iter().enumerate() {
            let (x, y) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let y = Matrix::dense(y, tokens, size).unwrap();
            let projection = LinearProjection {
                weight: Matrix::dense(weight, size, size).unwrap(),
                x: Matrix::dense(x, tokens, size).unwrap(),
                y: y.into(),
                bias: None,
                residual: Some(y),
            };
            linear.project(stream, &projection)?;
        }
        Ok::<_, LinearError>(())
    })
    .unwrap();
    eprintln!(
        "{} nodes for {} products",
        graph.num_nodes().unwrap(),
        weights.len()
    );
    let exec = graph.instantiate_for_device(&gpu.stream).unwrap();
    let mut first = None::<Vec<bf16>>;
    for launch in 0..20 {
        a.write(&gpu.stream, &start).unwrap();
        b.write(&gpu.stream, &start).unwrap();
        // SAFETY: every captured buffer lives to the end of the test.
        unsafe { exec.launch(&gpu.stream) }.unwrap();
        let got = gpu.read(&a);
        assert!(got.iter().all(|value| value.is_finite()));
        assert_eq!(
            first.get_or_insert_with(|| got.clone()),
            &got,
            "launch {launch}"
        );
    }
}

#[test]
fn tuning_keeps_the_result() {
    let Some(mut gpu) = gpu() else { return };
    let linear = Linear::new(gpu.stream.device(), &gpu.stream).unwrap();
    let weight = gpu.random(1024 * 512, 0.2);
    let x = gpu.random(96 * 512, 2.0);
    let y = gpu.poisoned(96 * 1024);
    let projection = LinearProjection {
        weight: Matrix::dense(&weight, 1024, 512).unwrap(),
        x: Matrix::dense(&x, 96, 512).unwrap(),
        y: Output::Bf16(Matrix::dense(&y, 96, 1024).unwrap()),
        bias: None,
        residual: None,
    };
    linear.project(&gpu.stream, &projection).unwrap();
    let before = gpu.read(&y);
    let times = linear.tune(&gpu.stream, &projection, 8, 3).unwrap();
    eprintln!("{times:?} us");
    y.fill_bytes(&gpu.stream, 0xFF).unwrap();
    linear.project(&gpu.stream, &projection).unwrap();
    let (before, after) = (before.into_iter(), gpu.read(&y).into_iter());
    let error = relative_error(after.map(|v| v.to_f64()), before.map(|v| v.to_f64()));
    assert!(error < TOLERANCE, "{error:.2e}");
}

#[test]
fn wrong_shapes_strides_and_outputs_are_refused() {
    let Some(mut gpu) = gpu() else { return };
    let linear = Linear::new(gpu.stream.device(), &gpu.stream).unwrap();
    let buffer = gpu.random(1 << 16, 1.0);
    let floats = DeviceBuffer::<f32>::new(gpu.stream.device(), 1 << 16).unwrap();
    let view =
        |offset, rows, cols, stride| Matrix::strided(&buffer, offset, rows, cols, stride).unwrap();
    let good = LinearProjection {
        weight: view(0, 64, 64, 64),
        x: view(0, 70, 64, 64),
        y: view(0, 70, 64, 64).into(),
        bias: None,
        residual: None,
    };
    let refused = |projection| linear.project(&gpu.stream, &projection).unwrap_err();
    type Error = LinearError;
    let narrow = LinearProjection {
        x: view(0, 70, 56, 64),
        ..good
    };
    assert!(matches!(refused(narrow), Error::Shape { matrix: "x", .. }));
    let short = LinearProjection {
        y: view(0, 69, 64, 64).into(),
        ..good
    };
    assert!(matches!(refused(short), Error::Shape { matrix: "y", .. }));
    let long_bias = LinearProjection {
        bias: Some(view(0, 1, 72, 72)),
        ..good
    };
    assert!(matches!(
        refused(long_bias),
        Error::Shape { matrix: "bias", .. }
    ));
    let shifted = LinearProjection {
        x: view(4, 70, 64, 64),
        ..good
    };
    assert_eq!(refused(shifted), Error::Alignment("x"));
    let gaps = LinearProjection {
        weight: view(0, 64, 64, 72),
        ..good
    };
    assert_eq!(refused(gaps), Error::Alignment("weight"));
    let logits = LinearProjection {
        y: Matrix::dense(&floats, 70, 64).unwrap().into(),
        bias: Some(view(0, 1, 64, 64)),
        ..good
    };
    assert_eq!(refused(logits), Error::F32Epilogue);
}
