//! Random rows, requests and histories.

use izar_engine::driver::RowBinding;
use izar_engine::sampling::{LogitBias, Sampler, SamplingParams, philox};

use crate::check::{Oracle, Outcome, difference};
use crate::{Gpu, MAX_MODEL_LEN, gpu};

/// Numbers that depend on the seed alone.
pub struct Random {
    key: [u32; 2],
    count: u32,
}

impl Random {
    pub fn new() -> Self {
        let seed = std::env::var("IZAR_TEST_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.unwrap().as_nanos() as u64
        });
        eprintln!("seed {seed}");
        Self {
            key: philox::key(seed),
            count: 0,
        }
    }

    pub fn word(&mut self) -> u32 {
        self.count += 1;
        philox::philox4x32_10([self.count, 7, 7, 7], self.key)[0]
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.word() as usize % n
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.word() as f32 / u32::MAX as f32)
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn tokens(&mut self, len: usize, vocab_size: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab_size) as u32).collect()
    }
}

/// A row of logits of one of several characters.
pub fn logits(random: &mut Random, len: usize) -> Vec<f32> {
    let kind = random.below(16);
    // Four numbers of 8 bits make a bell.
    let bell = |random: &mut Random| {
        let word = random.word();
        let sum: u32 = (0..4).map(|i| word >> (8 * i) & 0xFF).sum();
        sum as f32 / 128.0 - 4.0
    };
    let scale = random.of(&[0.02, 1.0, 3.0, 6.0]);
    let mut row: Vec<f32> = (0..len)
        .map(|_| scale * (bell(random) + random.uniform(-0.05, 0.05)))
        .collect();
    let spot = |random: &mut Random| random.below(len);
    match kind {
        // All equal, or few different ones: ties everywhere.
        0 => row.fill(1.5),
        1 => row.iter_mut().for_each(|x| *x = x.round()),
        2 => row
            .iter_mut()
            .for_each(|x| *x = if *x > 0.0 { 0.0 } else { -0.0 }),
        // Special values.
        3 => {
            let at = spot(random);
            row[at] = random.of(&[f32::NAN, -f32::NAN]);
        }
        4 => row.fill(f32::NEG_INFINITY),
        5 => {
            for _ in 0..=random.below(3) {
                let at = spot(random);
                row[at] = f32::INFINITY;
            }
        }
        6 => {
            let keep = random.below(40);
            row.iter_mut()
                .skip(keep)
                .for_each(|x| *x = f32::NEG_INFINITY);
        }
        7 => row.iter_mut().for_each(|x| *x *= 1e37),
        // A few likely tokens above the bell, as language models have.
        8..=13 => {
            for i in 0..30 {
                let at = spot(random);
                row[at] = 4.0 * scale + 5.0 - 0.3 * i as f32;
            }
        }
        _ => {}
    }
    row
}

/// A request of random features and its history.
pub fn binding(random: &mut Random, row: u32, vocab_size: usize) -> RowBinding {
    let history_len = random.below(MAX_MODEL_LEN - 20);
    let mut binding = RowBinding {
        row,
        history: random.tokens(history_len, vocab_size.min(500)),
        ..RowBinding::default()
    };
    binding.params = params(random, vocab_size);
    binding.limits.prompt_len = random.below(history_len + 1) as u32;
    let num_generated = history_len as u32 - binding.limits.prompt_len;
    binding.limits.max_tokens = num_generated + 1 + random.below(30) as u32;
    binding.limits.ignore_eos = random.one_in(3);
    if random.one_in(3) {
        binding.params.min_tokens = num_generated + random.below(6) as u32;
    }
    if random.one_in(3) {
        let len = random.of(&[1, 3, 700]);
        binding.stop_ids = random.tokens(len, vocab_size);
    }
    if random.one_in(4) {
        let len = random.of(&[1, 9, 1000]);
        binding.allowed_ids = random.tokens(len, vocab_size);
    }
    if random.one_in(4) {
        // Most of the vocabulary, as a grammar may allow.
        let (step, vocab_size) = (2 + random.below(30) as u32, vocab_size as u32);
        binding.allowed_ids = (0..vocab_size).filter(|id| id % step != 1).collect();
    }
    if random.one_in(3) {
        let len = random.of(&[1, 20, 600]);
        let tokens = random.tokens(len, vocab_size.min(300));
        let pairs = tokens.into_iter().map(|token| LogitBias {
            token,
            bias: random.uniform(-9.0, 9.0),
        });
        binding.logit_bias = pairs.collect();
    }
    if random.one_in(3) {
        binding.bad_words = bad_words(random, &binding, vocab_size);
    }
    if random.one_in(40) {
        binding.params.top_p = 2.0; // broken
    }
    binding
}

fn params(random: &mut Random, vocab_size: usize) -> SamplingParams {
    let k = vocab_size as u32;
    SamplingParams {
        temperature: random.of(&[0.0, 0.3, 0.7, 1.0, 1.0, 1.7, 30.0, 1e30]),
        top_p: random.of(&[1.0, 1.0, 0.999, 0.95, 0.5, 0.01, 1e-7]),
        top_k: random.of(&[0, 0, 0, 1, 2, 20, 50, 1000, k / 2, k - 1, k, k + 9]),
        min_p: random.of(&[0.0, 0.0, 0.0, 1e-30, 0.001, 0.05, 0.4, 1.0]),
        repetition_penalty: random.of(&[1.0, 1.0, 1.3, 0.8]),
        presence_penalty: random.of(&[0.0, 0.0, 0.4, -0.3]),
        frequency_penalty: random.of(&[0.0, 0.0, 0.2, -0.1, 1e38]),
        seed: u64::from(random.word()) << 32 | u64::from(random.word()),
        min_tokens: 0,
        logprobs: random.of(&[None, None, None, Some(0), Some(1), Some(20), Some(128)]),
    }
}

/// Words of which many end like the history, so that they are about to be completed.
fn bad_words(random: &mut Random, binding: &RowBinding, vocab_size: usize) -> Vec<u32> {
    let generated = &binding.history[binding.limits.prompt_len as usize..];
    let mut words = Vec::new();
    for _ in 0..random.of(&[1, 5, 100]) {
        let len = random.below(6);
        let prefix = match random.one_in(3) {
            true => random.tokens(len, vocab_size),
            false => generated[generated.len() - len.min(generated.len())..].to_vec(),
        };
        words.push(prefix.len() as u32 + 1);
        words.extend(&prefix);
        words.push(random.below(vocab_size) as u32);
    }
    words
}

/// Steps of batches that change, with rows bound anew now and then.
fn run(random: &mut Random, gpu: &mut Gpu, batches: &[usize]) -> Vec<String> {
    let vocab_size = gpu.vocab_size;
    let max_num_seqs = gpu.inputs.sample_rows.len();
    let mut sampler = Sampler::new(vocab_size);
    let mut oracles: Vec<Option<Oracle>> = (0..max_num_seqs).map(|_| None).collect();
    let mut failures = Vec::new();
    for (step, &batch) in batches.iter().enumerate() {
        let first = random.below(max_num_seqs);
        let rows: Vec<u32> = (0..batch)
            .map(|i| ((first + 7 * i) % max_num_seqs) as u32)
            .collect();
        let mut bindings = Vec::new();
        for &row in &rows {
            if oracles[row as usize].is_none() || random.one_in(5) {
                let binding = binding(random, row, vocab_size);
                oracles[row as usize] = Some(Oracle::bind(vocab_size, &binding));
                bindings.push(binding);
            }
        }
        let rows_of_logits: Vec<Vec<f32>> =
            rows.iter().map(|_| logits(random, vocab_size)).collect();
        let got = gpu.step(step as u64 + 1000, &bindings, &rows, &rows_of_logits);
        for ((&row, mut logits), got) in rows.iter().zip(rows_of_logits).zip(&got) {
            let slot = &mut oracles[row as usize];
            let oracle = slot.as_mut().expect("bound above");
            let expected: Outcome = oracle.sample(&mut sampler, &mut logits, None);
            if let Some(what) = difference(got, &expected) {
                let request = oracle.describe();
                failures.push(format!(
                    "vocab {vocab_size} step {step} row {row}: {what}\n{request}"
                ));
                *slot = None; // the two have parted
            }
        }
    }
    failures
}

fn check(vocab_size: usize, stride: usize, max_num_seqs: usize, batches: &[usize]) {
    let Some(mut gpu) = gpu(vocab_size, stride, max_num_seqs) else {
        return;
    };
    let failures = run(&mut Random::new(), &mut gpu, batches);
    let rows: usize = batches.iter().sum();
    eprintln!(
        "vocab {vocab_size}: {} of {rows} rows differ",
        failures.len()
    );
    for failure in failures.iter().take(6) {
        eprintln!("{failure}");
    }
    assert!(
        failures.is_empty(),
        "{} of {rows} rows differ",
        failures.len()
    );
}

#[test]
fn small_vocabularies_of_every_remainder_agree() {
    // One step count for each, more rows than steps: many requests.
    for vocab_size in [1, 2, 3, 5, 31, 127, 129, 1000, 1023, 1025, 4097] {
        check(vocab_size, vocab_size, 64, &[64, 33, 7, 64, 1, 50]);
    }
}

#[test]
fn rows_apart_by_any_stride_agree() {
    check(5001, 5001, 48, &[48, 5, 48]);
    check(5001, 5004, 48, &[48, 5, 48]);
    check(5000, 5120, 48, &[48, 5, 48]);
}

#[test]
fn every_batch_size_agrees() {
    let batches: Vec<usize> = (1..=40).collect();
    check(2000, 2000, 256, &batches);
    check(2000, 2000, 256, &[256, 200, 256]);
}

#[test]
fn long_histories_agree() {
    let batches = [16; 40];
    check(3000, 3000, 16, &batches);
}

#[test]
fn vocabulary_of_32000_agrees() {
    check(32_000, 32_000, 24, &[24, 24, 24, 24]);
}

#[test]
fn vocabulary_of_49152_agrees() {
    check(49_152, 49_152, 24, &[24, 24, 24]);
}

#[test]
fn vocabulary_of_128256_agrees() {
    check(128_256, 128_256, 24, &[24, 24, 24]);
}

#[test]
fn vocabularies_of_152000_agree() {
    check(151_936, 151_936, 24, &[24, 24, 24]);
    check(152_064, 152_064, 24, &[24, 24]);
    check(151_935, 151_935, 24, &[24]);
}

#[test]
fn vocabulary_of_200064_agrees() {
    check(200_064, 200_064, 24, &[24, 24]);
}
