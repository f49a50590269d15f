//! decode_projection against f64 on the device, and launches from graphs.

use izar_kernels::{
    DecodeProjection, DecodeProjectionError, DeviceBuffer, Epilogue, Graph, Matrix,
    decode_projection, reference_projection,
};

use crate::{Gpu, POISON, gpu};

/// ‖out − reference‖ / ‖reference‖ of bf16 outputs: rounding alone gives 1.7e-3 to 2.4e-3.
const TOLERANCE: f64 = 4e-3;

#[derive(Debug, Clone, Copy)]
struct Case {
    rows: u32,
    depth: u32,
    tokens: u32,
    swiglu: bool,
    bias: bool,
    residual: bool,
}

impl Case {
    const fn plain(rows: u32, depth: u32, tokens: u32) -> Self {
        Self {
            rows,
            depth,
            tokens,
            swiglu: false,
            bias: false,
            residual: false,
        }
    }

    fn outputs(self) -> u32 {
        if self.swiglu {
            self.rows / 2
        } else {
            self.rows
        }
    }
}

impl Gpu {
    /// Runs one case and compares; returns the relative error.
    fn check_projection(&mut self, case: Case) -> f64 {
        let Case {
            rows,
            depth,
            tokens,
            swiglu,
            ..
        } = case;
        let outputs = case.outputs();
        // Strides wider than rows, of the parity of the row, and two rows more than y has.
        let (x_stride, y_stride) = (depth + 16, outputs + 2);
        let residual_stride = outputs + 4;
        let weight = self.random((rows * depth) as usize, 3.4 / (depth as f32).sqrt());
        let x = self.random((tokens * x_stride) as usize, 2.0);
        let bias = self.random(rows as usize, 2.0);
        let skip = self.random((tokens * residual_stride) as usize, 2.0);
        let y =
            DeviceBuffer::new(self.stream.device(), ((tokens + 2) * y_stride) as usize).unwrap();
        y.fill_bytes(&self.stream, 0xFF).unwrap();
        let reference =
            DeviceBuffer::<f64>::new(self.stream.device(), (tokens * outputs) as usize).unwrap();

        let weight_view = Matrix::dense(&weight, rows, depth).unwrap();
        let x_view = Matrix::strided(&x, 0, tokens, depth, x_stride).unwrap();
        let skip_view = Matrix::strided(&skip, 0, tokens, outputs, residual_stride).unwrap();
        let epilogue = if swiglu {
            Epilogue::Swiglu
        } else {
            Epilogue::Add {
                bias: case.bias.then(|| Matrix::dense(&bias, 1, rows).unwrap()),
                residual: case.residual.then_some(skip_view),
            }
        };
        let y_view = Matrix::strided(&y, 0, tokens, outputs, y_stride).unwrap();
        let projection = DecodeProjection {
            weight: weight_view,
            x: x_view,
            y: y_view.into(),
            epilogue,
        };
        decode_projection(&self.stream, &projection, &self.projections).unwrap();
        reference_projection(&self.stream, weight_view, x_view, &reference, swiglu).unwrap();

        let got = self.read(&y);
        let (bias, skip) = (self.read(&bias), self.read(&skip));
        let mut wanted = vec![0.0; reference.len()];
        reference.read(&self.stream, &mut wanted).unwrap();
        let (mut error, mut norm) = (0.0, 0.0);
        for (i, got) in got.iter().enumerate() {
            let (token, output) = (i as u32 / y_stride, i as u32 % y_stride);
            if token >= tokens || output >= outputs {
                assert_eq!(
                    got.to_bits(),
                    POISON,
                    "{case:?} wrote outside y: {token}, {output}"
                );
                continue;
            }
            let mut want = wanted[(token * outputs + output) as usize];
            if case.bias {
                want += bias[output as usize].to_f64();
            }
            if case.residual {
                want += skip[(token * residual_stride + output) as usize].to_f64();
            }
            assert!(got.is_finite(), "{case:?}: {got} at {token}, {output}");
            error += (got.to_f64() - want).powi(2);
            norm += want.powi(2);
        }
        let error = (error / norm).sqrt();
        assert!(error < TOLERANCE, "{case:?}: relative error {error:.2e}");
        assert!(
            self.projections.is_sound(&self.stream).unwrap(),
            "{case:?}: a part did not come"
        );
        assert!(
            self.projections.is_clean(&self.stream).unwrap(),
            "{case:?}: parts left behind"
        );
        error
    }
}

#[test]
fn every_token_count_is_right_with_every_epilogue() {
    let Some(mut gpu) = gpu() else { return };
    let mut worst = 0.0_f64;
    for tokens in 1..=64 {
        for (bias, residual) in [(false, false), (true, false), (false, true), (true, true)] {
            let case = Case {
                bias,
                residual,
                ..Case::plain(1000, 520, tokens)
            };
            worst = worst.max(gpu.check_projection(case));
        }
        worst = worst.max(gpu.check_projection(Case {
            swiglu: true,
            ..Case::plain(1072, 520, tokens)
        }));
    }
    eprintln!("worst relative error {worst:.2e}");
}

#[test]
fn shapes_off_every_tile_edge_are_right() {
    let Some(mut gpu) = gpu() else { return };
    for tokens in [1, 8, 9, 17, 33, 64] {
        for rows in [1, 2, 7, 63, 64, 65, 129, 1001, 8191] {
            for depth in [8, 56, 64, 72, 1032] {
                gpu.check_projection(Case {
                    bias: true,
                    ..Case::plain(rows, depth, tokens)
                });
            }
        }
        for rows in [16, 48, 64, 80, 2064] {
            gpu.check_projection(Case {
                swiglu: true,
                ..Case::plain(rows, 264, tokens)
            });
        }
    }
}

#[test]
fn logits_are_f32_and_have_the_bits_before_rounding() {
    let Some(mut gpu) = gpu() else { return };
    for (rows, depth) in [(1001, 520), (128_256, 1024)] {
        let weight = gpu.random((rows * depth) as usize, 3.4 / (depth as f32).sqrt());
        for tokens in [1, 8, 9, 17, 31, 40, 64] {
            let x = gpu.random((tokens * depth) as usize, 2.0);
            let bias = gpu.random(rows as usize, 2.0);
            // Rows of both parities, and one row more than y has.
            let stride = rows + 1;
            let len = ((tokens + 1) * stride) as usize;
            let y = DeviceBuffer::<f32>::new(gpu.stream.device(), len).unwrap();
            let rounded = gpu.poisoned(len);
            y.fill_bytes(&gpu.stream, 0xFF).unwrap();
            let plain = DecodeProjection {
                weight: Matrix::dense(&weight, rows, depth).unwrap(),
                x: Matrix::dense(&x, tokens, depth).unwrap(),
                y: Matrix::strided(&y, 0, tokens, rows, stride).unwrap().into(),
                epilogue: Epilogue::Add {
                    bias: (tokens % 2 == 1).then(|| Matrix::dense(&bias, 1, rows).unwrap()),
                    residual: None,
                },
            };
            decode_projection(&gpu.stream, &plain, &gpu.projections).unwrap();
            let in_bf16 = DecodeProjection {
                y: Matrix::strided(&rounded, 0, tokens, rows, stride)
                    .unwrap()
                    .into(),
                ..plain
            };
            decode_projection(&gpu.stream, &in_bf16, &gpu.projections).unwrap();
            let mut got = vec![0.0; len];
            y.read(&gpu.stream, &mut got).unwrap();
            for (i, (got, rounded)) in got.iter().zip(gpu.read(&rounded)).enumerate() {
                let (token, output) = (i as u32 / stride, i as u32 % stride);
                if token >= tokens || output >= rows {
                    assert_eq!(got.to_bits(), u32::MAX, "wrote at {token}, {output}");
                } else {
                    assert_eq!(
                        half::bf16::from_f32(*got),
                        rounded,
                        "{tokens}: {token}, {output}"
                    );
                }
            }
        }
    }
}

#[test]
fn shapes_of_real_layers_are_right() {
    let Some(mut gpu) = gpu() else { return };
    // Llama-3-8B, Qwen2.5-7B, Qwen3-32B: qkv, output, gate_up, down.
    let layers = [
        [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)],
        [(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)],
        [(10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)],
    ];
    for [qkv, output, gate_up, down] in layers {
        for tokens in [1, 8, 16, 31, 64] {
            let case = |(rows, depth)| Case::plain(rows, depth, tokens);
            gpu.check_projection(Case {
                bias: true,
                ..case(qkv)
            });
            gpu.check_projection(Case {
                residual: true,
                ..case(output)
            });
            gpu.check_projection(Case {
                swiglu: true,
                ..case(gate_up)
            });
            gpu.check_projection(Case {
                residual: true,
                ..case(down)
            });
        }
    }
}

#[test]
fn a_tokens_result_does_not_depend_on_its_batch() {
    let Some(mut gpu) = gpu() else { return };
    let (rows, depth) = (1536, 2048);
    let weight = gpu.random((rows * depth) as usize, 0.1);
    let x = gpu.random((64 * depth) as usize, 2.0);
    let run = |gpu: &Gpu, tokens: u32| {
        let y = DeviceBuffer::new(gpu.stream.device(), (tokens * rows) as usize).unwrap();
        let projection = DecodeProjection {
            weight: Matrix::dense(&weight, rows, depth).unwrap(),
            x: Matrix::dense(&x, tokens, depth).unwrap(),
            y: Matrix::dense(&y, tokens, rows).unwrap().into(),
            epilogue: Epilogue::Add {
                bias: None,
                residual: None,
            },
        };
        decode_projection(&gpu.stream, &projection, &gpu.projections).unwrap();
        gpu.read(&y)
    };
    let whole = run(&gpu, 64);
    for tokens in [1, 7, 8, 9, 16, 17, 24, 25, 32, 33, 48, 49] {
        let part = run(&gpu, tokens);
        let mut pairs = part.iter().zip(&whole);
        let differs = pairs.position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs, None, "{tokens} tokens of {rows} outputs");
    }
}

#[test]
fn a_captured_chain_gives_the_same_bits_at_every_launch() {
    let Some(mut gpu) = gpu() else { return };
    let size = 2048;
    let weights: Vec<_> = (0..8)
        .map(|_| gpu.random((size * size) as usize, 0.08))
        .collect();
    let start = gpu.random((16 * size) as usize, 2.0);
    let start = gpu.read(&start);
    let (a, b) = (
        gpu.random((16 * size) as usize, 2.0),
        gpu.random((16 * size) as usize, 2.0),
    );
    let graph = Graph::capture(&gpu.stream, |stream| {
        for (i, weight) in weights.iter().enumerate() {
            // y = x * weight + y, in place, x and y in turn: each kernel needs the one before.
            let (x, y) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let y = Matrix::dense(y, 16, size).unwrap();
            let projection = DecodeProjection {
                weight: Matrix::dense(weight, size, size).unwrap(),
                x: Matrix::dense(x, 16, size).unwrap(),
                y: y.into(),
                epilogue: Epilogue::Add {
                    bias: None,
                    residual: Some(y),
                },
            };
            decode_projection(stream, &projection, &gpu.projections)?;
        }
        Ok::<_, DecodeProjectionError>(())
    })
    .unwrap();
    assert_eq!(graph.num_nodes().unwrap(), weights.len());
    let execs = [
        graph.instantiate().unwrap(),
        graph.instantiate_for_device(&gpu.stream).unwrap(),
    ];
    let mut first = None;
    for i in 0..200 {
        a.write(&gpu.stream, &start).unwrap();
        b.write(&gpu.stream, &start).unwrap();
        // SAFETY: every captured buffer lives to the end of the test.
        unsafe { execs[i % 2].launch(&gpu.stream) }.unwrap();
        let got = gpu.read(&a);
        assert!(got.iter().all(|value| value.is_finite()));
        assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "launch {i}");
    }
}

#[test]
fn wrong_shapes_strides_and_addresses_are_refused() {
    let Some(mut gpu) = gpu() else { return };
    let buffer = gpu.random(1 << 16, 1.0);
    let view =
        |offset, rows, cols, stride| Matrix::strided(&buffer, offset, rows, cols, stride).unwrap();
    let epilogue = Epilogue::Add {
        bias: None,
        residual: None,
    };
    let good = DecodeProjection {
        weight: view(0, 64, 64, 64),
        x: view(0, 4, 64, 64),
        y: view(0, 4, 64, 64).into(),
        epilogue,
    };
    let refused = |projection: DecodeProjection<'_>| {
        decode_projection(&gpu.stream, &projection, &gpu.projections).unwrap_err()
    };
    type Error = DecodeProjectionError;
    let long = DecodeProjection {
        x: view(0, 65, 64, 64),
        y: view(0, 65, 64, 64).into(),
        ..good
    };
    assert_eq!(refused(long), Error::TooManyTokens(65));
    let narrow = DecodeProjection {
        x: view(0, 4, 56, 64),
        ..good
    };
    assert!(matches!(refused(narrow), Error::Shape { matrix: "x", .. }));
    let short = DecodeProjection {
        y: view(0, 4, 63, 64).into(),
        ..good
    };
    assert!(matches!(refused(short), Error::Shape { matrix: "y", .. }));
    let half = DecodeProjection {
        epilogue: Epilogue::Swiglu,
        ..good
    };
    let floats = DeviceBuffer::<f32>::new(gpu.stream.device(), 1 << 12).unwrap();
    let rounded = DecodeProjection {
        y: Matrix::dense(&floats, 4, 64).unwrap().into(),
        epilogue: Epilogue::Add {
            bias: None,
            residual: Some(view(0, 4, 64, 64)),
        },
        ..good
    };
    assert_eq!(refused(rounded), Error::F32Epilogue);
    assert!(matches!(
        refused(half),
        Error::Shape {
            matrix: "y",
            expected: [4, 32],
            ..
        }
    ));
    let shifted = DecodeProjection {
        x: view(4, 4, 64, 64),
        ..good
    };
    assert!(matches!(
        refused(shifted),
        Error::Alignment { multiple: 16, .. }
    ));
    let odd_stride = DecodeProjection {
        x: view(0, 4, 64, 68),
        ..good
    };
    assert!(matches!(
        refused(odd_stride),
        Error::Alignment { multiple: 8, .. }
    ));
}
