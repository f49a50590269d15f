//! Times moe_ffn over layers with distinct weights at the sizes of Qwen3-30B-A3B against the memory's read ceiling, counting
//! the experts that the tokens really chose. Up to 64 tokens norm and router are part of it; beyond, logits are given.
//!
//! `bench_moe [OUT.json]`. Each line one captured graph of all layers, median of the replays.

use std::error::Error;

use half::bf16;
use izar_kernels::{
    CudaError, Device, DeviceBuffer, DeviceWord, Event, Graph, MAX_ROUTER_TOKENS, Matrix,
    MoeChoice, MoeFfn, MoeShape, MoeWorkspace, Norm, Stream, fill_random, moe_ffn,
};
use serde_json::json;

const LAYERS: usize = 12;
const SHAPE: MoeShape = MoeShape {
    num_experts: 128,
    top_k: 8,
    hidden: 2048,
    intermediate: 768,
    normalise: true,
};
const REPLAYS: usize = 21;
/// Read rate that decode is held against, measured on an H200 (docs/perf/h200-kernels.md).
const CEILING_BYTES_PER_US: f64 = 4.65e6;

struct Layer {
    router: DeviceBuffer<bf16>,
    gate_up: DeviceBuffer<bf16>,
    down: DeviceBuffer<bf16>,
}

fn random(stream: &Stream, len: usize, seed: u32) -> Result<DeviceBuffer<bf16>, CudaError> {
    let buffer = DeviceBuffer::new(stream.device(), len)?;
    fill_random(stream, &buffer, seed, 0.1)?;
    Ok(buffer)
}

/// Independent uniform logits: tokens spread over the experts.
fn router_logits(stream: &Stream, tokens: u32, seed: u32) -> Result<DeviceBuffer<f32>, CudaError> {
    let len = (tokens * SHAPE.num_experts) as usize;
    let wide = random(stream, len, seed)?;
    let mut host = vec![bf16::ZERO; len];
    wide.read(stream, &mut host)?;
    let host: Vec<f32> = host.iter().map(|v| v.to_f32()).collect();
    DeviceBuffer::from_slice(stream, &host)
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open(0)?;
    let stream = Stream::new(&device)?;
    let (experts, hidden, inner) = (SHAPE.num_experts, SHAPE.hidden, SHAPE.intermediate);
    let expert_elements = 3 * (hidden * inner) as usize;
    let layers = (0..LAYERS as u32)
        .map(|layer| {
            let len = experts as usize * expert_elements / 3;
            let router_len = (experts * hidden) as usize;
            Ok(Layer {
                router: random(&stream, router_len, 1_000_000 + layer)?,
                gate_up: random(&stream, 2 * len, 2 * layer)?,
                down: random(&stream, len, 2 * layer + 1)?,
            })
        })
        .collect::<Result<Vec<_>, CudaError>>()?;
    let norm = random(&stream, hidden as usize, 999)?;
    let norm = Norm {
        weight: Matrix::dense(&norm, 1, hidden)?,
        epsilon: 1e-6,
    };
    let workspace = MoeWorkspace::new(&device, &stream, SHAPE, 2048)?;
    let mut rows = Vec::new();
    println!(
        "{:>6} {:>8} {:>9} {:>9} {:>7} {:>9}",
        "tokens", "experts", "us", "floor us", "/ floor", "TFLOP/s"
    );
    for tokens in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048] {
        let x = random(&stream, (tokens * hidden) as usize, 1)?;
        let residual = random(&stream, (tokens * hidden) as usize, 2)?;
        let residual = Matrix::dense(&residual, tokens, hidden)?;
        let x = Matrix::dense(&x, tokens, hidden)?;
        let meta = DeviceBuffer::from_slice(&stream, &[tokens])?;
        let logits = (0..LAYERS as u32)
            .map(|layer| router_logits(&stream, tokens, 1000 + layer * 4096 + tokens))
            .collect::<Result<Vec<_>, CudaError>>()?;
        let launch = |layer: usize| -> Result<(), Box<dyn Error>> {
            let choice = if tokens <= MAX_ROUTER_TOKENS {
                MoeChoice::Router {
                    residual,
                    norm,
                    weight: Matrix::dense(&layers[layer].router, experts, hidden)?,
                }
            } else {
                MoeChoice::Logits(Matrix::dense(&logits[layer], tokens, experts)?)
            };
            let ffn = MoeFfn {
                choice,
                x,
                gate_up: Matrix::dense(&layers[layer].gate_up, experts * 2 * inner, hidden)?,
                down: Matrix::dense(&layers[layer].down, experts * hidden, inner)?,
                y: residual,
                normed: Some((norm, x)),
                tokens_here: DeviceWord::new(&meta, 0),
            };
            Ok(moe_ffn(&stream, &ffn, &workspace)?)
        };
        let mut distinct = 0;
        for layer in 0..LAYERS {
            launch(layer)?;
            distinct += workspace.num_distinct_experts(&stream)?;
        }
        let mut failure = None;
        let graph = Graph::capture(&stream, |_| {
            failure = (0..LAYERS).try_for_each(launch).err();
            Ok::<(), CudaError>(())
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let exec = graph.instantiate()?;
        let (start, end) = (Event::new(&device)?, Event::new(&device)?);
        let mut times = Vec::new();
        for _ in 0..REPLAYS {
            start.record(&stream)?;
            // SAFETY: every captured buffer outlives the wait below.
            unsafe { exec.launch(&stream) }?;
            end.record(&stream)?;
            end.synchronize()?;
            times.push(f64::from(end.ms_since(&start)?) * 1e3 / LAYERS as f64);
        }
        times.sort_by(f64::total_cmp);
        let us = times[REPLAYS / 2];
        let distinct = f64::from(distinct) / LAYERS as f64;
        let floor = distinct * expert_elements as f64 * 2.0 / CEILING_BYTES_PER_US;
        let flops = 2.0 * f64::from(tokens * SHAPE.top_k) * expert_elements as f64;
        let tflops = flops / us / 1e6;
        println!(
            "{tokens:>6} {distinct:>8.1} {us:>9.2} {floor:>9.2} {:>7.3} {tflops:>9.1}",
            us / floor
        );
        rows.push(json!({"tokens": tokens, "distinct_experts": distinct, "us": us, "floor_us": floor, "tflops": tflops}));
    }
    assert!(workspace.is_sound(&stream)?, "a part never came");
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(path, serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}
