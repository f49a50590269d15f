//! Speed of the CPU forward pass on a model file, beside what the machine could do.
//!
//! ```text
//! cargo run --release --example cpu_bench -- MODEL [--threads N] [--f32] [--context N] [--sequences N]
//! ```
//!
//! Prints, for decoding with 1 and 16 (or N) sequences of 128 (or N) tokens and for a prompt of 512 tokens, the best of several runs: tokens/s, weight bytes read per
//! second and multiply-adds per second, each also as a share of the ceiling measured here: a read of memory by all threads, and the integer
//! kernel on a weight tile that stays in the first-level cache.

use std::path::Path;
use std::time::Instant;

use izar_engine::cpu::{
    Arithmetic, Batch, BatchEntry, CpuModel, CpuOptions, LogitsOf, Team, bench,
};
use izar_model::Checkpoint;

struct Args {
    model: String,
    threads: usize,
    arithmetic: Arithmetic,
    context: usize,
    sequences: usize,
}

fn args() -> Args {
    let mut args = Args {
        model: String::new(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        arithmetic: Arithmetic::Auto,
        context: 128,
        sequences: 16,
    };
    let mut list = std::env::args().skip(1);
    while let Some(arg) = list.next() {
        let mut number = || {
            list.next()
                .and_then(|n| n.parse().ok())
                .expect("a number after the option")
        };
        match arg.as_str() {
            "--threads" => args.threads = number(),
            "--context" => args.context = number(),
            "--sequences" => args.sequences = number(),
            "--f32" => args.arithmetic = Arithmetic::F32,
            model => args.model = model.to_owned(),
        }
    }
    assert!(
        !args.model.is_empty(),
        "usage: cpu_bench MODEL [--threads N] [--f32] [--context N] [--sequences N]"
    );
    args
}

fn main() {
    let args = args();
    let checkpoint = Checkpoint::open(Path::new(&args.model)).unwrap_or_else(|e| panic!("{e}"));
    let config = checkpoint.config().clone();
    let mut options = CpuOptions::new(&config);
    options.num_threads = args.threads;
    options.arithmetic = args.arithmetic;
    options.max_model_len = args.context + 1024;
    let blocks_per_seq = (args.context + 1024).div_ceil(16);
    options.num_kv_blocks = args.sequences * blocks_per_seq;
    options.max_num_seqs = args.sequences;
    options.max_logit_rows = args.sequences;
    let start = Instant::now();
    let mut model =
        CpuModel::load(&checkpoint, options, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
    println!(
        "{} threads, {}, {:?}: loaded in {:.2} s, {:.1} MB packed ({:.1} MB file)",
        args.threads,
        options.isa.name(),
        args.arithmetic,
        start.elapsed().as_secs_f64(),
        model.weight_bytes() as f64 / 1e6,
        checkpoint.total_bytes() as f64 / 1e6,
    );
    drop(checkpoint);
    report_memory("after loading");
    let mut team = Team::new(args.threads).expect("threads");
    let read = bench::read_bandwidth(&mut team);
    let macs = bench::integer_rate(&mut team, options.isa);
    drop(team);
    println!(
        "ceilings: {:.1} GB/s read, {:.0} GMAC/s integer",
        read / 1e9,
        macs / 1e9
    );

    let (weight_bytes, kv_bytes) = (model.weight_bytes() as f64, model.kv_bytes() as f64);
    let block_tables: Vec<u32> = (0..options.num_kv_blocks as u32).collect();
    let mut step = |rows: std::ops::Range<u32>, num_tokens: usize, start_pos: usize| {
        let entries: Vec<BatchEntry> = rows
            .map(|row| BatchEntry {
                row,
                start_pos: start_pos as u32,
                num_tokens: num_tokens as u32,
                logits: LogitsOf::Last,
            })
            .collect();
        let count = entries.len() * num_tokens;
        let tokens: Vec<u32> = (0..count)
            .map(|i| (i * 37 % config.vocab_size) as u32)
            .collect();
        let batch = Batch {
            entries: &entries,
            tokens: &tokens,
            block_tables: &block_tables,
            blocks_per_row: blocks_per_seq,
        };
        let start = Instant::now();
        model.forward(&batch);
        start.elapsed().as_secs_f64()
    };
    // Real contexts: memory that was never written reads from one shared page.
    for row in 0..args.sequences as u32 {
        for start in (0..args.context).step_by(512) {
            step(row..row + 1, (args.context - start).min(512), start);
        }
    }
    let mut report = |name: &str, num_seqs: usize, num_tokens: usize, start_pos: usize| {
        let count = num_seqs * num_tokens;
        let runs = if count > 64 { 7 } else { 60 };
        let seconds = (0..runs)
            .map(|_| step(0..num_seqs as u32, num_tokens, start_pos))
            .fold(f64::INFINITY, f64::min);
        let (head, body) = bench::weights_per_token(&config);
        let work = (head * num_seqs + body * count) as f64 / seconds;
        let bytes = weight_bytes / seconds;
        println!(
            "{name:<24} {:8.1} tok/s  {:6.1} GB/s ({:3.0} %)  {:6.1} GMAC/s ({:3.0} %)",
            count as f64 / seconds,
            bytes / 1e9,
            bytes / read * 100.0,
            work / 1e9,
            work / macs * 100.0,
        );
    };
    report("decode, 1 sequence", 1, 1, args.context);
    let many = format!("decode, {} sequences", args.sequences);
    report(&many, args.sequences, 1, args.context);
    report("prefill, 512 tokens", 1, 512, 0);
    report_memory(&format!(
        "in the end, with {:.1} MB of KV cache",
        kv_bytes / 1e6
    ));
}

/// Resident memory of this process, now and at its peak, where the system tells.
fn report_memory(when: &str) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let megabytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace()
            .next()?
            .parse::<f64>()
            .ok()
            .map(|kib| kib / 1e3 * 1.024)
    };
    if let (Some(now), Some(peak)) = (megabytes("VmRSS:"), megabytes("VmHWM:")) {
        println!("resident {when}: {now:.1} MB, peak {peak:.1} MB");
    }
}
