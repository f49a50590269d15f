//! Times paged_prefill_attention over 32 layers with distinct caches: chunks at several contexts, whole
//! prompts, and many short ones; heads of the models that Izar serves.
//!
//! `bench_prefill_attention [OUT.json]`. Each line one captured graph, median of the replays.

use std::error::Error;

use half::bf16;
use izar_kernels::{
    CudaError, Device, DeviceBuffer, DeviceWord, Event, Graph, KvCache, Matrix,
    PagedPrefillAttention, Stream, fill_random, paged_prefill_attention,
};
use serde_json::json;

const LAYERS: usize = 8;
const BLOCK_SIZE: u32 = 16;
const REPLAYS: usize = 11;

/// Query heads, KV heads, head_dim.
type Heads = (u32, u32, u32);

/// `num_entries` chunks of `tokens` tokens that end at `context`.
#[derive(Debug, Clone, Copy)]
struct Case {
    heads: Heads,
    num_entries: u32,
    tokens: u32,
    context: u32,
}

impl Case {
    /// Multiplications and additions of both products, what is masked left out.
    fn operations(self) -> f64 {
        let (tokens, context) = (f64::from(self.tokens), f64::from(self.context));
        let seen = tokens * (context - tokens) + tokens * (tokens + 1.0) / 2.0;
        4.0 * seen * f64::from(self.num_entries * self.heads.0 * self.heads.2)
    }
}

fn random(stream: &Stream, len: usize) -> Result<DeviceBuffer<bf16>, CudaError> {
    let buffer = DeviceBuffer::new(stream.device(), len)?;
    fill_random(stream, &buffer, len as u32, 2.0)?;
    Ok(buffer)
}

/// Median microseconds of a captured chain.
fn time(stream: &Stream, graph: &Graph) -> Result<f64, CudaError> {
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

/// Microseconds a layer.
fn attention(stream: &Stream, case: Case) -> Result<f64, Box<dyn Error>> {
    struct Failure(Box<dyn Error>);
    impl From<CudaError> for Failure {
        fn from(error: CudaError) -> Self {
            Self(error.into())
        }
    }
    let (num_heads, num_kv_heads, head_dim) = case.heads;
    let blocks_per_seq = case.context.div_ceil(BLOCK_SIZE);
    let num_blocks = case.num_entries * blocks_per_seq;
    let cache_len = (num_blocks * BLOCK_SIZE * num_kv_heads * head_dim) as usize;
    let layer = |_| Ok((random(stream, cache_len)?, random(stream, cache_len)?));
    let caches = (0..LAYERS)
        .map(layer)
        .collect::<Result<Vec<_>, CudaError>>()?;
    // An odd step walks all of a power of two: blocks of a sequence lie apart.
    let size = num_blocks.next_power_of_two();
    let table = (0..size).map(|i| i * 77 % size);
    let table: Vec<u32> = table.filter(|&block| block < num_blocks).collect();
    let words = |value: &dyn Fn(u32) -> u32| {
        let words: Vec<u32> = (0..case.num_entries).map(value).collect();
        DeviceBuffer::from_slice(stream, &words)
    };
    let block_tables = DeviceBuffer::from_slice(stream, &table)?;
    let query_starts = words(&|entry| entry * case.tokens)?;
    let (query_lens, seq_lens) = (words(&|_| case.tokens)?, words(&|_| case.context)?);
    let counts = DeviceBuffer::from_slice(stream, &[0, case.num_entries])?;
    let (rows, columns) = (case.num_entries * case.tokens, num_heads * head_dim);
    let row = columns + 2 * num_kv_heads * head_dim;
    let qkv = random(stream, (rows * row) as usize)?;
    let out = random(stream, (rows * columns) as usize)?;
    let graph = Graph::capture(stream, |stream| {
        for (k, v) in &caches {
            let step = PagedPrefillAttention {
                q: Matrix::strided(&qkv, 0, rows, columns, row).map_err(|e| Failure(e.into()))?,
                cache: KvCache {
                    k,
                    v,
                    num_kv_heads,
                    head_dim,
                },
                block_tables: &block_tables,
                max_blocks_per_seq: blocks_per_seq,
                query_starts: &query_starts,
                query_lens: &query_lens,
                seq_lens: &seq_lens,
                first_entry: DeviceWord::new(&counts, 0),
                end_entry: DeviceWord::new(&counts, 4),
                max_entries: case.num_entries,
                out: Matrix::dense(&out, rows, columns).map_err(|e| Failure(e.into()))?,
                window: None,
                scale: 1.0 / (head_dim as f32).sqrt(),
            };
            paged_prefill_attention(stream, &step).map_err(|e| Failure(e.into()))?;
        }
        Ok(())
    })
    .map_err(|failure: Failure| failure.0)?;
    Ok(time(stream, &graph)? / LAYERS as f64)
}

/// Llama-3-8B's heads at several shapes, then other models' at one.
fn cases() -> Vec<Case> {
    let llama3 = (32, 8, 128);
    let shapes = [
        (1, 2048, 8192),
        (1, 2048, 2048),
        (1, 8192, 8192),
        (1, 512, 512),
        (1, 512, 8192),
        (1, 2048, 32768),
        (16, 128, 128),
        (64, 32, 1024),
        (1, 64, 1024),
    ];
    let others = [
        (32, 32, 128),
        (28, 4, 128),
        (40, 8, 128),
        (64, 8, 128),
        (32, 4, 128),
        (32, 32, 96),
        (14, 2, 64),
    ];
    let case = |heads, (num_entries, tokens, context)| Case {
        heads,
        num_entries,
        tokens,
        context,
    };
    let first = shapes.into_iter().map(|shape| case(llama3, shape));
    let rest = others.into_iter().map(|heads| case(heads, (1, 2048, 8192)));
    first.chain(rest).collect()
}

fn run() -> Result<(), Box<dyn Error>> {
    let device = Device::open(0)?;
    let stream = Stream::new(&device)?;
    println!(
        "{:>15} {:>5} {:>7} {:>8} | {:>9} {:>8}",
        "heads", "seqs", "tokens", "context", "us", "TFLOP/s"
    );
    let mut rows = Vec::new();
    for case in cases() {
        let us = attention(&stream, case)?;
        let rate = case.operations() / us / 1e6;
        let heads = format!("{}/{}x{}", case.heads.0, case.heads.1, case.heads.2);
        println!(
            "{heads:>15} {:>5} {:>7} {:>8} | {us:9.2} {rate:8.1}",
            case.num_entries, case.tokens, case.context
        );
        rows.push(json!({
            "heads": heads, "entries": case.num_entries, "tokens": case.tokens, "context": case.context,
            "us": us, "tflops": rate,
        }));
    }
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(path, serde_json::to_string_pretty(&json!(rows))?)?;
    }
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
