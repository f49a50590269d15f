//! Nanoseconds to sample one row, for the vocabularies and features that matter.
//!
//! `cargo run --release -p izar-engine --example bench_sampling`
//!
//! Logits look like a language model's: a bell of unlikely tokens and a few likely ones (`peaked`),
//! or only the bell (`flat`). Every row is restored before it is sampled, so that it is in the
//! cache as it is after the projection that computed it. The last column is the time over that of
//! reading the row once, which is the floor for any sampler.

use izar_engine::sampling::{
    Draws, RowLimits, RowState, Sampler, SamplingParams, TokenLists, elementary,
};
use std::hint::black_box;
use std::time::{Duration, Instant};

const VOCAB_SIZES: [usize; 2] = [49_152, 151_936];
const MAX_LOGPROBS: usize = 20;
const HISTORY: usize = 1024;

fn main() {
    println!("cpu: {}, one thread", cpu_name());
    println!(
        "{:>8} {:7} {:34} {:>9} {:>8}",
        "vocab", "logits", "features", "ns/row", "x floor"
    );
    for vocab_size in VOCAB_SIZES {
        for (shape, logits) in [("peaked", peaked(vocab_size)), ("flat", flat(vocab_size))] {
            let floor = time_of_reading(&logits);
            for (name, params) in cases() {
                let ns = bench(&logits, &params);
                let ratio = ns / floor;
                println!("{vocab_size:>8} {shape:7} {name:34} {ns:>9.0} {ratio:>8.1}");
            }
        }
    }
}

fn cases() -> Vec<(&'static str, SamplingParams)> {
    let plain = SamplingParams::default();
    let cut = SamplingParams {
        temperature: 0.8,
        top_p: 0.95,
        top_k: 50,
        min_p: 0.02,
        ..plain
    };
    let penalised = SamplingParams {
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.2,
        ..cut
    };
    vec![
        ("greedy", SamplingParams::greedy()),
        ("temperature", plain),
        (
            "top-p",
            SamplingParams {
                top_p: 0.95,
                ..plain
            },
        ),
        ("top-k", SamplingParams { top_k: 50, ..plain }),
        (
            "min-p",
            SamplingParams {
                min_p: 0.05,
                ..plain
            },
        ),
        ("top-p + top-k + min-p", cut),
        (
            "all penalties, history 1024",
            SamplingParams {
                temperature: 0.0,
                top_k: 0,
                ..penalised
            },
        ),
        ("cuts + all penalties", penalised),
        (
            "greedy + logprobs 20",
            SamplingParams {
                logprobs: Some(20),
                ..SamplingParams::greedy()
            },
        ),
        (
            "cuts + penalties + logprobs 20",
            SamplingParams {
                logprobs: Some(20),
                ..penalised
            },
        ),
    ]
}

/// The median time of a row, without the copy that restores the logits.
fn bench(logits: &[f32], params: &SamplingParams) -> f64 {
    let limits = RowLimits {
        vocab_size: logits.len(),
        max_model_len: 1 << 20,
        max_logprobs: MAX_LOGPROBS,
    };
    let mut row = RowState::new(limits);
    let mut sampler = Sampler::new(logits.len());
    let prompt: Vec<u32> = (0..HISTORY as u32)
        .map(|i| i * 37 % logits.len() as u32)
        .collect();
    let bound = row.bind(
        params,
        &TokenLists::default(),
        &prompt,
        prompt[..HISTORY / 4].iter().copied(),
    );
    bound.expect("the parameters are valid");
    let mut scratch = logits.to_vec();
    let mut times = Vec::new();
    let mut spent = Duration::ZERO;
    while spent < Duration::from_millis(60) {
        scratch.copy_from_slice(logits);
        let start = Instant::now();
        sampler
            .sample(&mut scratch, &mut row, None)
            .expect("the logits are finite");
        times.push(start.elapsed());
        spent += start.elapsed();
    }
    times.sort();
    times[times.len() / 2].as_nanos() as f64
}

fn flat(vocab_size: usize) -> Vec<f32> {
    // Three words make a bell: the sum of uniforms is close to normal, here with a deviation of
    // about 2.5.
    let draws = Draws {
        key: [1, 2],
        position: 0,
    };
    let uniform = |word: u32| (word as f32 / 4_294_967_296.0 - 0.5) * 5.0;
    (0..vocab_size as u32)
        .map(|token| {
            [0, 1, 2]
                .map(|i| {
                    uniform(
                        Draws {
                            position: i,
                            ..draws
                        }
                        .word(token),
                    )
                })
                .iter()
                .sum()
        })
        .collect()
}

fn peaked(vocab_size: usize) -> Vec<f32> {
    let mut logits = flat(vocab_size);
    for rank in 0..20u32 {
        let token = Draws {
            key: [3, 4],
            position: rank,
        }
        .word(0) as usize
            % vocab_size;
        logits[token] = 22.0 - 2.0 * elementary::ln_positive(1.0 + rank as f32) - 0.3 * rank as f32;
    }
    logits
}

/// The best time of reading the row once, in nanoseconds: comparing it with itself, by the C
/// library's vector code.
fn time_of_reading(logits: &[f32]) -> f64 {
    let words: Vec<u32> = logits.iter().map(|x| x.to_bits()).collect();
    let mut best = f64::INFINITY;
    for _ in 0..2000 {
        let (a, b) = (black_box(&words[..]), black_box(&words[..]));
        let start = Instant::now();
        let is_equal = black_box(a == b);
        best = best.min(start.elapsed().as_nanos() as f64);
        assert!(is_equal);
    }
    best
}

fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    model
        .map_or("unknown", |name| name.trim_start_matches(['\t', ' ', ':']))
        .to_string()
}
