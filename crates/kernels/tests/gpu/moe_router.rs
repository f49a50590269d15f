//! moe_ffn with its own norm and router, for few tokens, against f64 on the host.

use half::bf16;
use izar_kernels::{
    CudaError, DeviceBuffer, DeviceWord, Graph, LaunchError, MAX_ROUTER_TOKENS, Matrix, MoeChoice,
    MoeFfn, MoeShape, Norm, moe_ffn,
};

use crate::moe::{Layer, QWEN3_30B_A3B, SMALL};
use crate::{Gpu, POISON, gpu, relative_error};

const EPSILON: f32 = 1e-6;
/// Logits that differ by less may be ranked either way.
const TIE: f64 = 1e-3;

/// A layer, its router, and the norms before and after.
struct Routed {
    layer: Layer,
    norms: [DeviceBuffer<bf16>; 2],
    router: DeviceBuffer<bf16>,
}

/// What a step leaves: the norm before the experts, the residual stream, its norm.
struct Outcome {
    x: Vec<bf16>,
    y: Vec<bf16>,
    normed: Vec<bf16>,
}

/// Buffers of a step.
struct Buffers {
    x: DeviceBuffer<bf16>,
    residual: DeviceBuffer<bf16>,
    normed: DeviceBuffer<bf16>,
    meta: DeviceBuffer<u32>,
}

impl Buffers {
    fn poisoned(gpu: &Gpu, bucket: usize, hidden: usize) -> Self {
        Self {
            x: gpu.poisoned(bucket * hidden),
            residual: gpu.poisoned(bucket * hidden),
            normed: gpu.poisoned(bucket * hidden),
            meta: DeviceBuffer::from_slice(&gpu.stream, &[0]).unwrap(),
        }
    }

    fn bring(&self, gpu: &Gpu, residual: &[bf16], hidden: usize) {
        let tokens = (residual.len() / hidden) as u32;
        self.residual.write(&gpu.stream, residual).unwrap();
        self.meta.write(&gpu.stream, &[tokens]).unwrap();
    }
}

impl Routed {
    fn new(gpu: &mut Gpu, shape: MoeShape) -> Self {
        let hidden = shape.hidden as usize;
        let layer = Layer::new(gpu, shape, MAX_ROUTER_TOKENS);
        let scale = 8.0 / (hidden as f32).sqrt();
        Self {
            layer,
            norms: [gpu.random(hidden, 2.0), gpu.random(hidden, 2.0)],
            router: gpu.random(shape.num_experts as usize * hidden, scale),
        }
    }

    fn launch(&self, gpu: &Gpu, buffers: &Buffers, bucket: u32) -> Result<(), LaunchError> {
        let shape = self.layer.shape;
        let (experts, hidden, inner) = (shape.num_experts, shape.hidden, shape.intermediate);
        let norm = |weight| Norm {
            weight: Matrix::dense(weight, 1, hidden).unwrap(),
            epsilon: EPSILON,
        };
        let rows = |buffer| Matrix::dense(buffer, bucket, hidden).unwrap();
        let ffn = MoeFfn {
            choice: MoeChoice::Router {
                residual: rows(&buffers.residual),
                norm: norm(&self.norms[0]),
                weight: Matrix::dense(&self.router, experts, hidden).unwrap(),
            },
            x: rows(&buffers.x),
            gate_up: Matrix::dense(&self.layer.gate_up, experts * 2 * inner, hidden).unwrap(),
            down: Matrix::dense(&self.layer.down, experts * hidden, inner).unwrap(),
            y: rows(&buffers.residual),
            normed: Some((norm(&self.norms[1]), rows(&buffers.normed))),
            tokens_here: DeviceWord::new(&buffers.meta, 0),
        };
        moe_ffn(&gpu.stream, &ffn, &self.layer.workspace)
    }

    /// What the step's tokens became, once nothing was written beyond them.
    fn outcome(&self, gpu: &Gpu, buffers: &Buffers, tokens: usize) -> Outcome {
        assert!(self.layer.workspace.is_sound(&gpu.stream).unwrap());
        let len = tokens * self.layer.shape.hidden as usize;
        let [x, y, normed] = [&buffers.x, &buffers.residual, &buffers.normed].map(|buffer| {
            let all = gpu.read(buffer);
            let padding = all[len..].iter().position(|v| v.to_bits() != POISON);
            assert_eq!(padding, None, "padding after {tokens} tokens written");
            all[..len].to_vec()
        });
        Outcome { x, y, normed }
    }

    fn run(&self, gpu: &Gpu, residual: &[bf16], bucket: usize) -> Outcome {
        let hidden = self.layer.shape.hidden as usize;
        let tokens = residual.len() / hidden;
        let buffers = Buffers::poisoned(gpu, bucket, hidden);
        buffers.bring(gpu, residual, hidden);
        self.launch(gpu, &buffers, bucket as u32).unwrap();
        self.outcome(gpu, &buffers, tokens)
    }

    fn check(&self, gpu: &mut Gpu, tokens: usize, bucket: usize) {
        let shape = self.layer.shape;
        let hidden = shape.hidden as usize;
        let residual = gpu.random(tokens * hidden, 2.0);
        let residual = gpu.read(&residual);
        let got = self.run(gpu, &residual, bucket);
        let norms = [0, 1].map(|i| gpu.read(&self.norms[i]));
        let router = gpu.read(&self.router);
        for token in 0..tokens {
            let of_token = |values: &[bf16]| values[token * hidden..][..hidden].to_vec();
            let case = format!("{shape:?}: token {token} of {tokens} in {bucket}");
            let (before, x) = (of_token(&residual), of_token(&got.x));
            let error = relative_error(to_f64(&x), normed(&before, &norms[0]));
            assert!(error < 3e-3, "{case}: norm before {error:.2e}");
            let (y, after) = (of_token(&got.y), of_token(&got.normed));
            let error = relative_error(to_f64(&after), normed(&y, &norms[1]));
            assert!(error < 3e-3, "{case}: norm after {error:.2e}");
            let logits: Vec<f64> = router.chunks(hidden).map(|row| dot(row, &x)).collect();
            // An expert's row costs the host a millisecond.
            if has_tie(&logits, shape.top_k as usize) || (hidden > 1000 && token % 7 != 0) {
                continue;
            }
            let error = relative_error(to_f64(&y), self.layer.result(&x, &before, &logits));
            assert!(error < 6e-3, "{case}: {error:.2e}");
        }
    }
}

fn to_f64(values: &[bf16]) -> impl Iterator<Item = f64> {
    values.iter().map(|v| v.to_f64())
}

fn dot(row: &[bf16], x: &[bf16]) -> f64 {
    row.iter()
        .zip(x)
        .map(|(w, x)| w.to_f64() * x.to_f64())
        .sum()
}

fn normed(x: &[bf16], weight: &[bf16]) -> Vec<f64> {
    let mean = dot(x, x) / x.len() as f64;
    let inverse = 1.0 / (mean + f64::from(EPSILON)).sqrt();
    x.iter()
        .zip(weight)
        .map(|(x, w)| x.to_f64() * inverse * w.to_f64())
        .collect()
}

/// Whether the last expert that is chosen and the first that is not are too close to tell.
fn has_tie(logits: &[f64], top_k: usize) -> bool {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted
        .get(top_k)
        .is_some_and(|next| sorted[top_k - 1] - next < TIE)
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
        // More depth than a block holds at a time, and a part of that.
        MoeShape {
            hidden: 5000,
            ..SMALL
        },
    ] {
        let routed = Routed::new(&mut gpu, shape);
        for tokens in [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 61] {
            routed.check(&mut gpu, tokens, tokens);
            routed.check(&mut gpu, tokens, tokens + 3);
        }
        routed.check(&mut gpu, 64, 64);
    }
}

#[test]
fn a_layer_of_qwen3_30b_a3b_is_right() {
    let Some(mut gpu) = gpu() else { return };
    let routed = Routed::new(&mut gpu, QWEN3_30B_A3B);
    for (tokens, bucket) in [(1, 1), (3, 4), (8, 8), (16, 16), (40, 64)] {
        routed.check(&mut gpu, tokens, bucket);
    }
}

#[test]
fn a_tokens_result_does_not_depend_on_its_batch() {
    let Some(mut gpu) = gpu() else { return };
    let routed = Routed::new(&mut gpu, QWEN3_30B_A3B);
    let hidden = QWEN3_30B_A3B.hidden as usize;
    let residual = gpu.random(64 * hidden, 2.0);
    let residual = gpu.read(&residual);
    let all = routed.run(&gpu, &residual, 64);
    for (first, count) in [
        (0, 1),
        (63, 1),
        (5, 2),
        (30, 7),
        (40, 16),
        (20, 17),
        (7, 48),
    ] {
        let part = |values: &[bf16]| values[first * hidden..][..count * hidden].to_vec();
        for bucket in [count, count + 2] {
            let got = routed.run(&gpu, &part(&residual), bucket);
            let pairs = [(got.x, &all.x), (got.y, &all.y), (got.normed, &all.normed)];
            for (what, (got, all)) in ["x", "y", "normed"].into_iter().zip(pairs) {
                let differs = got.iter().zip(part(all)).position(|(&a, b)| a != b);
                assert_eq!(differs, None, "{what} of {count} tokens from {first}");
            }
        }
    }
}

#[test]
fn equal_logits_go_to_the_lowest_experts_and_a_nan_stays_with_its_token() {
    let Some(mut gpu) = gpu() else { return };
    let routed = Routed::new(&mut gpu, SMALL);
    let hidden = SMALL.hidden as usize;
    // Every expert's weights twice, in neighbours: of three choices the third is the lower of a pair.
    let rows = gpu.read(&routed.router);
    let twice: Vec<bf16> = rows
        .chunks(hidden)
        .step_by(2)
        .flat_map(|row| [row, row].concat())
        .collect();
    routed.router.write(&gpu.stream, &twice).unwrap();
    for tokens in [5, 16, 40] {
        let residual = gpu.random(tokens * hidden, 2.0);
        let mut residual = gpu.read(&residual);
        residual[hidden + 7] = bf16::NAN;
        let got = routed.run(&gpu, &residual, tokens);
        for token in 0..tokens {
            let of_token = |values: &[bf16]| values[token * hidden..][..hidden].to_vec();
            let y = of_token(&got.y);
            if token == 1 {
                assert!(y.iter().all(|v| v.is_nan()), "of {tokens}");
                continue;
            }
            let (x, before) = (of_token(&got.x), of_token(&residual));
            let logits: Vec<f64> = twice.chunks(hidden).map(|row| dot(row, &x)).collect();
            let mut ranked = logits.clone();
            ranked.sort_by(|a, b| b.total_cmp(a));
            if ranked[1] - ranked[2] < TIE || ranked[3] - ranked[4] < TIE {
                continue;
            }
            let error = relative_error(to_f64(&y), routed.layer.result(&x, &before, &logits));
            assert!(error < 6e-3, "token {token} of {tokens}: {error:.2e}");
        }
    }
}

#[test]
fn a_captured_launch_serves_any_routing() {
    let Some(mut gpu) = gpu() else { return };
    let hidden = SMALL.hidden as usize;
    for bucket in [1, 8, 16, 48] {
        let routed = Routed::new(&mut gpu, SMALL);
        let buffers = Buffers::poisoned(&gpu, bucket as usize, hidden);
        let graph = Graph::capture(&gpu.stream, |_| {
            routed.launch(&gpu, &buffers, bucket).unwrap();
            Ok::<(), CudaError>(())
        })
        .unwrap();
        let exec = graph.instantiate_for_device(&gpu.stream).unwrap();
        for tokens in [bucket as usize, 1, bucket.min(5) as usize, bucket as usize] {
            let residual = gpu.random(tokens * hidden, 2.0);
            let residual = gpu.read(&residual);
            buffers.bring(&gpu, &residual, hidden);
            // SAFETY: every captured buffer lives until the read below has waited for the launch.
            unsafe { exec.launch(&gpu.stream) }.unwrap();
            let got = gpu.read(&buffers.residual)[..tokens * hidden].to_vec();
            let wanted = routed.run(&gpu, &residual, tokens);
            assert_eq!(got, wanted.y, "{tokens} tokens in {bucket}");
        }
    }
}

#[test]
fn more_tokens_than_the_router_takes_are_refused() {
    let Some(mut gpu) = gpu() else { return };
    let mut routed = Routed::new(&mut gpu, SMALL);
    routed.layer = Layer::new(&mut gpu, SMALL, 100);
    let buffers = Buffers::poisoned(&gpu, 65, SMALL.hidden as usize);
    let refused = routed.launch(&gpu, &buffers, 65);
    assert!(matches!(
        refused,
        Err(LaunchError::Argument { what: "tokens", .. })
    ));
}
