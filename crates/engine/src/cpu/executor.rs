//! The CPU back end as an [`Executor`]: a thread that runs steps in launch order and samples their rows on the team.
//!
//! The step thread owns the model and all sampler state. The scheduler talks to it through two channels of depth two, one
//! each way, so a step can be launched while another runs.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use izar_ring::{EngineError, MAX_LOGPROBS, MaskState};
use izar_transport::TokenMasks;

use super::memory::Shared;
use super::{Batch, BatchEntry, CpuModel, LogitsOf};
use crate::driver::{
    Executor, ExecutorFailed, NoToken, PromptLogprobs, RowBinding, RowSample, StepEntry,
    StepOutput, StepWork, StopLimits, now_ns,
};
use crate::sampling::stop::{self, FinishReason, StopParams};
use crate::sampling::{BadWords, Logprobs, RowLimits, RowState, SampleError, Sampler, TokenLists};

/// Steps that may be launched and not waited for.
const DEPTH: usize = 2;

/// Sizes of a [`CpuExecutor`], besides the model's.
#[derive(Clone, Debug)]
pub struct CpuExecutorOptions {
    /// Rows: sequences that run at once.
    pub max_num_seqs: usize,
    /// Prompt and generated tokens of the longest sequence.
    pub max_model_len: usize,
    /// The model's end-of-sequence tokens.
    pub eos_ids: Vec<u32>,
}

/// See the module documentation.
pub struct CpuExecutor {
    launches: Option<SyncSender<Box<StepWork>>>,
    outcomes: Receiver<Box<StepWork>>,
    thread: Option<JoinHandle<()>>,
}

impl CpuExecutor {
    /// Starts the step thread.
    ///
    /// # Errors
    /// When the operating system refuses it.
    pub fn start(model: CpuModel, options: CpuExecutorOptions) -> std::io::Result<Self> {
        let (launches, inbox) = sync_channel::<Box<StepWork>>(DEPTH);
        let (outbox, outcomes) = sync_channel(DEPTH);
        let mut runner = StepRunner::new(model, options);
        let thread = std::thread::Builder::new()
            .name("izar-step".into())
            .spawn(move || {
                while let Ok(mut work) = inbox.recv() {
                    runner.run(&mut work);
                    if outbox.send(work).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            launches: Some(launches),
            outcomes,
            thread: Some(thread),
        })
    }

    fn failed(&mut self) -> ExecutorFailed {
        let panic = self.thread.take().and_then(|thread| thread.join().err());
        let message = panic.and_then(|panic| match panic.downcast::<String>() {
            Ok(message) => Some(*message),
            Err(panic) => panic
                .downcast::<&'static str>()
                .ok()
                .map(|message| (*message).to_owned()),
        });
        ExecutorFailed(message.unwrap_or_else(|| "the step thread is gone".into()))
    }
}

impl Executor for CpuExecutor {
    fn launch(&mut self, work: Box<StepWork>) -> Result<(), ExecutorFailed> {
        let sent = self
            .launches
            .as_ref()
            .is_some_and(|launches| launches.send(work).is_ok());
        if sent { Ok(()) } else { Err(self.failed()) }
    }

    fn wait(&mut self, timeout: Duration) -> Result<Option<Box<StepWork>>, ExecutorFailed> {
        match self.outcomes.recv_timeout(timeout) {
            Ok(work) => Ok(Some(work)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.failed()),
        }
    }
}

impl Drop for CpuExecutor {
    fn drop(&mut self) {
        // The thread ends when its inbox has no sender.
        drop(self.launches.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported by `wait` or ends with the engine.
            let _ = thread.join();
        }
    }
}

/// What the step thread keeps of a row.
struct Row {
    state: RowState,
    limits: StopLimits,
    min_tokens: u32,
    stop_ids: Vec<u32>,
    masks: Option<TokenMasks>,
    /// The prompt and how many likely tokens are wanted besides each of its own, where that is wanted.
    prompt: Vec<u32>,
    prompt_logprobs: Option<u32>,
    /// The binding was refused: a front end changed a request after it was validated.
    is_broken: bool,
    /// The newest token: the input of the next decode.
    last_token: u32,
    /// Outcome of the running step: the token and whether it ends the sequence.
    sampled: Result<(u32, Option<FinishReason>), NoToken>,
}

/// What a rank of the team samples with.
struct Tools {
    sampler: Sampler,
    /// The mask of the row at hand.
    mask: Vec<u32>,
    logprobs: Logprobs,
}

/// The step thread's state.
struct StepRunner {
    model: CpuModel,
    eos_ids: Vec<u32>,
    max_model_len: u32,
    /// A row is locked by the one rank that samples it; never contended.
    rows: Box<[Mutex<Row>]>,
    /// One per rank, for the same reason.
    tools: Box<[Mutex<Tools>]>,
    entries: Vec<BatchEntry>,
    /// Entries that sample, in the order of the logits rows.
    sampling: Vec<StepEntry>,
}

impl StepRunner {
    fn new(model: CpuModel, options: CpuExecutorOptions) -> Self {
        let vocab_size = model.config().vocab_size;
        let limits = RowLimits {
            vocab_size,
            max_model_len: options.max_model_len,
            max_logprobs: MAX_LOGPROBS as usize,
        };
        let row = || {
            Mutex::new(Row {
                state: RowState::new(limits),
                limits: StopLimits::default(),
                min_tokens: 0,
                stop_ids: Vec::new(),
                masks: None,
                prompt: Vec::new(),
                prompt_logprobs: None,
                is_broken: true,
                last_token: 0,
                sampled: Err(NoToken::Deferred),
            })
        };
        let tools = || {
            Mutex::new(Tools {
                sampler: Sampler::new(vocab_size),
                mask: vec![0; vocab_size.div_ceil(32)],
                logprobs: Logprobs::new(MAX_LOGPROBS as usize),
            })
        };
        Self {
            eos_ids: options.eos_ids,
            max_model_len: options.max_model_len as u32,
            rows: (0..options.max_num_seqs).map(|_| row()).collect(),
            tools: (0..model.options().num_threads).map(|_| tools()).collect(),
            entries: Vec::with_capacity(options.max_num_seqs),
            sampling: Vec::with_capacity(options.max_num_seqs),
            model,
        }
    }

    fn run(&mut self, work: &mut StepWork) {
        work.output.started_ns = now_ns();
        for binding in &work.bindings[..work.num_bindings] {
            self.bind(binding);
        }
        self.prepare(work);
        self.model.forward(&Batch {
            entries: &self.entries,
            tokens: &work.tokens,
            block_tables: &work.block_tables,
            blocks_per_row: work.blocks_per_row,
        });
        let forward_done_ns = now_ns();
        self.sample();
        self.collect(&mut work.output);
        self.score_prompts(work);
        work.output.finished_ns = now_ns();
        work.output.sampling_ns = work.output.finished_ns - forward_done_ns;
    }

    fn bind(&mut self, binding: &RowBinding) {
        let mut row = lock(&self.rows[binding.row as usize]);
        let (prompt, generated) = binding.history.split_at(binding.limits.prompt_len as usize);
        let lists = TokenLists {
            eos_ids: if binding.limits.ignore_eos {
                &[]
            } else {
                &self.eos_ids
            },
            stop_ids: &binding.stop_ids,
            allowed_ids: &binding.allowed_ids,
            logit_bias: &binding.logit_bias,
            bad_words: BadWords(&binding.bad_words),
        };
        let bound = row
            .state
            .bind(&binding.params, &lists, prompt, generated.iter().copied());
        row.is_broken = bound.is_err();
        row.limits = binding.limits;
        row.min_tokens = binding.params.min_tokens;
        row.stop_ids.clone_from(&binding.stop_ids);
        row.masks.clone_from(&binding.masks);
        row.last_token = binding.history.last().copied().unwrap_or(0);
        row.prompt_logprobs = binding.prompt_logprobs;
        row.prompt.clear();
        if binding.prompt_logprobs.is_some() {
            row.prompt.extend_from_slice(prompt);
        }
    }

    /// Turns the step's entries into the model's, and fills in the decode tokens.
    fn prepare(&mut self, work: &mut StepWork) {
        self.entries.clear();
        self.sampling.clear();
        let mut first_token = 0;
        for (idx, entry) in work.entries.iter().enumerate() {
            if entry.is_decode {
                work.tokens[first_token] = lock(&self.rows[entry.row as usize]).last_token;
            }
            first_token += entry.num_tokens as usize;
            self.entries.push(BatchEntry {
                row: idx as u32,
                start_pos: entry.start,
                num_tokens: entry.num_tokens,
                logits: if entry.samples {
                    LogitsOf::Last
                } else {
                    LogitsOf::None
                },
            });
            if entry.samples {
                self.sampling.push(*entry);
            }
        }
    }

    fn sample(&mut self) {
        let Self {
            model,
            eos_ids,
            max_model_len,
            rows,
            tools,
            sampling,
            ..
        } = self;
        let vocab_size = model.config().vocab_size;
        let (team, logits) = model.team_and_logits();
        let logits = Shared::of(logits);
        team.run(|rank| {
            let mut tools = lock(&tools[rank.rank()]);
            rank.for_each(sampling.len(), |idx| {
                // SAFETY: the team runs while `logits` is borrowed, and each row is one item, hence one rank's.
                let logits = unsafe { logits.slice_mut(idx * vocab_size, vocab_size) };
                let mut row = lock(&rows[sampling[idx].row as usize]);
                row.sample(&sampling[idx], &mut tools, logits, eos_ids, *max_model_len);
            });
        });
    }

    fn collect(&mut self, output: &mut StepOutput) {
        for entry in &self.sampling {
            let row = lock(&self.rows[entry.row as usize]);
            let mut sample = RowSample {
                slot: entry.slot,
                token: row.sampled.map(|(token, _)| token),
                finish: row.sampled.ok().and_then(|(_, finish)| finish),
                rank: 0,
                first_logprob: output.logprobs.len() as u32,
                num_logprobs: 0,
            };
            if let Some(logprobs) = row.state.logprobs().filter(|_| row.sampled.is_ok()) {
                output.logprobs.extend_from_slice(logprobs.entries());
                sample.rank = logprobs.rank();
                sample.num_logprobs = output.logprobs.len() as u32 - sample.first_logprob;
            }
            output.samples.push(sample);
        }
    }
}

impl StepRunner {
    /// Looks up the prompt tokens that the step's chunks predict, for the rows that want that. Takes the logits over.
    fn score_prompts(&mut self, work: &mut StepWork) {
        let StepWork {
            entries, output, ..
        } = work;
        let mut first_token = 0;
        for entry in entries {
            let wanted = lock(&self.rows[entry.row as usize]).prompt_logprobs;
            if let Some(num_top) = wanted {
                self.score_prompt(entry, first_token, num_top, output);
            }
            first_token += entry.num_tokens;
        }
    }

    /// The tokens after each position of the entry, as far as they are the prompt's, a few rows of logits at a time.
    fn score_prompt(
        &mut self,
        entry: &StepEntry,
        first_token: u32,
        num_top: u32,
        output: &mut StepOutput,
    ) {
        let Self {
            model, rows, tools, ..
        } = self;
        let vocab_size = model.config().vocab_size;
        let max_rows = model.options().max_logit_rows as u32;
        let row = lock(&rows[entry.row as usize]);
        let mut tools = lock(&tools[0]);
        let Tools {
            sampler, logprobs, ..
        } = &mut *tools;
        let last = (entry.start + entry.num_tokens).min(row.prompt.len() as u32 - 1);
        let mut start = entry.start;
        while start < last {
            let end = last.min(start + max_rows);
            let tokens = first_token + start - entry.start..first_token + end - entry.start;
            let logits = model.logits_again(tokens);
            for (logits, position) in logits.chunks_exact(vocab_size).zip(start + 1..) {
                let token = row.prompt[position as usize];
                // Logits that are no numbers fail the row when it samples.
                if sampler
                    .logprobs_of(logits, token, num_top as usize, logprobs)
                    .is_ok()
                {
                    output.prompt_logprobs.push(PromptLogprobs {
                        slot: entry.slot,
                        position,
                        rank: logprobs.rank(),
                        first_logprob: output.logprobs.len() as u32,
                        num_logprobs: logprobs.entries().len() as u32,
                    });
                    output.logprobs.extend_from_slice(logprobs.entries());
                }
            }
            start = end;
        }
    }
}

impl Row {
    fn sample(
        &mut self,
        entry: &StepEntry,
        tools: &mut Tools,
        logits: &mut [f32],
        eos_ids: &[u32],
        max_model_len: u32,
    ) {
        self.sampled = self.try_sample(entry, tools, logits, eos_ids, max_model_len);
    }

    fn try_sample(
        &mut self,
        entry: &StepEntry,
        tools: &mut Tools,
        logits: &mut [f32],
        eos_ids: &[u32],
        max_model_len: u32,
    ) -> Result<(u32, Option<FinishReason>), NoToken> {
        if self.is_broken {
            return Err(EngineError::RequestChanged.into());
        }
        let Tools { sampler, mask, .. } = tools;
        let grammar = match self.find_mask(entry, mask) {
            MaskState::Awaited => return Err(NoToken::Deferred),
            MaskState::Open => None,
            MaskState::Ready => Some(mask.as_slice()),
        };
        let token =
            sampler
                .sample(logits, &mut self.state, grammar)
                .map_err(|error| match error {
                    SampleError::NonFinite => EngineError::NonFiniteLogits,
                    SampleError::NothingAllowed => EngineError::NothingAllowed,
                })?;
        let params = StopParams {
            eos_ids,
            stop_ids: &self.stop_ids,
            ignore_eos: self.limits.ignore_eos,
            min_tokens: self.min_tokens,
            max_tokens: self.limits.max_tokens,
            prompt_len: self.limits.prompt_len,
            max_model_len,
        };
        let finish = stop::check(token, self.state.num_generated(), &params);
        self.last_token = token;
        Ok((token, finish))
    }

    /// Looks for the mask of the token that `entry` would sample. An entry behind a token that was put off samples nothing.
    fn find_mask(&self, entry: &StepEntry, mask: &mut [u32]) -> MaskState {
        let Some(masks) = &self.masks else {
            return MaskState::Open;
        };
        let index = self.state.num_generated();
        if entry.start + entry.num_tokens != self.limits.prompt_len + index {
            return MaskState::Awaited;
        }
        masks.load(index, mask)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic while sampling ends the step thread, so nobody sees what it left behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
