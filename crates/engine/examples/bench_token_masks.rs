//! Microseconds that token masks add to a step's sampling, over a vocabulary of 151,936.
//!
//! `bench_token_masks [OUT.json]`. A step is: rows bound, masks fetched, rows sampled. *mark* is the step without masks, and with a
//! plain mark where they are fetched; *there* has the mark, and the masks are there already, so that masks less there is what
//! fetching costs.
//! *alone*: nothing else runs, so a mask is fetched while everybody waits, as one that comes during the step's last microseconds.
//! *behind a head*: the head of a model with 4096 features is projected before, and the masks are there when it starts. Each
//! time is the median of the replays of one captured graph; kinds of steps alternate, and a step starts when the one before
//! has ended.

#[path = "../tests/support/masked_ring.rs"]
mod masked_ring;

use std::error::Error;

use bytemuck::Zeroable;
use half::bf16;
use izar_engine::cuda::sampler::{DeviceSampler, DeviceSamplerOptions};
use izar_engine::driver::{RowBinding, StepOutput};
use izar_engine::sampling::SamplingParams;
use izar_kernels::{
    DecodeProjection, Device, DeviceBuffer, Epilogue, Event, Graph, GraphExec, Mark, Matrix,
    ProjectionWorkspace, StepInputs, StepMarks, StepMeta, Stream, decode_projection, fill_random,
    gather_rows, step_mark,
};
use izar_ring::{MAX_OUTPUT_TOKENS, MaskWord};
use serde_json::{Value, json};

use masked_ring::MaskedRing;

const VOCAB_SIZE: usize = 151_936;
const HIDDEN: usize = 4096;
const MAX_BATCH: usize = 64;
const CHAIN: usize = 10;
const REPLAYS: usize = 5;
const ROUNDS: usize = 3;

/// What comes between logits and sampling.
#[derive(Clone, Copy)]
enum Between {
    Mark,
    Masks,
}

struct Bench {
    sampler: DeviceSampler,
    inputs: StepInputs,
    marks: StepMarks,
    logits: DeviceBuffer<f32>,
    head: DeviceBuffer<bf16>,
    hidden: DeviceBuffer<bf16>,
    normed: DeviceBuffer<bf16>,
    workspace: ProjectionWorkspace,
    barrier: DeviceBuffer<u32>,
    ring: MaskedRing,
    /// Of the bindings.
    step: u64,
    /// Of the samples.
    meta_step: u64,
}

impl Bench {
    fn new(stream: &Stream) -> Result<Self, Box<dyn Error>> {
        let device = *stream.device();
        let options = DeviceSamplerOptions {
            max_num_seqs: MAX_BATCH as u32,
            max_model_len: 1 << 20,
            vocab_size: VOCAB_SIZE as u32,
            eos_ids: vec![1],
        };
        let mut sampler = DeviceSampler::new(&device, stream, &options)?;
        let ring = MaskedRing::new(VOCAB_SIZE, MAX_BATCH as u32);
        sampler.map_ring(ring.map(&device));
        let mask: Vec<u32> = (0..VOCAB_SIZE.div_ceil(32) as u32)
            .map(|i| i.wrapping_mul(2_654_435_761) | 1)
            .collect();
        for row in 0..MAX_BATCH {
            ring.write_mask(row, 0, &mask);
            ring.write_mask(row, 1, &mask);
            ring.write_word(
                row,
                MaskWord {
                    generation: ring.masks[row].source().generation(),
                    num_delivered: MAX_OUTPUT_TOKENS,
                    is_open: [false; 2],
                },
            );
        }
        let matrix = |rows: usize, seed| -> Result<DeviceBuffer<bf16>, Box<dyn Error>> {
            let buffer = DeviceBuffer::new(&device, rows * HIDDEN)?;
            fill_random(stream, &buffer, seed, 0.3)?;
            Ok(buffer)
        };
        Ok(Self {
            inputs: StepInputs::new(&device, MAX_BATCH as u32, MAX_BATCH as u32, 1)?,
            marks: StepMarks::new(&device)?,
            logits: DeviceBuffer::new(&device, MAX_BATCH * VOCAB_SIZE)?,
            head: matrix(VOCAB_SIZE, 1)?,
            hidden: matrix(MAX_BATCH, 2)?,
            normed: matrix(MAX_BATCH, 3)?,
            workspace: ProjectionWorkspace::new(&device, stream, device.num_multiprocessors()?)?,
            barrier: DeviceBuffer::new(&device, 1)?,
            sampler,
            ring,
            step: 0,
            meta_step: 0,
        })
    }

    /// Rows of a step, the first `num_masked` of them masked.
    fn prepare(
        &mut self,
        stream: &Stream,
        batch: usize,
        num_masked: usize,
        params: SamplingParams,
    ) -> Result<Vec<RowBinding>, Box<dyn Error>> {
        let bindings = (0..batch).map(|row| {
            let mut binding = RowBinding {
                row: row as u32,
                params,
                history: vec![7; 32],
                masks: (row < num_masked).then(|| self.ring.masks[row].clone()),
                ..RowBinding::default()
            };
            binding.limits.prompt_len = 32;
            binding.limits.max_tokens = 1000;
            binding
        });
        let bindings: Vec<RowBinding> = bindings.collect();
        let rows: Vec<u32> = (0..batch as u32).collect();
        let mut meta = StepMeta::zeroed();
        self.step += 1;
        self.meta_step += 1;
        (meta.num_samples, meta.step) = (batch as u32, self.meta_step);
        self.inputs.meta.write(stream, &[meta])?;
        self.inputs.sample_rows.write(stream, &rows)?;
        self.inputs.sample_tokens.write(stream, &rows)?;
        self.inputs.positions.write(stream, &vec![31; batch])?;
        // The head writes the same again.
        self.project(stream, batch)?;
        stream.synchronize()?;
        Ok(bindings)
    }

    fn project(&self, stream: &Stream, batch: usize) -> Result<(), Box<dyn Error>> {
        let (batch, hidden) = (batch as u32, HIDDEN as u32);
        let rows = Matrix::dense(&self.hidden, batch, hidden)?;
        let normed = Matrix::dense(&self.normed, batch, hidden)?;
        // As the engine's embeddings, it lets nothing start before what came before it has ended.
        gather_rows(stream, rows, &self.inputs.sample_rows, normed)?;
        let projection = DecodeProjection {
            weight: Matrix::dense(&self.head, VOCAB_SIZE as u32, hidden)?,
            x: normed,
            y: Matrix::dense(&self.logits, batch, VOCAB_SIZE as u32)?.into(),
            epilogue: Epilogue::Add {
                bias: None,
                residual: None,
            },
        };
        Ok(decode_projection(stream, &projection, &self.workspace)?)
    }

    /// Puts a step into the stream.
    fn record(
        &mut self,
        stream: &Stream,
        bindings: &[RowBinding],
        between: Between,
        has_head: bool,
    ) -> Result<(), Box<dyn Error>> {
        let batch = bindings.len() as u32;
        self.sampler.bind(stream, self.step, bindings)?;
        if has_head {
            self.project(stream, bindings.len())?;
        }
        let (inputs, marks) = (&self.inputs, &self.marks);
        match between {
            Between::Mark => step_mark(stream, marks, Mark::Sampling, None)?,
            Between::Masks => {
                let marks = Some(marks);
                self.sampler
                    .record_masks(stream, inputs, marks, batch, has_head)?;
            }
        }
        self.sampler
            .record(stream, &self.logits, VOCAB_SIZE as u32, inputs, batch)?;
        // No kernel, so nothing overlaps it.
        self.barrier.fill_bytes(stream, 0)?;
        Ok(())
    }

    /// A graph of [`CHAIN`] steps.
    fn capture(
        &mut self,
        stream: &Stream,
        bindings: &[RowBinding],
        between: Between,
        has_head: bool,
    ) -> Result<GraphExec, Box<dyn Error>> {
        let graph = Graph::capture(stream, |stream| -> Result<(), Box<dyn Error>> {
            (0..CHAIN).try_for_each(|_| self.record(stream, bindings, between, has_head))
        })?;
        Ok(graph.instantiate()?)
    }

    /// Median microseconds of a step with masks fetched, with masks there already, and without masks; the last two with a mark.
    fn time(
        &mut self,
        stream: &Stream,
        bindings: &[RowBinding],
        has_head: bool,
    ) -> Result<[f64; 3], Box<dyn Error>> {
        let mut unmasked = bindings.to_vec();
        unmasked.iter_mut().for_each(|binding| binding.masks = None);
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        // Bindings lie in an arena with room for two steps, so graphs of three kinds cannot live at once. What the first
        // fetches is still there for the second.
        let kinds = [
            (bindings, Between::Masks),
            (bindings, Between::Mark),
            (&unmasked[..], Between::Mark),
        ];
        for _ in 0..ROUNDS {
            for ((bindings, between), times) in kinds.into_iter().zip(&mut times) {
                self.step += 1;
                let graph = self.capture(stream, bindings, between, has_head)?;
                times.extend(replay(stream, &graph)?);
            }
        }
        Ok(times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        }))
    }

    /// Whether the last step sampled a token in every row, as it must with masks that allow some.
    fn check(&self, batch: usize) -> Result<(), Box<dyn Error>> {
        let mut output = StepOutput::default();
        let slots = 0..batch as u32;
        let is_read = self
            .sampler
            .read_results(self.meta_step, slots, &mut output);
        match output.samples.iter().find(|sample| sample.token.is_err()) {
            _ if !is_read => Err("a sample is missing".into()),
            Some(sample) => Err(format!("no token: {sample:?}").into()),
            None => Ok(()),
        }
    }
}

/// Microseconds of a step in each of a graph's replays but the first.
fn replay(stream: &Stream, graph: &GraphExec) -> Result<Vec<f64>, Box<dyn Error>> {
    let (start, end) = (Event::new(stream.device())?, Event::new(stream.device())?);
    let mut times = Vec::with_capacity(REPLAYS + 1);
    for _ in 0..=REPLAYS {
        start.record(stream)?;
        // SAFETY: the bench owns what the graph names and outlives it.
        unsafe { graph.launch(stream)? };
        end.record(stream)?;
        stream.synchronize()?;
        times.push(f64::from(end.ms_since(&start)?) * 1e3 / CHAIN as f64);
    }
    times.remove(0);
    Ok(times)
}

fn main() -> Result<(), Box<dyn Error>> {
    let stream = Stream::new(&Device::open(0)?)?;
    let mut bench = Bench::new(&stream)?;
    let cut = SamplingParams {
        temperature: 0.8,
        top_p: 0.95,
        top_k: 50,
        min_p: 0.02,
        ..SamplingParams::default()
    };
    let mut table: Vec<Value> = Vec::new();
    println!(
        "{:10} {:16} {:>5} {:>7} {:>8} {:>8} {:>8}",
        "sampling", "", "rows", "masked", "mark us", "there us", "masks us"
    );
    for (sampling, params) in [("greedy", SamplingParams::greedy()), ("all cuts", cut)] {
        for has_head in [false, true] {
            let place = if has_head { "behind a head" } else { "alone" };
            for (rows, masked) in [
                (1, 0),
                (1, 1),
                (16, 0),
                (16, 16),
                (32, 0),
                (64, 0),
                (64, 1),
                (64, 16),
                (64, 64),
            ] {
                let bindings = bench.prepare(&stream, rows, masked, params)?;
                let [masks, fetched, mark] = bench.time(&stream, &bindings, has_head)?;
                bench.check(rows)?;
                println!(
                    "{sampling:10} {place:16} {rows:>5} {masked:>7} {mark:>8.2} {fetched:>8.2} {masks:>8.2}"
                );
                table.push(
                    json!({"sampling": sampling, "place": place, "rows": rows, "masked": masked,
                    "mark_us": mark, "fetched_us": fetched, "masks_us": masks}),
                );
            }
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(path, serde_json::to_string_pretty(&table)?)?;
    }
    Ok(())
}
