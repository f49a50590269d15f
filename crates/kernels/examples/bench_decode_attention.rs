//! Times paged_decode_attention over 32 layers with distinct caches, Llama-3-8B's heads (32 query, 8 KV,
//! head_dim 128), against the memory's read ceiling; and rms_norm, 32 in a row.
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
const HEADS: u32 = 32;
const KV_HEADS: u32 = 8;
const HEAD_DIM: u32 = 128;
const COLUMNS: u32 = HEADS * HEAD_DIM;
const BLOCK_SIZE: u32 = 16;
const REPLAYS: usize = 21;
/// Read rate that decode is held against, measured on an H200 (docs/perf/h200-kernels.md).
const CEILING_BYTES_PER_US: f64 = 4.65e6;

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
fn attention(stream: &Stream, num_seqs: u32, context: u32) -> Result<f64, Box<dyn Error>> {
    let blocks_per_seq = context.div_ceil(BLOCK_SIZE);
    let num_blocks = num_seqs * blocks_per_seq;
    let cache_len = (num_blocks * BLOCK_SIZE * KV_HEADS * HEAD_DIM) as usize;
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
    let q = random(stream, (num_seqs * COLUMNS) as usize, 2.0)?;
    let out = random(stream, (num_seqs * COLUMNS) as usize, 2.0)?;
    let workspace = AttentionWorkspace::new(stream.device(), num_seqs, HEADS, HEAD_DIM)?;
    let us = time(stream, |stream| {
        for (k, v) in &caches {
            let step = PagedDecodeAttention {
                q: Matrix::dense(&q, num_seqs, COLUMNS)?,
                cache: KvCache {
                    k,
                    v,
                    num_kv_heads: KV_HEADS,
                    head_dim: HEAD_DIM,
                },
                block_table: &block_table,
                max_blocks_per_seq: blocks_per_seq,
                seq_lens: &seq_lens,
                out: Matrix::dense(&out, num_seqs, COLUMNS)?,
                window: None,
                scale: 1.0 / (HEAD_DIM as f32).sqrt(),
            };
            paged_decode_attention(stream, &step, &workspace)?;
        }
        Ok(())
    })?;
    Ok(us / LAYERS as f64)
}

/// Microseconds of one normalisation with its residual addition.
fn norm(stream: &Stream, tokens: u32) -> Result<f64, Box<dyn Error>> {
    let len = (tokens * COLUMNS) as usize;
    let (x, residual, y) = (
        random(stream, len, 2.0)?,
        random(stream, len, 2.0)?,
        random(stream, len, 2.0)?,
    );
    let weight = random(stream, COLUMNS as usize, 2.0)?;
    let us = time(stream, |stream| {
        for _ in 0..LAYERS {
            let norm = RmsNorm {
                x: Matrix::dense(&x, tokens, COLUMNS)?,
                residual: Some(Matrix::dense(&residual, tokens, COLUMNS)?),
                weight: Matrix::dense(&weight, 1, COLUMNS)?,
                y: Matrix::dense(&y, tokens, COLUMNS)?,
                epsilon: 1e-5,
            };
            rms_norm(stream, &norm)?;
        }
        Ok(())
    })?;
    Ok(us / LAYERS as f64)
}

fn run() -> Result<(), Box<dyn Error>> {
    let device = Device::open(0)?;
    let stream = Stream::new(&device)?;
    println!(
        "paged_decode_attention, {HEADS} heads over {KV_HEADS}, head_dim {HEAD_DIM}, a layer; ceiling 4.65 TB/s"
    );
    println!(
        "{:>4} {:>8} | {:>8} {:>8} {:>6} {:>5}",
        "seqs", "context", "us", "floor us", "TB/s", "%"
    );
    let mut rows = Vec::new();
    for context in [128, 1024, 4096, 16384] {
        for num_seqs in [1, 8, 16, 32, 64] {
            let bytes = f64::from(num_seqs * context) * f64::from(4 * KV_HEADS * HEAD_DIM);
            if bytes * LAYERS as f64 > 60e9 {
                continue;
            }
            let us = attention(&stream, num_seqs, context)?;
            let (floor, rate) = (bytes / CEILING_BYTES_PER_US, bytes / us / 1e6);
            println!(
                "{num_seqs:>4} {context:>8} | {us:8.2} {floor:8.2} {rate:6.2} {:5.1}",
                100.0 * floor / us
            );
            rows.push(json!({ "seqs": num_seqs, "context": context, "us": us, "floor_us": floor }));
        }
    }
    println!("rms_norm with residual, hidden {COLUMNS}");
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
