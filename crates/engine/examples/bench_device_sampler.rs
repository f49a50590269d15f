//! Microseconds to sample a step's rows on the device, by batch and features, over a vocabulary of 151,936.
//!
//! `bench_device_sampler [OUT.json]`. Logits look like a language model's: a bell of unlikely tokens and a few likely ones.
//! Each time is the median of the replays of one captured graph of [`CHAIN`] steps. *hot*: all steps read one buffer, which
//! stays in L2 as far as it fits, as after the projection that wrote it; *cold*: they rotate among four. The floor is reading the
//! logits once from memory at 4.65 TB/s.

use std::error::Error;

use bytemuck::Zeroable;
use izar_engine::cuda::sampler::{DeviceSampler, DeviceSamplerOptions};
use izar_engine::driver::RowBinding;
use izar_engine::sampling::{LogitBias, SamplingParams};
use izar_kernels::{
    CudaError, Device, DeviceBuffer, Event, Graph, SamplerError, StepInputs, StepMeta, Stream,
};
use serde_json::{Value, json};

const VOCAB_SIZE: usize = 151_936;
const HISTORY: usize = 1024;
const CHAIN: usize = 20;
const REPLAYS: usize = 21;
const BUFFERS: usize = 4;
const CEILING_BYTES_PER_US: f64 = 4.65e6;

/// A bell of 150,000 tokens with 40 likely ones above it, at places that `shift` moves.
fn peaked(shift: usize) -> Vec<f32> {
    let pseudo = |i: usize| {
        (i as u32)
            .wrapping_mul(2_654_435_761)
            .rotate_left(13)
            .wrapping_mul(0x85EB_CA6B)
    };
    let mut row: Vec<f32> = (0..VOCAB_SIZE)
        .map(|i| {
            let word = pseudo(i + shift);
            let sum: u32 = (0..4).map(|j| word >> (8 * j) & 0xFF).sum();
            2.0 * (sum as f32 / 128.0 - 4.0) + (word >> 20) as f32 * 1e-5
        })
        .collect();
    for i in 0..40 {
        row[pseudo(i * 77 + shift) as usize % VOCAB_SIZE] = 14.0 - 0.25 * i as f32;
    }
    row
}

fn cases() -> Vec<(&'static str, RowBinding)> {
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
    let of = |params: SamplingParams| {
        let history: Vec<u32> = (0..HISTORY as u32)
            .map(|i| i * 131 % VOCAB_SIZE as u32)
            .collect();
        let mut binding = RowBinding {
            params,
            history,
            ..RowBinding::default()
        };
        binding.limits.prompt_len = HISTORY as u32 / 2;
        binding.limits.max_tokens = u32::MAX;
        binding
    };
    let mut everything = of(SamplingParams {
        min_tokens: u32::MAX,
        ..penalised
    });
    everything.stop_ids = vec![5, 6, 7];
    everything.logit_bias = (0..20)
        .map(|i| LogitBias {
            token: i * 7000,
            bias: 0.5,
        })
        .collect();
    everything.bad_words = vec![2, 100, 101, 1, 102];
    everything.allowed_ids = (0..VOCAB_SIZE as u32).filter(|id| id % 32 != 3).collect();
    let mut with_logprobs = everything.clone();
    with_logprobs.params.logprobs = Some(5);
    vec![
        ("greedy", of(SamplingParams::greedy())),
        ("temperature", of(plain)),
        (
            "top-p 0.95",
            of(SamplingParams {
                top_p: 0.95,
                ..plain
            }),
        ),
        ("top-k 50", of(SamplingParams { top_k: 50, ..plain })),
        (
            "min-p 0.02",
            of(SamplingParams {
                min_p: 0.02,
                ..plain
            }),
        ),
        ("top-k, top-p, min-p, temperature", of(cut)),
        ("+ three penalties", of(penalised)),
        ("+ mask, biases, bad words, min tokens", everything),
        ("+ 5 logprobs", with_logprobs),
    ]
}

struct Bench {
    stream: Stream,
    sampler: DeviceSampler,
    inputs: StepInputs,
    buffers: Vec<DeviceBuffer<f32>>,
    step: u64,
}

impl Bench {
    fn new(max_batch: usize) -> Result<Self, Box<dyn Error>> {
        let device = Device::open(0)?;
        let stream = Stream::new(&device)?;
        let options = DeviceSamplerOptions {
            max_num_seqs: max_batch as u32,
            max_model_len: 1 << 20,
            vocab_size: VOCAB_SIZE as u32,
            eos_ids: vec![1],
        };
        let sampler = DeviceSampler::new(&device, &stream, &options)?;
        let inputs = StepInputs::new(&device, 1, max_batch as u32, 1)?;
        let mut buffers = Vec::new();
        for buffer in 0..BUFFERS {
            let mut rows = peaked(buffer * 1009);
            rows.reserve(max_batch * VOCAB_SIZE);
            for _ in 1..max_batch {
                // Each row is the one before it, turned: other places, same shape.
                let start = rows.len() - VOCAB_SIZE;
                rows.extend_from_within(start + 997..start + VOCAB_SIZE);
                rows.extend_from_within(start..start + 997);
            }
            buffers.push(DeviceBuffer::from_slice(&stream, &rows)?);
        }
        Ok(Self {
            stream,
            sampler,
            inputs,
            buffers,
            step: 0,
        })
    }

    /// Median microseconds of a step.
    fn time(
        &mut self,
        batch: usize,
        binding: &RowBinding,
        num_buffers: usize,
    ) -> Result<f64, Box<dyn Error>> {
        let bindings: Vec<RowBinding> = (0..batch as u32)
            .map(|row| RowBinding {
                row,
                ..binding.clone()
            })
            .collect();
        let rows: Vec<u32> = (0..batch as u32).collect();
        self.step += 1;
        let mut meta = StepMeta::zeroed();
        meta.num_samples = batch as u32;
        meta.step = self.step;
        self.inputs.meta.write(&self.stream, &[meta])?;
        self.inputs.sample_rows.write(&self.stream, &rows)?;
        self.sampler.bind(&self.stream, self.step, &bindings)?;
        self.stream.synchronize()?;
        let graph = Graph::capture(&self.stream, |stream| -> Result<(), Failure> {
            for i in 0..CHAIN {
                let logits = &self.buffers[i % num_buffers];
                self.sampler.record(
                    stream,
                    logits,
                    VOCAB_SIZE as u32,
                    &self.inputs,
                    batch as u32,
                )?;
            }
            Ok(())
        });
        let exec = graph.map_err(|Failure(error)| error)?.instantiate()?;
        let (start, end) = (
            Event::new(self.stream.device())?,
            Event::new(self.stream.device())?,
        );
        let mut times = Vec::new();
        for _ in 0..REPLAYS + 2 {
            start.record(&self.stream)?;
            // SAFETY: everything the graph names lives in `self`.
            unsafe { exec.launch(&self.stream)? };
            end.record(&self.stream)?;
            self.stream.synchronize()?;
            times.push(f64::from(end.ms_since(&start)?) * 1e3 / CHAIN as f64);
        }
        let times = &mut times[2..];
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

struct Failure(Box<dyn Error>);

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        Self(error.into())
    }
}

impl From<SamplerError> for Failure {
    fn from(error: SamplerError) -> Self {
        Self(error.into())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let batches = [1, 8, 64, 256];
    let mut bench = Bench::new(256)?;
    let mut table: Vec<Value> = Vec::new();
    println!(
        "{:40} {:>6} {:>8} {:>8} {:>8}",
        "features", "batch", "hot us", "cold us", "floor us"
    );
    for (features, binding) in cases() {
        for batch in batches {
            let hot = bench.time(batch, &binding, 1)?;
            let cold = bench.time(batch, &binding, BUFFERS)?;
            let floor = (batch * VOCAB_SIZE * 4) as f64 / CEILING_BYTES_PER_US;
            println!("{features:40} {batch:>6} {hot:>8.2} {cold:>8.2} {floor:>8.2}");
            table.push(json!({"features": features, "batch": batch, "hot_us": hot, "cold_us": cold, "floor_us": floor}));
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(path, serde_json::to_string_pretty(&table)?)?;
    }
    Ok(())
}
