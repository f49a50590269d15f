//! Drives an engine through a schedule: round by round, or as fast as requests can be submitted.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use izar_engine::driver::{
    Overlap, OverlapSwitch, Placement, StepGate, StepLog, StepRecord, Study,
};
use izar_model::Checkpoint;
use izar_transport::client::{
    EngineStats, FinishReason, GeneratedToken, RequestHandle, RingClient, SamplingParams,
    Submission,
};

use super::super::engine::{Running, Sizes, TIMEOUT, finish};
use super::schedule::Schedule;

/// Log-probabilities asked for where the placements run freely: as many as the margin of a decision needs.
pub const NUM_LOGPROBS: u32 = 64;
/// Steps of a log that does not have to grow.
const LOG_CAPACITY: usize = 1 << 16;

/// What a request came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Its tokens.
    pub tokens: Vec<GeneratedToken>,
    /// Why it ended.
    pub reason: FinishReason,
    /// How often it lost its KV blocks and was computed again.
    pub num_preemptions: u32,
}

impl Outcome {
    /// Its token ids.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.tokens.iter().map(|token| token.token)
    }

    /// Where two outcomes part: the first token in which they differ, or the end of the shorter.
    pub fn parts_from(&self, other: &Self) -> Option<usize> {
        let parting = self.ids().zip(other.ids()).position(|(a, b)| a != b);
        let shorter = self.tokens.len().min(other.tokens.len());
        parting.or((self.tokens.len() != other.tokens.len()).then_some(shorter))
    }
}

/// A run of a schedule.
#[derive(Clone, Debug)]
pub struct Run {
    /// By request.
    pub outcomes: Vec<Outcome>,
    /// By step.
    pub steps: Vec<StepRecord>,
    /// The engine's counters at the end.
    pub stats: EngineStats,
    /// Rounds of the engine, where they were held.
    pub num_rounds: u64,
}

/// The engine that a schedule is run on.
pub struct Target<'a> {
    pub checkpoint: &'a Checkpoint,
    pub on_cuda: bool,
    pub sizes: Sizes,
}

impl Target<'_> {
    /// Replays the schedule: before each round, what it says for that round is submitted and cancelled.
    pub fn replay(
        &self,
        schedule: &Schedule,
        placement: Placement,
        overlap: Overlap,
    ) -> Result<Run> {
        let gate = Arc::new(StepGate::new());
        let log = Arc::new(StepLog::with_capacity(LOG_CAPACITY));
        let study = Study {
            overlap: Some(Arc::new(OverlapSwitch::new(overlap))),
            gate: Some(Arc::clone(&gate)),
            log: Some(Arc::clone(&log)),
        };
        let running = self.start(placement, study)?;
        let mut replayer = Replayer::new(schedule, self.vocab());
        let mut round = 0;
        while !replayer.is_over() {
            round += 1;
            ensure!(
                gate.wait(round, TIMEOUT),
                "the engine did not come to round {round}"
            );
            replayer.act(&running.client, round)?;
            gate.release(round);
        }
        end(running, replayer.outcomes, &log, round)
    }

    /// Submits all requests at once, log-probabilities asked for and nothing cancelled, and lets the engine run.
    pub fn run_freely(&self, schedule: &Schedule, placement: Placement) -> Result<Run> {
        let log = Arc::new(StepLog::with_capacity(LOG_CAPACITY));
        let study = Study {
            log: Some(Arc::clone(&log)),
            ..Study::default()
        };
        let running = self.start(placement, study)?;
        let submit = |idx| submit(&running.client, schedule, idx, self.vocab(), true);
        let handles = (0..schedule.requests.len()).map(submit);
        let mut handles = handles.collect::<Result<Vec<_>>>()?;
        let outcomes = handles
            .iter_mut()
            .map(outcome)
            .collect::<Result<Vec<_>>>()?;
        drop(handles);
        end(running, outcomes, &log, 0)
    }

    fn start(&self, placement: Placement, study: Study) -> Result<Running> {
        Running::start(self.checkpoint, self.on_cuda, placement, self.sizes, study)
    }

    fn vocab(&self) -> u32 {
        self.checkpoint.config().vocab_size as u32
    }
}

fn end(running: Running, outcomes: Vec<Outcome>, log: &StepLog, num_rounds: u64) -> Result<Run> {
    let stats = running.stats()?;
    running.stop()?;
    Ok(Run {
        outcomes,
        steps: log.take(),
        stats,
        num_rounds,
    })
}

/// Where a replay stands.
struct Replayer<'a> {
    schedule: &'a Schedule,
    vocab: u32,
    /// Requests that have arrived: their handles until they end.
    handles: Vec<Option<RequestHandle>>,
    outcomes: Vec<Outcome>,
    num_ended: usize,
}

impl<'a> Replayer<'a> {
    fn new(schedule: &'a Schedule, vocab: u32) -> Self {
        Self {
            schedule,
            vocab,
            handles: Vec::with_capacity(schedule.requests.len()),
            outcomes: Vec::with_capacity(schedule.requests.len()),
            num_ended: 0,
        }
    }

    /// All requests have come and gone.
    fn is_over(&self) -> bool {
        self.num_ended == self.schedule.requests.len()
    }

    fn act(&mut self, client: &RingClient, round: u64) -> Result<()> {
        let requests = &self.schedule.requests;
        while let Some(next) = requests.get(self.handles.len())
            && next.arrival == round
        {
            let handle = submit(client, self.schedule, self.handles.len(), self.vocab, false)?;
            self.handles.push(Some(handle));
            self.outcomes.push(Outcome {
                tokens: Vec::new(),
                reason: FinishReason::Length,
                num_preemptions: 0,
            });
        }
        for (handle, request) in self.handles.iter().zip(requests) {
            if let Some(handle) = handle
                && request.cancel == Some(round)
            {
                handle.cancel()?;
            }
        }
        self.collect();
        Ok(())
    }

    /// Takes what has come. When that is seen makes no difference to the engine.
    fn collect(&mut self) {
        for (place, outcome) in self.handles.iter_mut().zip(&mut self.outcomes) {
            use izar_transport::client::Progress::Finished;
            let Some(handle) = place else { continue };
            if let Some(Finished(finish)) = handle.try_next(&mut outcome.tokens) {
                outcome.reason = finish.reason;
                outcome.num_preemptions = finish.num_preemptions;
                *place = None;
                self.num_ended += 1;
            }
        }
    }
}

/// Submits request `idx`. Its priority is its place in the schedule: slots are free at different moments, and requests of one round
/// would be served in the order of their slots.
fn submit(
    client: &RingClient,
    schedule: &Schedule,
    idx: usize,
    vocab: u32,
    with_logprobs: bool,
) -> Result<RequestHandle> {
    let request = &schedule.requests[idx];
    let prompt = request.prompt(idx, vocab);
    let stops = stop_ids(vocab);
    let sampling = match with_logprobs {
        true => judgeable(request.sampling()),
        false => request.sampling(),
    };
    let submission = Submission {
        sampling,
        logprobs: with_logprobs.then_some(NUM_LOGPROBS.min(vocab)),
        stop_token_ids: &stops,
        priority: idx as i32,
        ..Submission::new(&prompt, request.max_tokens)
    };
    client
        .submit(&submission)
        .with_context(|| format!("cannot submit request {idx}"))
}

/// The same without a repetition penalty: it scales logits, which cannot be told from log-probabilities.
pub fn judgeable(sampling: SamplingParams) -> SamplingParams {
    SamplingParams {
        repetition_penalty: 1.0,
        ..sampling
    }
}

/// Tokens that end any request, so that some end early, in a step that nobody foresaw.
fn stop_ids(vocab: u32) -> [u32; 2] {
    [vocab / 3, vocab / 2]
}

fn outcome(handle: &mut RequestHandle) -> Result<Outcome> {
    let (tokens, finish) = finish(handle)?;
    Ok(Outcome {
        tokens,
        reason: finish.reason,
        num_preemptions: finish.num_preemptions,
    })
}
