//! The CUDA back end as an [`Executor`]: a step is one copy and one graph launch, its outcome is read from host memory
//! that the device writes.
//!
//! `launch` writes the plan into one half of a double buffer, queues its copy on a stream of its own, and launches the graph of
//! the tightest bucket; decode tokens come from what the device sampled before, so two steps can be in flight. `wait`
//! polls a word that the step's last kernel writes; nothing is synchronised. Used by one thread at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use izar_kernels::{CudaError, Device, MappedRegion, Mark, StepGate, StepMarks, Stream};
use izar_model::Checkpoint;
use izar_ring::RingLayout;
use izar_transport::InProcess;
use thiserror::Error;

use super::clock::DeviceClock;
use super::error::{CudaModelError, StepError};
use super::graphs::StepGraphs;
use super::grid::Grid;
use super::half::{Half, StepLimits};
use super::memory::{BLOCK_SIZE, MemoryError, MemoryPlan, MemoryUse, graph_bytes, kv_block_bytes};
use super::model::CudaModel;
use super::prompts::PromptScorer;
use super::stages::Variant;
use super::step;
use crate::driver::{Executor, ExecutorFailed, StepWork};

/// How often a step that takes its time is looked after: a device fault never completes it.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// Polls between looks at the clock.
const POLLS: u32 = 32;
/// How long the poll sleeps where another step is queued behind: nobody waits for this thread.
const NAP: Duration = Duration::from_micros(20);

/// What the attention kernels take.
const MAX_NUM_SEQS: u32 = 1024;

/// A launched step.
struct InFlight {
    work: Box<StepWork>,
    step: u64,
    /// Prompts are scored behind it.
    scores_prompts: bool,
}

/// See the module documentation.
pub struct CudaExecutor {
    pub(super) graphs: StepGraphs,
    pub(super) model: CudaModel,
    pub(super) halves: [Half; 2],
    prompts: PromptScorer,
    pub(super) stream: Stream,
    copies: Stream,
    pub(super) clock: DeviceClock,
    in_flight: VecDeque<InFlight>,
    /// Slots of the samples that are being read; kept for its memory.
    slots: Vec<u32>,
    /// Steps launched: the number of the last.
    launched: u64,
    memory: MemoryPlan,
    capture_s: f32,
}

/// Sizes of a [`CudaExecutor`].
#[derive(Clone, Debug)]
pub struct CudaExecutorOptions {
    /// Share of the device's memory to use, by this and other processes together.
    pub gpu_memory_utilization: f64,
    /// KV blocks; what the memory allows if not given.
    pub num_kv_blocks: Option<u32>,
    /// Longest sequence, prompt and output.
    pub max_model_len: u32,
    /// Sequences of a step at most; 1024 at most.
    pub max_num_seqs: u32,
    /// Tokens of a step at most.
    pub max_num_batched_tokens: u32,
}

/// Why an executor did not start.
#[derive(Debug, Error)]
pub enum ExecutorError {
    /// More sequences than the kernels take.
    #[error("max_num_seqs is {0}, the CUDA engine runs at most {MAX_NUM_SEQS} at once")]
    TooManySeqs(u32),
    /// The model.
    #[error(transparent)]
    Model(#[from] CudaModelError),
    /// The device's memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A step could not be captured.
    #[error("cannot capture a step: {0}")]
    Capture(#[from] StepError),
    /// A CUDA call.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl CudaExecutor {
    /// Loads the weights of `checkpoint` onto the first device, deals out its memory, and captures every bucket.
    /// `progress(done, total)` is told bytes of weights.
    ///
    /// # Errors
    /// [`ExecutorError`].
    ///
    /// # Panics
    /// If there are fewer tokens than sequences in a step, or none.
    pub fn start(
        checkpoint: &Checkpoint,
        options: &CudaExecutorOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, ExecutorError> {
        Self::start_with(checkpoint, options, None, progress)
    }

    /// An executor whose steps a resident scheduler launches: each waits for its turn at a gate, so it is of no use as an
    /// [`Executor`].
    pub(crate) fn start_gated(
        checkpoint: &Checkpoint,
        options: &CudaExecutorOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, StepGate), ExecutorError> {
        let stream = Stream::new(&Device::open(0)?)?;
        let gate = StepGate::new(&stream)?;
        let executor = Self::start_with(checkpoint, options, Some(&gate), progress)?;
        Ok((executor, gate))
    }

    fn start_with(
        checkpoint: &Checkpoint,
        options: &CudaExecutorOptions,
        gate: Option<&StepGate>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, ExecutorError> {
        let mut executor = Self::start_uncaptured(checkpoint, options, gate, progress)?;
        let begun = Instant::now();
        let grid = Grid::new(options.max_num_seqs, options.max_num_batched_tokens);
        let (model, halves) = (&executor.model, &executor.halves);
        executor.graphs = StepGraphs::capture(&executor.stream, grid, |stream, bucket, half| {
            if let Some(gate) = gate {
                izar_kernels::gate(stream, &halves[half].plan, gate)?;
            }
            step::record(model, stream, bucket, &halves[half], Variant::FULL)
        })?;
        executor.capture_s = begun.elapsed().as_secs_f32();
        Ok(executor)
    }

    /// An executor that cannot launch steps yet.
    pub(super) fn start_uncaptured(
        checkpoint: &Checkpoint,
        options: &CudaExecutorOptions,
        gate: Option<&StepGate>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, ExecutorError> {
        if options.max_num_seqs > MAX_NUM_SEQS {
            return Err(ExecutorError::TooManySeqs(options.max_num_seqs));
        }
        let device = Device::open(0)?;
        let stream = Stream::new(&device)?;
        let limits = StepLimits {
            max_num_seqs: options.max_num_seqs as usize,
            max_num_tokens: options.max_num_batched_tokens as usize,
            max_blocks_per_seq: options.max_model_len.div_ceil(BLOCK_SIZE) as usize + 1,
        };
        let longest = options.max_model_len as usize;
        let mut model = CudaModel::load(&stream, checkpoint, limits, longest, progress)?;
        let halves = [
            Half::new(&stream, limits, gate)?,
            Half::new(&stream, limits, gate)?,
        ];
        let grid = Grid::new(options.max_num_seqs, options.max_num_batched_tokens);
        let memory = deal_out(&device, &model, &grid, options)?;
        model.allocate_cache(&stream, memory.num_kv_blocks)?;
        Ok(Self {
            copies: Stream::new(&device)?,
            clock: DeviceClock::calibrate(&stream)?,
            in_flight: VecDeque::with_capacity(2),
            slots: Vec::with_capacity(limits.max_num_seqs),
            launched: 0,
            memory,
            capture_s: 0.0,
            graphs: StepGraphs::none(),
            prompts: PromptScorer::new(&device, limits)?,
            model,
            halves,
            stream,
        })
    }

    /// KV blocks.
    pub fn num_kv_blocks(&self) -> u32 {
        self.memory.num_kv_blocks
    }

    /// Bytes of the KV cache.
    pub fn kv_bytes(&self) -> u64 {
        self.memory.kv_bytes()
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> u64 {
        self.model.weights.bytes()
    }

    /// Shapes that are captured.
    pub fn num_buckets(&self) -> usize {
        self.graphs.num_buckets()
    }

    /// What capturing them took, in seconds.
    pub fn capture_s(&self) -> f32 {
        self.capture_s
    }

    /// The first `num_rows` rows of logits `[num_rows, vocab_size]` of the last step, in the order of its samples. Waits for the
    /// device; for tests and diagnosis.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn logits(&self, num_rows: usize) -> Result<Vec<f32>, CudaError> {
        let (stride, vocab_size) = (
            self.model.activations.logits_stride() as usize,
            self.model.config.vocab_size,
        );
        let mut padded = vec![0.0; num_rows * stride];
        self.model
            .activations
            .logits
            .read(&self.stream, &mut padded)?;
        let rows = padded.chunks_exact(stride);
        Ok(rows.flat_map(|row| &row[..vocab_size]).copied().collect())
    }

    /// Sets every byte of the KV cache and of all activations; for tests.
    ///
    /// # Errors
    /// Those of the device.
    pub fn poison(&self, byte: u8) -> Result<(), CudaError> {
        self.model.fill_bytes(&self.stream, byte)?;
        self.stream.synchronize()
    }

    /// Maps what the device reads of a ring, the words and the input arena: without it no sequence can be masked.
    ///
    /// # Errors
    /// Memory that cannot be page-locked.
    pub fn map_ring(
        &mut self,
        ring: &Arc<InProcess>,
        layout: &RingLayout,
    ) -> Result<(), CudaError> {
        let len = layout.input_arena().end as usize;
        let owner = Box::new(Arc::clone(ring));
        // SAFETY: the region is as long as its layout says, and stays where it is while the owner lives.
        let region =
            unsafe { MappedRegion::register(self.stream.device(), ring.base(), len, owner)? };
        self.model.sampler.map_ring(region);
        Ok(())
    }

    /// Returns whether prompts are scored behind the step.
    fn try_launch(&mut self, work: &StepWork, step: u64) -> Result<bool, StepError> {
        let half = (step % 2) as usize;
        let bindings = &work.bindings[..work.num_bindings];
        self.model.sampler.bind(&self.stream, step, bindings)?;
        self.prompts.bind(bindings, self.model.config.vocab_size);
        self.halves[half].send(work, step, &self.copies, &self.stream)?;
        let decodes_only = work.entries.iter().all(|entry| entry.is_decode);
        let num_tokens = work.tokens.len() as u32;
        self.graphs
            .launch(num_tokens, decodes_only, half, &self.stream)?;
        self.prompts.launch(&self.model, &self.stream, work, step)
    }

    /// What says that a step is complete.
    fn last_marks(&self, step: u64, scores_prompts: bool) -> &StepMarks {
        if scores_prompts {
            self.prompts.marks(step)
        } else {
            &self.halves[(step % 2) as usize].marks
        }
    }

    /// Waits until the oldest step, whose last marks are `marks`, is complete; false when `timeout` passes first.
    fn poll(
        &self,
        step: u64,
        marks: &StepMarks,
        timeout: Duration,
    ) -> Result<bool, ExecutorFailed> {
        let has_successor = self.in_flight.len() == 2;
        let begun = Instant::now();
        let mut next_check = CHECK_INTERVAL;
        loop {
            for _ in 0..POLLS {
                if marks.completed_step() == step {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            let waited = begun.elapsed();
            if waited >= timeout {
                return Ok(false);
            }
            if waited >= next_check {
                next_check = waited + CHECK_INTERVAL;
                let idle = self.stream.is_idle().map_err(failed)?;
                if idle && marks.completed_step() != step {
                    return Err(ExecutorFailed(format!(
                        "step {step} ended without an outcome"
                    )));
                }
            }
            if has_successor {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Reads the outcome of a complete step.
    fn collect(&mut self, oldest: &mut InFlight) -> Result<(), ExecutorFailed> {
        let InFlight {
            ref mut work,
            step,
            scores_prompts,
        } = *oldest;
        let marks = &self.halves[(step % 2) as usize].marks;
        let [started, sampling] =
            [Mark::Started, Mark::Sampling].map(|mark| self.clock.at(marks, mark));
        let last_marks = self.last_marks(step, scores_prompts);
        let finished = self.clock.at(last_marks, Mark::Finished);
        work.output.started_ns = started;
        work.output.finished_ns = finished;
        work.output.sampling_ns = finished.saturating_sub(sampling);
        let sampling = work.entries.iter().filter(|entry| entry.samples);
        self.slots.clear();
        self.slots.extend(sampling.map(|entry| entry.slot));
        let slots = self.slots.iter().copied();
        let sampler = &self.model.sampler;
        // The step's last kernel has said that all kernels before it are done.
        if !sampler.read_results(step, slots, &mut work.output) {
            return Err(ExecutorFailed(format!("step {step} left a sample out")));
        }
        if scores_prompts {
            self.prompts.collect(step, &mut work.output);
        }
        Ok(())
    }
}

/// Everything but the KV cache and the graphs is allocated: says how much the cache gets.
fn deal_out(
    device: &Device,
    model: &CudaModel,
    grid: &Grid,
    options: &CudaExecutorOptions,
) -> Result<MemoryPlan, ExecutorError> {
    let (free, total) = device.memory_bytes()?;
    let memory = MemoryUse {
        total: total as u64,
        free: free as u64,
        parts: model.parts(),
        graphs: graph_bytes(&model.config, 2 * grid.buckets().len()),
        kv_block: kv_block_bytes(&model.config),
    };
    let plan = MemoryPlan::new(
        memory,
        options.gpu_memory_utilization,
        options.max_model_len,
        options.num_kv_blocks,
    )?;
    tracing::info!("{plan}");
    Ok(plan)
}

fn failed(error: impl Into<StepError>) -> ExecutorFailed {
    ExecutorFailed(error.into().to_string())
}

impl Executor for CudaExecutor {
    fn launch(&mut self, work: Box<StepWork>) -> Result<(), ExecutorFailed> {
        assert!(self.in_flight.len() < 2, "two steps are in flight");
        self.launched += 1;
        let step = self.launched;
        let scores_prompts = self.try_launch(&work, step).map_err(failed)?;
        self.in_flight.push_back(InFlight {
            work,
            step,
            scores_prompts,
        });
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Box<StepWork>>, ExecutorFailed> {
        let Some(oldest) = self.in_flight.front() else {
            return Ok(None);
        };
        let marks = self.last_marks(oldest.step, oldest.scores_prompts);
        if !self.poll(oldest.step, marks, timeout)? {
            return Ok(None);
        }
        let Some(mut oldest) = self.in_flight.pop_front() else {
            unreachable!("the oldest step is in flight")
        };
        self.collect(&mut oldest)?;
        Ok(Some(oldest.work))
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        // Graphs hold addresses of buffers that are about to be freed. An error was reported by `wait`, or ends here.
        let _ = self.stream.synchronize();
    }
}
