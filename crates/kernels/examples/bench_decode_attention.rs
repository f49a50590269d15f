//! Times paged_decode_attention over 32 layers with distinct caches, for the heads of Llama-3-8B at many
//! shapes and those of other models at some, against the memory's read ceiling; and rms_norm, 32 in a row.
//!
//! `bench_decode_attention [OUT.json]`. Each line one captured graph, median of the replays.

use std::error::Error;

use half::bf16;
use izar_kernels::{
    AttentionWorkspace, CudaError, Device, DeviceBuffer, Event, Graph, KvCache, Matrix,
    PagedDecodeAttention, RmsNorm, Stream, fill_random, paged_decode_attention, rms_norm,
};
use serde_json::json;

const LAYERS: usize = 32;
const HIDDEN: u32 = 4096;
const BLOCK_SIZE: u32 = 16;
const REPLAYS: usize = 21;
/// Read rate that decode is held against, measured on an H200 (docs/perf/h200-kernels.md).
const CEILING_BYTES_PER_US: f64 = 4.65e6;

/// Query heads, KV heads, head_dim.
type Heads = (u32, u32, u32);

const LLAMA3_8B: Heads = (32, 8, 128);
/// Qwen2.5-7B, Llama-2-7B, Qwen2.5-14B, Qwen3-32B, Qwen3-30B-A3B, Phi-3-mini, Qwen2.5-0.5B.
const OTHERS: [Heads; 7] = [
    (28, 4, 128),
    (32, 32, 128),
    (40, 8, 128),
    (64, 8, 128),
    (32, 4, 128),
    (32, 32, 96),
    (14, 2, 64),
];

fn random(stream: &Stream, len: usize, scale: f32) -> Result<DeviceBuffer<bf16>, CudaError> {
    let buffer = DeviceBuffer::new(stream.device(), len)?;
    fill_random(stream, &buffer, len as u32, scale)?;
    Ok(buffer)
}

/// Median microseconds of a captured chain.
fn time(
    stream: &Stream,
    chain: impl FnOnce(&Stream) -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    struct Failure(Box<dyn Error>);
    impl From<CudaError> for Failure {
        fn from(error: CudaError) -> Self {
            Self(error.into())
        }
    }
    let graph = Graph::capture(stream, |stream| chain(stream).map_err(Failure)).map_err(|f| f.0)?;
    let exec = graph.instantiate()?;
    let (start, end) = (Event::new(stream.device())?, Event::new(stream.device())?);
    let mut times = Vec::new();
    for replay in 0..REPLAYS + 3 {
        start.record(stream)?;
        // SAFETY: the caller's buffers outlive this call, which waits for every launch.
        unsafe { exec.launch(stream) }?;
        end.record(stream)?;
        end.synchronize()?;
        if replay >= 3 {
            times.push(f64::from(end.ms_since(&start)?) * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[REPLAYS / 2])
}

/// Microseconds a layer, with `num_seqs` sequences of `context` tokens, blocks shuffled.
fn attention(
    stream: &Stream,
    heads: Heads,
    num_seqs: u32,
    context: u32,
) -> Result<f64, Box<dyn Error>> {
    let (num_heads, num_kv_heads, head_dim) = heads;
    let columns = num_heads * head_dim;
    let blocks_per_seq = context.div_ceil(BLOCK_SIZE);
    let num_blocks = num_seqs * blocks_per_seq;
    let cache_len = (num_blocks * BLOCK_SIZE * num_kv_heads * head_dim) as usize;
    let layer = |_| {
        Ok((
            random(stream, cache_len, 2.0)?,
            random(stream, cache_len, 2.0)?,
        ))
    };
    let caches = (0..LAYERS)
        .map(layer)
        .collect::<Result<Vec<_>, CudaError>>()?;
    // An odd step walks all of a power of two: blocks of a sequence lie apart.
    let size = num_blocks.next_power_of_two();
    let table: Vec<u32> = (0..size)
        .map(|i| i * 77 % size)
        .filter(|&b| b < num_blocks)
        .collect();
    let block_table = DeviceBuffer::from_slice(stream, &table)?;
    let seq_lens = DeviceBuffer::from_slice(stream, &vec![context; num_seqs as usize])?;
    let q = random(stream, (num_seqs * columns) as usize, 2.0)?;
    let out = random(stream, (num_seqs * columns) as usize, 2.0)?;
    let workspace = AttentionWorkspace::new(stream.device(), num_seqs, num_heads, head_dim)?;
    let us = time(stream, |stream| {
        for (k, v) in &caches {
            let step = PagedDecodeAttention {
                q: Matrix::dense(&q, num_seqs, columns)?,
                cache: KvCache {
                    k,
                    v,
                    num_kv_heads,
                    head_dim,
                },
                block_table: &block_table,
                max_blocks_per_seq: blocks_per_seq,
                seq_lens: &seq_lens,
                out: Matrix::dense(&out, num_seqs, columns)?,
                window: None,
                scale: 1.0 / (head_dim as f32).sqrt(),
                reads_early: true,
            };
            paged_decode_attention(stream, &step, &workspace)?;
        }
        Ok(())
    })?;
    Ok(us / LAYERS as f64)
}

/// Microseconds of one normalisation with its residual addition.
fn norm(stream: &Stream, tokens: u32) -> Result<f64, Box<dyn Error>> {
    let len = (tokens * HIDDEN) as usize;
    let (x, residual, y) = (
        random(stream, len, 2.0)?,
        random(stream, len, 2.0)?,
        random(stream, len, 2.0)?,
    );
    let weight = random(stream, HIDDEN as usize, 2.0)?;
    let us = time(stream, |stream| {
        for _ in 0..LAYERS {
            let norm = RmsNorm {
                x: Matrix::dense(&x, tokens, HIDDEN)?,
                residual: Some(Matrix::dense(&residual, tokens, HIDDEN)?),
                weight: Matrix::dense(&weight, 1, HIDDEN)?,
                y: Matrix::dense(&y, tokens, HIDDEN)?,
                epsilon: 1e-5,
            };
            rms_norm(stream, &norm)?;
        }
        Ok(())
    })?;
    Ok(us / LAYERS as f64)
}

fn kv_bytes(heads: Heads, num_seqs: u32, context: u32) -> f64 {
    f64::from(num_seqs * context) * f64::from(4 * heads.1 * heads.2)
}

fn cases() -> Vec<(Heads, u32, u32)> {
    let mut cases = Vec::new();
    for context in [128, 1024, 4096, 16384] {
        cases.extend([1, 8, 16, 32, 64].map(|num_seqs| (LLAMA3_8B, num_seqs, context)));
    }
    for heads in OTHERS {
        cases.extend([1, 16, 64].map(|num_seqs| (heads, num_seqs, 1024)));
    }
    cases.retain(|&(heads, seqs, context)| kv_bytes(heads, seqs, context) * LAYERS as f64 <= 60e9);
    cases
}

fn run() -> Result<(), Box<dyn Error>> {
    let device = Device::open(0)?;
    let stream = Stream::new(&device)?;
    println!(
        "{:>10} {:>4} {:>8} | {:>8} {:>8} {:>6} {:>5}",
        "heads", "seqs", "context", "us", "floor us", "TB/s", "%"
    );
    let mut rows = Vec::new();
    for (heads, num_seqs, context) in cases() {
        let us = attention(&stream, heads, num_seqs, context)?;
        let bytes = kv_bytes(heads, num_seqs, context);
        let (floor, rate) = (bytes / CEILING_BYTES_PER_US, bytes / us / 1e6);
        let heads = format!("{}/{}x{}", heads.0, heads.1, heads.2);
        println!(
            "{heads:>10} {num_seqs:>4} {context:>8} | {us:8.2} {floor:8.2} {rate:6.2} {:5.1}",
            100.0 * floor / us
        );
        rows.push(json!({
            "heads": heads, "seqs": num_seqs, "context": context, "us": us, "floor_us": floor,
        }));
    }
    println!("rms_norm with residual, hidden {HIDDEN}");
    let mut norms = Vec::new();
    for tokens in [1, 8, 64] {
        let us = norm(&stream, tokens)?;
        println!("{tokens:>4} tokens {us:8.2} us");
        norms.push(json!({ "tokens": tokens, "us": us }));
    }
    if let Some(path) = std::env::args().nth(1) {
        let report = json!({ "attention": rows, "rms_norm": norms });
        std::fs::write(path, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
