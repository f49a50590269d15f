//! What serving takes: memory, and CPU time beside the engine.

use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::prompts::{Rng, passage};
use crate::server::{Server, model_path};

const MIB: u64 = 1 << 20;

/// Resident memory of a process, in bytes.
fn resident_bytes(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("Linux");
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Rss:"))
        .expect("a line Rss");
    let kib = line.trim().trim_end_matches("kB").trim();
    kib.parse::<u64>().expect("a number") * 1024
}

#[test]
fn memory_is_within_1_3_of_the_file_plus_the_kv_pool() {
    const NUM_KV_BLOCKS: u64 = 256;
    /// f16 keys and values of 30 layers with 3 heads of 64, and 16 tokens in a block.
    const KV_BLOCK_BYTES: u64 = 2 * 30 * 3 * 64 * 16 * 2;
    /// Beside the model: the program, the vocabulary of 49,152 tokens with its merges, activations and logits of a step, the ring's touched pages.
    const REST_BYTES: u64 = 64 * MIB;

    let server = Server::start(&["--num-kv-blocks", "256", "--max-num-seqs", "16"]);
    let start_bytes = resident_bytes(server.pid());
    std::thread::scope(|scope| {
        for seed in 0..16 {
            let server = &server;
            scope.spawn(move || {
                let prompt = passage(&mut Rng(seed), 110);
                server.complete(&json!({"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": true}))
            });
        }
    });
    let bytes = resident_bytes(server.pid());
    let file_bytes = fs::metadata(model_path()).expect("a model").len();
    let kv_bytes = NUM_KV_BLOCKS * KV_BLOCK_BYTES;
    let bound = file_bytes * 13 / 10 + kv_bytes + REST_BYTES;
    println!(
        "resident {} MiB after serving, {} MiB at start; file {} MiB, KV pool {} MiB, bound {} MiB",
        bytes / MIB,
        start_bytes / MIB,
        file_bytes / MIB,
        kv_bytes / MIB,
        bound / MIB
    );
    assert!(bytes <= bound, "{bytes} > {bound}");
}

/// CPU time of the threads of a process that are not the engine's.
fn front_end_cpu_time(pid: u32) -> Duration {
    const ENGINE: [&str; 3] = ["izar-scheduler", "izar-step", "izar-cpu-"];
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("Linux");
    let cpu_time = |task: fs::DirEntry| {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (name, schedstat) = (read("comm"), read("schedstat"));
        if ENGINE.iter().any(|engine| name.starts_with(engine)) {
            return 0;
        }
        let on_cpu = schedstat.split(' ').next().and_then(|ns| ns.parse().ok());
        on_cpu.unwrap_or(0)
    };
    Duration::from_nanos(tasks.flatten().map(cpu_time).sum())
}

#[test]
fn streaming_costs_the_front_end_under_50_us_of_cpu_per_token() {
    const NUM_STREAMS: usize = 64;
    const NUM_TOKENS: usize = 32;
    let server = Server::start(&["--max-model-len", "128"]);
    let body = json!({"prompt": "Once upon a time", "max_tokens": NUM_TOKENS, "ignore_eos": true});
    let before = front_end_cpu_time(server.pid());
    std::thread::scope(|scope| {
        for _ in 0..NUM_STREAMS {
            scope.spawn(|| {
                let streamed = server.stream(&body).finish();
                assert_eq!(streamed.ids.len(), NUM_TOKENS);
            });
        }
    });
    let per_token = (front_end_cpu_time(server.pid()) - before) / (NUM_STREAMS * NUM_TOKENS) as u32;
    println!("{per_token:?} of CPU per token, requests, sockets and the kernel's part included");
    assert!(per_token < Duration::from_micros(50), "{per_token:?}");
}
