//! moe_ffn against f64 on the host, its experts chosen by given logits. `moe_router` has its own router.

use half::bf16;
use izar_kernels::{
    CudaError, DeviceBuffer, DeviceWord, Graph, LaunchError, Matrix, MoeChoice, MoeFfn, MoeShape,
    MoeWorkspace, moe_ffn,
};

use crate::{Gpu, POISON, gpu, relative_error};

pub(crate) const QWEN3_30B_A3B: MoeShape = MoeShape {
    num_experts: 128,
    top_k: 8,
    hidden: 2048,
    intermediate: 768,
    normalise: true,
};

pub(crate) const SMALL: MoeShape = MoeShape {
    num_experts: 20,
    top_k: 3,
    hidden: 72,
    intermediate: 40,
    normalise: false,
};

/// A layer, and the device memory of a step of up to `max_tokens`.
pub(crate) struct Layer {
    pub(crate) shape: MoeShape,
    pub(crate) gate_up: DeviceBuffer<bf16>,
    pub(crate) down: DeviceBuffer<bf16>,
    pub(crate) workspace: MoeWorkspace,
    host_gate_up: Vec<bf16>,
    host_down: Vec<bf16>,
}

/// What the tokens of a step bring.
struct Step {
    logits: Vec<f32>,
    x: Vec<bf16>,
    y: Vec<bf16>,
}

impl Layer {
    pub(crate) fn new(gpu: &mut Gpu, shape: MoeShape, max_tokens: u32) -> Self {
        let (hidden, inner) = (shape.hidden as usize, shape.intermediate as usize);
        let experts = shape.num_experts as usize;
        let gate_up = gpu.random(experts * 2 * inner * hidden, 8.0 / (hidden as f32).sqrt());
        let down = gpu.random(experts * hidden * inner, 8.0 / (inner as f32).sqrt());
        let device = *gpu.stream.device();
        let workspace = MoeWorkspace::new(&device, &gpu.stream, shape, max_tokens).unwrap();
        Self {
            shape,
            host_gate_up: gpu.read(&gate_up),
            host_down: gpu.read(&down),
            gate_up,
            down,
            workspace,
        }
    }

    fn step(&self, gpu: &mut Gpu, tokens: usize) -> Step {
        let hidden = self.shape.hidden as usize;
        let x = gpu.random(tokens * hidden, 2.0);
        let y = gpu.random(tokens * hidden, 2.0);
        // Sixteen bits tell any two logits of a token apart, nearly always.
        let logits = gpu.random(tokens * self.shape.num_experts as usize * 2, 1.0);
        let logits = gpu.read(&logits);
        Step {
            logits: logits
                .chunks(2)
                .map(|pair| pair[0].to_f32() * 4.0 + pair[1].to_f32() / 256.0)
                .collect(),
            x: gpu.read(&x),
            y: gpu.read(&y),
        }
    }

    /// Runs a step whose bucket has `bucket` tokens, the surplus poisoned.
    fn run(&self, gpu: &Gpu, step: &Step, bucket: usize) -> Vec<bf16> {
        let hidden = self.shape.hidden as usize;
        let tokens = step.x.len() / hidden;
        let stream = &gpu.stream;
        let padded = |values: &[bf16]| {
            let mut values = values.to_vec();
            values.resize(bucket * hidden, bf16::from_bits(POISON));
            DeviceBuffer::from_slice(stream, &values).unwrap()
        };
        let (x, y) = (padded(&step.x), padded(&step.y));
        let mut logits = step.logits.clone();
        logits.resize(bucket * self.shape.num_experts as usize, f32::NAN);
        let logits = DeviceBuffer::from_slice(stream, &logits).unwrap();
        let meta = DeviceBuffer::from_slice(stream, &[tokens as u32]).unwrap();
        self.launch(gpu, [&x, &y], &logits, &meta, bucket as u32)
            .unwrap();
        let out = gpu.read(&y);
        assert!(self.workspace.is_sound(stream).unwrap());
        let (written, rest) = out.split_at(tokens * hidden);
        assert!(
            rest.iter().all(|v| v.to_bits() == POISON),
            "padding written"
        );
        written.to_vec()
    }

    fn launch(
        &self,
        gpu: &Gpu,
        [x, y]: [&DeviceBuffer<bf16>; 2],
        logits: &DeviceBuffer<f32>,
        meta: &DeviceBuffer<u32>,
        bucket: u32,
    ) -> Result<(), LaunchError> {
        let shape = self.shape;
        let (experts, hidden, inner) = (shape.num_experts, shape.hidden, shape.intermediate);
        let ffn = MoeFfn {
            choice: MoeChoice::Logits(Matrix::dense(logits, bucket, experts).unwrap()),
            x: Matrix::dense(x, bucket, hidden).unwrap(),
            gate_up: Matrix::dense(&self.gate_up, experts * 2 * inner, hidden).unwrap(),
            down: Matrix::dense(&self.down, experts * hidden, inner).unwrap(),
            y: Matrix::dense(y, bucket, hidden).unwrap(),
            normed: None,
            tokens_here: DeviceWord::new(meta, 0),
        };
        moe_ffn(&gpu.stream, &ffn, &self.workspace)
    }

    /// The chosen experts, most likely first, and their shares.
    pub(crate) fn choices(&self, logits: &[f64]) -> Vec<(usize, f64)> {
        let max = logits.iter().copied().fold(f64::MIN, f64::max);
        let exp: Vec<f64> = logits.iter().map(|l| (l - max).exp()).collect();
        let sum: f64 = exp.iter().sum();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        order.truncate(self.shape.top_k as usize);
        let chosen: f64 = order.iter().map(|&e| exp[e] / sum).sum();
        let scale = if self.shape.normalise { chosen } else { 1.0 };
        order.iter().map(|&e| (e, exp[e] / sum / scale)).collect()
    }

    fn wanted(&self, step: &Step, token: usize) -> Vec<f64> {
        let (hidden, experts) = (self.shape.hidden as usize, self.shape.num_experts as usize);
        let logits: Vec<f64> = step.logits[token * experts..][..experts]
            .iter()
            .map(|&logit| logit.into())
            .collect();
        let of_token = |values: &[bf16]| values[token * hidden..][..hidden].to_vec();
        self.result(&of_token(&step.x), &of_token(&step.y), &logits)
    }

    /// `y` and the experts' weighted sum for one token.
    pub(crate) fn result(&self, x: &[bf16], y: &[bf16], logits: &[f64]) -> Vec<f64> {
        let (hidden, inner) = (self.shape.hidden as usize, self.shape.intermediate as usize);
        let dot = |row: &[bf16], x: &[f64]| -> f64 {
            row.iter().zip(x).map(|(w, x)| w.to_f64() * x).sum()
        };
        let x: Vec<f64> = x.iter().map(|v| v.to_f64()).collect();
        let mut y: Vec<f64> = y.iter().map(|v| v.to_f64()).collect();
        for (expert, share) in self.choices(logits) {
            let rows = &self.host_gate_up[expert * 2 * inner * hidden..][..2 * inner * hidden];
            let (gate, up) = rows.split_at(inner * hidden);
            let h: Vec<f64> = gate
                .chunks(hidden)
                .zip(up.chunks(hidden))
                .map(|(gate, up)| {
                    let gate = dot(gate, &x);
                    gate / (1.0 + (-gate).exp()) * dot(up, &x)
                })
                .collect();
            let down = &self.host_down[expert * hidden * inner..][..hidden * inner];
            for (y, row) in y.iter_mut().zip(down.chunks(inner)) {
                *y += share * dot(row, &h);
            }
        }
        y
    }

    fn check(&self, gpu: &mut Gpu, tokens: usize, bucket: usize) {
        let step = self.step(gpu, tokens);
        let out = self.run(gpu, &step, bucket);
        let hidden = self.shape.hidden as usize;
        // All tokens of a small step, some of a large one: an expert's row costs the host a millisecond.
        let stride = if hidden > 1000 {
            (tokens / 6).max(1)
        } else {
            1
        };
        for token in (0..tokens).step_by(stride) {
            let got = out[token * hidden..][..hidden].iter().map(|v| v.to_f64());
            let error = relative_error(got, self.wanted(&step, token));
            // Three roundings to bf16: inside the expert, of its output, of the sum.
            assert!(
                error < 6e-3,
                "{:?}: token {token} of {tokens} in {bucket}: {error:.2e}",
                self.shape
            );
        }
    }
}

#[test]
fn every_number_of_tokens_and_padding_is_right() {
    let Some(mut gpu) = gpu() else { return };
    for shape in [
        SMALL,
        MoeShape {
            num_experts: 1,
            top_k: 1,
            ..SMALL
        },
        MoeShape {
            num_experts: 300,
            top_k: 32,
            normalise: true,
            ..SMALL
        },
        MoeShape {
            hidden: 1600,
            intermediate: 520,
            ..SMALL
        },
    ] {
        let layer = Layer::new(&mut gpu, shape, 1100);
        for tokens in [1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 65, 100, 257, 1000] {
            layer.check(&mut gpu, tokens, tokens);
            layer.check(&mut gpu, tokens, tokens + 3);
        }
    }
}

#[test]
fn a_layer_of_qwen3_30b_a3b_is_right() {
    let Some(mut gpu) = gpu() else { return };
    let layer = Layer::new(&mut gpu, QWEN3_30B_A3B, 2048);
    for (tokens, bucket) in [
        (1, 1),
        (3, 4),
        (8, 8),
        (16, 16),
        (40, 64),
        (300, 512),
        (2048, 2048),
    ] {
        layer.check(&mut gpu, tokens, bucket);
    }
}

#[test]
fn a_tokens_result_does_not_depend_on_its_batch() {
    let Some(mut gpu) = gpu() else { return };
    let layer = Layer::new(&mut gpu, QWEN3_30B_A3B, 600);
    let step = layer.step(&mut gpu, 600);
    let hidden = QWEN3_30B_A3B.hidden as usize;
    let part = |first: usize, count: usize| Step {
        logits: step.logits[first * 128..][..count * 128].to_vec(),
        x: step.x[first * hidden..][..count * hidden].to_vec(),
        y: step.y[first * hidden..][..count * hidden].to_vec(),
    };
    // Below 256 tokens, and from there on.
    for (whole, parts) in [
        (
            255,
            vec![(0, 1), (254, 1), (5, 7), (100, 16), (150, 17), (90, 64)],
        ),
        (600, vec![(0, 256), (90, 400), (344, 256)]),
    ] {
        let all = layer.run(&gpu, &part(0, whole), whole);
        for (first, count) in parts {
            let got = layer.run(&gpu, &part(first, count), count + count % 2);
            let differs = got
                .iter()
                .zip(&all[first * hidden..])
                .position(|(a, b)| a != b);
            assert_eq!(differs, None, "{count} tokens from {first} of {whole}");
        }
    }
}

#[test]
fn equal_logits_go_to_the_lowest_experts_and_a_nan_stays_with_its_token() {
    let Some(mut gpu) = gpu() else { return };
    let layer = Layer::new(&mut gpu, SMALL, 100);
    for tokens in [5, 40, 90] {
        let mut step = layer.step(&mut gpu, tokens);
        step.logits[..20].fill(0.25);
        step.logits[20 + 7] = f32::NAN;
        step.logits[40..60].fill(f32::NAN);
        let out = layer.run(&gpu, &step, tokens);
        for token in 0..tokens {
            let got = &out[token * 72..][..72];
            if token == 1 || token == 2 {
                assert!(got.iter().all(|v| v.is_nan()), "token {token} of {tokens}");
                continue;
            }
            let error = relative_error(got.iter().map(|v| v.to_f64()), layer.wanted(&step, token));
            assert!(error < 6e-3, "token {token} of {tokens}: {error:.2e}");
        }
    }
}

#[test]
fn a_captured_launch_serves_any_routing() {
    let Some(mut gpu) = gpu() else { return };
    for bucket in [8, 48, 200] {
        let layer = Layer::new(&mut gpu, SMALL, bucket);
        let steps: Vec<Step> = [bucket as usize, 1, 5, bucket as usize - 1]
            .map(|tokens| layer.step(&mut gpu, tokens))
            .into();
        let x = gpu.poisoned((bucket * 72) as usize);
        let y = gpu.poisoned((bucket * 72) as usize);
        let logits = DeviceBuffer::<f32>::new(gpu.stream.device(), (bucket * 20) as usize).unwrap();
        let meta = DeviceBuffer::from_slice(&gpu.stream, &[0]).unwrap();
        let graph = Graph::capture(&gpu.stream, |_| {
            layer
                .launch(&gpu, [&x, &y], &logits, &meta, bucket)
                .unwrap();
            Ok::<(), CudaError>(())
        })
        .unwrap();
        let exec = graph.instantiate_for_device(&gpu.stream).unwrap();
        for step in steps.iter().chain(&steps[..1]) {
            let tokens = step.x.len() / 72;
            x.write(&gpu.stream, &step.x).unwrap();
            y.write(&gpu.stream, &step.y).unwrap();
            logits.write(&gpu.stream, &step.logits).unwrap();
            meta.write(&gpu.stream, &[tokens as u32]).unwrap();
            // SAFETY: every captured buffer lives until the read below has waited for the launch.
            unsafe { exec.launch(&gpu.stream) }.unwrap();
            let got = gpu.read(&y)[..tokens * 72].to_vec();
            let wanted = layer.run(&gpu, step, tokens);
            assert_eq!(got, wanted, "{tokens} tokens in {bucket}");
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let Some(mut gpu) = gpu() else { return };
    let device = *gpu.stream.device();
    for shape in [
        MoeShape {
            num_experts: 513,
            ..SMALL
        },
        MoeShape { top_k: 0, ..SMALL },
        MoeShape { top_k: 21, ..SMALL },
        MoeShape {
            hidden: 76,
            ..SMALL
        },
        MoeShape {
            intermediate: 0,
            ..SMALL
        },
    ] {
        assert!(
            MoeWorkspace::new(&device, &gpu.stream, shape, 8).is_err(),
            "{shape:?}"
        );
    }
    let layer = Layer::new(&mut gpu, SMALL, 8);
    let buffer = gpu.random(9 * 72, 1.0);
    let logits = DeviceBuffer::<f32>::new(&device, 9 * 20).unwrap();
    let meta = DeviceBuffer::from_slice(&gpu.stream, &[9]).unwrap();
    let too_many = layer.launch(&gpu, [&buffer, &buffer], &logits, &meta, 9);
    assert!(matches!(
        too_many,
        Err(LaunchError::Argument { what: "tokens", .. })
    ));
}
