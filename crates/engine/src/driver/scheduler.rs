//! The host scheduler: glue between ring, policy and executor.
//!
//! Owned by the engine's scheduler thread and touched by no other. What it keeps of a sequence beyond the ring's and
//! the policy's own state is [`Sequence`], one per ring slot, because a sequence's id is its slot.
//!
//! A round is [`Scheduler::take_in`] (what front ends want), [`Scheduler::plan`] (fill a step) and, when the executor is done
//! with it, [`Scheduler::publish`]. With `host-async`, step n+1 is planned before step n is published; the policy says
//! which samples of a step still count.

use std::sync::Arc;
use std::time::Duration;

use izar_policy::{
    Cause, Departure, OwnedPlan, OwnedState, PlanEntry, Refusal, StepResult, Verdict, entry_flags,
};
use izar_ring::{
    EngineError, EngineState, EngineStats, FinishReason as RingFinish, OutputToken, Request,
    SlotEvent, SlotIdx, SlotResult, State, TokenLogprobs,
};
use izar_transport::EngineEnd;

use super::clock::now_ns;
use super::executor::{NoToken, RowBinding, RowSample, StepEntry, StepWork, StopLimits};
use super::stats::{Control, StepClock, Stopwatch};
use super::study::{Overlap, OverlapSwitch, Recorder, StepGate, Study};
use crate::sampling::stop::FinishReason;
use crate::sampling::{SamplingParams, SeedSource};

/// How often dead front ends are looked for.
const REAP_INTERVAL_NS: u64 = 1_000_000_000;

/// What the scheduler keeps of a sequence.
#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    /// Claimed and not complete.
    is_live: bool,
    /// Key of its random numbers; drawn at the claim, kept through preemptions.
    seed: u64,
    /// What its last token said, once it ended it.
    finish: Option<FinishReason>,
    /// Why its last row gave no token.
    error: Option<EngineError>,
    /// Since when its next token waits for its mask.
    deferred_since_ns: Option<u64>,
    /// The last step planned before its claim: what that one or earlier ones computed is another sequence's.
    claimed_after_step: u64,
}

/// See the module documentation.
pub(super) struct Scheduler {
    ring: EngineEnd,
    policy: OwnedState,
    plan: OwnedPlan,
    control: Arc<Control>,
    seeds: SeedSource,
    sequences: Box<[Sequence]>,
    events: Vec<SlotEvent>,
    results: Vec<StepResult>,
    departures: Vec<Departure>,
    vocab_size: u32,
    mask_timeout: Duration,
    counters: EngineStats,
    reaped_ns: u64,
    overlap: Option<Arc<OverlapSwitch>>,
    gate: Option<Arc<StepGate>>,
    /// The round that is next, from 1 on; counted where there is a gate.
    round: u64,
    recorder: Option<Recorder>,
    pub(super) clock: StepClock,
}

/// What a [`Scheduler`] is made of.
pub(super) struct Parts {
    pub(super) ring: EngineEnd,
    pub(super) policy: OwnedState,
    pub(super) control: Arc<Control>,
    pub(super) seeds: SeedSource,
    pub(super) vocab_size: u32,
    pub(super) mask_timeout: Duration,
    pub(super) study: Study,
}

impl Scheduler {
    /// A scheduler with nothing to do yet.
    pub(super) fn new(parts: Parts) -> Self {
        let num_slots = parts.policy.config().num_slots as usize;
        let max_num_seqs = parts.policy.config().max_num_seqs as usize;
        Self {
            plan: parts.policy.new_plan(),
            sequences: vec![Sequence::default(); num_slots].into_boxed_slice(),
            // A slot is submitted, cancelled and recycled at most once each in one scan.
            events: Vec::with_capacity(3 * num_slots),
            results: Vec::with_capacity(max_num_seqs),
            departures: Vec::with_capacity(max_num_seqs),
            counters: EngineStats::default(),
            reaped_ns: 0,
            overlap: parts.study.overlap,
            gate: parts.study.gate,
            round: 1,
            recorder: parts.study.log.map(|log| {
                let config = parts.policy.config();
                Recorder::new(log, config.num_slots, config.block_size)
            }),
            clock: StepClock::new(Arc::clone(&parts.control)),
            ring: parts.ring,
            policy: parts.policy,
            control: parts.control,
            seeds: parts.seeds,
            vocab_size: parts.vocab_size,
            mask_timeout: parts.mask_timeout,
        }
    }

    /// Work with room for any step.
    pub(super) fn new_work(&self) -> StepWork {
        let config = self.policy.config();
        StepWork::with_capacity(
            config.max_num_seqs as usize,
            config.max_num_batched_tokens as usize,
            config.max_blocks_per_seq() as usize,
        )
    }

    /// Mechanisms that an experiment left switched on.
    pub(super) fn overlap(&self) -> Overlap {
        let switch = self.overlap.as_ref();
        switch.map_or(Overlap::ALL, |switch| switch.get())
    }

    /// Comes to the next round and waits until it may begin, with a heartbeat at least every `heartbeat`; false if the engine is told to
    /// stop instead.
    pub(super) fn enter_round(&mut self, heartbeat: Duration) -> bool {
        let Some(gate) = self.gate.clone() else {
            return true;
        };
        while !gate.pass(self.round, heartbeat) {
            if self.control.is_stopping() {
                return false;
            }
            self.heartbeat();
        }
        self.round += 1;
        true
    }

    /// Whether the engine has not been told to stop.
    pub(super) fn keeps_running(&self) -> bool {
        !self.control.is_stopping()
    }

    /// Opens for requests.
    pub(super) fn open(&mut self) {
        self.heartbeat();
        self.ring.set_engine_state(EngineState::Ready, None);
        self.ring.doorbell().ring();
    }

    /// Ends everything with `error` and closes. Nothing may be in flight.
    pub(super) fn close(&mut self, state: EngineState, error: EngineError) {
        self.ring
            .set_engine_state(state, (state == EngineState::Failed).then_some(error));
        self.scan();
        for event in std::mem::take(&mut self.events) {
            if let SlotEvent::Submitted { slot } = event {
                self.complete(slot.0, error, None, now_ns());
            }
        }
        for slot in 0..self.sequences.len() as u32 {
            if self.sequences[slot as usize].is_live {
                self.policy.cancel(slot);
                self.complete(slot, error, None, now_ns());
            }
        }
        self.publish_stats();
        self.ring.doorbell().ring();
    }

    /// Shows that the engine lives, and what it does.
    pub(super) fn heartbeat(&mut self) {
        self.ring.heartbeat(now_ns());
    }

    /// Sleeps until a front end wants something or `timeout` passes.
    pub(super) fn idle(&mut self, timeout: Duration) {
        self.publish_stats();
        self.ring.publish_steps(self.clock.steps());
        self.heartbeat();
        self.clock.idle();
        if let Some(gate) = &self.gate
            && !gate.has_released(self.round)
        {
            // It is the gate that the scheduler waits at.
            return;
        }
        let (ring, control) = (&self.ring, &self.control);
        self.ring
            .doorbell()
            .park(timeout, || ring.has_news() || control.is_stopping());
    }

    /// Takes in what front ends want: new requests, cancellations, slots that come back.
    pub(super) fn take_in(&mut self) {
        let now = now_ns();
        self.ring.heartbeat(now);
        self.scan();
        if now.saturating_sub(self.reaped_ns) > REAP_INTERVAL_NS {
            self.reaped_ns = now;
            let events = &mut self.events;
            self.ring
                .reap_expired_leases(now, &mut |event| events.push(event));
        }
        let mut events = std::mem::take(&mut self.events);
        let mut changed = false;
        for event in events.drain(..) {
            changed |= self.handle(event, now);
        }
        self.events = events;
        if changed {
            self.ring.doorbell().ring();
        }
    }

    fn scan(&mut self) {
        let events = &mut self.events;
        self.ring.scan(&mut |event| events.push(event));
    }

    /// Returns whether a slot's state changed, which front ends that sleep should learn.
    fn handle(&mut self, event: SlotEvent, now: u64) -> bool {
        match event {
            SlotEvent::Submitted { slot } => self.admit(slot, now),
            SlotEvent::Cancelled { slot } => self.cancel(slot, now),
            SlotEvent::Recycled { .. } => true,
        }
    }

    fn admit(&mut self, slot: SlotIdx, now: u64) -> bool {
        let Ok(request) = self.ring.claim(slot, now) else {
            return true;
        };
        self.counters.prompt_tokens += u64::from(request.prompt_len);
        self.sequences[slot.0 as usize] = Sequence {
            is_live: true,
            seed: request.seed.unwrap_or_else(|| self.seeds.draw()),
            claimed_after_step: self.policy.gauges().num_steps_total,
            ..Sequence::default()
        };
        let max_total_len = request.prompt_len.saturating_add(request.max_tokens);
        let prompt = self.ring.prompt(slot);
        match self
            .policy
            .add(slot.0, prompt, max_total_len, request.priority, now)
        {
            Ok(()) => {
                if request.num_prompt_logprobs.is_some() {
                    self.policy.compute_all(slot.0);
                }
                false
            }
            Err(refusal) => {
                self.complete(slot.0, refusal_error(refusal), None, now);
                true
            }
        }
    }

    fn cancel(&mut self, slot: SlotIdx, now: u64) -> bool {
        // A submission may be cancelled in the scan that announced it and then be refused.
        if !self.sequences[slot.0 as usize].is_live {
            return false;
        }
        let departure = self.policy.cancel(slot.0);
        self.complete(slot.0, RingFinish::Cancelled, departure, now);
        true
    }

    fn complete(
        &mut self,
        slot: u32,
        reason: impl Into<RingFinish>,
        departure: Option<Departure>,
        now: u64,
    ) {
        if let Some(recorder) = &mut self.recorder {
            recorder.left(slot);
        }
        let sequence = &mut self.sequences[slot as usize];
        sequence.is_live = false;
        let stop_token = match sequence.finish {
            Some(FinishReason::Eos(token) | FinishReason::StopToken(token)) => Some(token),
            _ => None,
        };
        let result = SlotResult {
            completed_ns: now,
            num_cached_tokens: departure.map_or(0, |d| d.num_cached_tokens),
            num_preemptions: departure.map_or(0, |d| d.num_preemptions),
            stop_token,
        };
        self.ring.complete(SlotIdx(slot), reason, &result);
    }

    /// Plans the next step into `work`; false if there is nothing to compute.
    pub(super) fn plan(&mut self, work: &mut StepWork) -> bool {
        if let Err(error) = self.policy.plan(now_ns(), &mut self.plan) {
            unreachable!("placements keep at most two steps planned: {error}");
        }
        for &slot in self.plan.preempted() {
            self.ring.set_state(SlotIdx(slot), State::DecodePaused);
            if let Some(recorder) = &mut self.recorder {
                recorder.preempted(slot);
            }
        }
        work.clear();
        if self.plan.is_empty() {
            return false;
        }
        let watch = Stopwatch::start();
        work.step = self.plan.header().step;
        work.blocks_per_row = self
            .plan
            .entries()
            .iter()
            .map(|e| e.num_blocks)
            .max()
            .unwrap_or(0) as usize;
        for idx in 0..self.plan.entries().len() {
            let entry = self.plan.entries()[idx];
            if entry.flags & (entry_flags::FIRST | entry_flags::RESUMED) != 0 {
                self.bind(&entry, work.next_binding());
            }
            self.push_entry(&entry, work);
        }
        self.clock.filled(watch.elapsed_ns());
        true
    }

    fn push_entry(&self, entry: &PlanEntry, work: &mut StepWork) {
        let is_decode = !entry.is_prefill();
        work.entries.push(StepEntry {
            slot: entry.slot,
            row: entry.row,
            start: entry.start,
            num_tokens: entry.num_tokens,
            num_blocks: entry.num_blocks,
            samples: entry.samples(),
            is_decode,
        });
        let table = &self.policy.block_table(entry.row)[..entry.num_blocks as usize];
        work.block_tables.extend_from_slice(table);
        work.block_tables
            .resize(work.entries.len() * work.blocks_per_row, 0);
        if is_decode {
            work.tokens.push(0);
        } else {
            let range = entry.start..entry.start + entry.num_tokens;
            self.push_history(SlotIdx(entry.slot), range, &mut work.tokens);
        }
    }

    /// Appends the sequence's tokens at `range`, prompt and generated ones alike.
    ///
    /// The front end can still write to the arenas, so ids are clamped to the vocabulary: a broken front end gets
    /// nonsense, not a crash.
    fn push_history(&self, slot: SlotIdx, range: std::ops::Range<u32>, out: &mut Vec<u32>) {
        let last = self.vocab_size - 1;
        let prompt = self.ring.prompt(slot);
        let prompt_len = prompt.len() as u32;
        let from_prompt = range.start.min(prompt_len) as usize..range.end.min(prompt_len) as usize;
        out.extend(prompt[from_prompt].iter().map(|&id| id.min(last)));
        let generated = self.ring.generated(slot);
        let from_generated = range.start.max(prompt_len)..range.end.max(prompt_len);
        out.extend(
            from_generated
                .filter_map(|p| generated.get(p - prompt_len))
                .map(|id| id.min(last)),
        );
    }

    fn bind(&mut self, entry: &PlanEntry, binding: &mut RowBinding) {
        if let Some(recorder) = &mut self.recorder {
            recorder.bound(entry.slot);
        }
        let slot = SlotIdx(entry.slot);
        let request = self.ring.request(slot);
        let num_generated = self.ring.num_generated(slot);
        binding.row = entry.row;
        binding.params = sampling_params(&request, self.sequences[entry.slot as usize].seed);
        binding.limits = StopLimits {
            ignore_eos: request.ignore_eos,
            max_tokens: request.max_tokens,
            prompt_len: request.prompt_len,
        };
        binding.stop_ids.extend_from_slice(self.ring.stop_ids(slot));
        binding
            .allowed_ids
            .extend_from_slice(self.ring.allowed_ids(slot));
        binding.masks = self.ring.token_masks(slot);
        binding.prompt_logprobs = request.num_prompt_logprobs.filter(|_| num_generated == 0);
        binding
            .logit_bias
            .extend_from_slice(self.ring.logit_bias(slot));
        binding
            .bad_words
            .extend_from_slice(self.ring.bad_words(slot).rest());
        self.push_history(
            slot,
            0..request.prompt_len + num_generated,
            &mut binding.history,
        );
        if num_generated > 0 {
            self.ring.set_state(slot, State::DecodeProcessing);
        }
    }

    /// Takes in what a step sampled: publishes tokens, ends sequences, tells the policy.
    pub(super) fn publish(&mut self, work: &StepWork) {
        if let Some(recorder) = &mut self.recorder {
            let (sequences, owned) = (&self.sequences, self.policy.gauges().kv_blocks_used);
            recorder.completed(work, owned, |slot| {
                let sequence = &sequences[slot as usize];
                sequence.is_live && work.step > sequence.claimed_after_step
            });
        }
        self.store_prompt_logprobs(work);
        self.results.clear();
        for sample in &work.output.samples {
            if self.policy.accepts(work.step, sample.slot) {
                let result = self.publish_sample(sample, work);
                self.results.push(result);
            }
        }
        let results = std::mem::take(&mut self.results);
        let mut departures = std::mem::take(&mut self.departures);
        let completed = self
            .policy
            .complete_step(work.step, &results, |departure| departures.push(departure));
        if let Err(error) = completed {
            unreachable!("placements complete steps in order: {error}");
        }
        let now = now_ns();
        for departure in departures.drain(..) {
            let reason = self.finish_reason(&departure);
            self.complete(departure.slot, reason, Some(departure), now);
        }
        (self.results, self.departures) = (results, departures);
        self.publish_stats();
        self.ring.doorbell().ring();
        self.clock.completed(work);
        self.ring.publish_steps(self.clock.steps());
    }

    /// Ends a step whose outcome was published since `watch` was started.
    pub(super) fn retire(&mut self, watch: &Stopwatch) {
        let record = self.clock.published(watch);
        self.ring.log_step(&record);
    }

    fn publish_sample(&mut self, sample: &RowSample, work: &StepWork) -> StepResult {
        let token = match sample.token {
            Ok(token) => token,
            Err(why) => {
                return StepResult {
                    slot: sample.slot,
                    token: 0,
                    verdict: self.without_token(sample.slot, why),
                };
            }
        };
        let entries =
            &work.output.logprobs[sample.first_logprob as usize..][..sample.num_logprobs as usize];
        let logprobs = (!entries.is_empty()).then_some(TokenLogprobs {
            rank: sample.rank,
            entries,
        });
        let output = OutputToken {
            token,
            timestamp_ns: work.output.finished_ns,
        };
        self.ring
            .publish_token(SlotIdx(sample.slot), output, logprobs);
        self.counters.output_tokens += 1;
        let sequence = &mut self.sequences[sample.slot as usize];
        sequence.finish = sample.finish;
        sequence.deferred_since_ns = None;
        let verdict = if sample.finish.is_some() {
            Verdict::Stop
        } else {
            Verdict::Continue
        };
        StepResult {
            slot: sample.slot,
            token,
            verdict,
        }
    }

    /// What becomes of a sequence whose row gave no token. One that waits for a mask does so for a while only: a front end that
    /// lives but has lost the request would keep it computing for ever.
    fn without_token(&mut self, slot: u32, why: NoToken) -> Verdict {
        let sequence = &mut self.sequences[slot as usize];
        let error = match why {
            NoToken::Failed(error) => error,
            NoToken::Deferred => {
                let now = now_ns();
                let since = *sequence.deferred_since_ns.get_or_insert(now);
                if u128::from(now.saturating_sub(since)) <= self.mask_timeout.as_nanos() {
                    return Verdict::Defer;
                }
                EngineError::MaskLate
            }
        };
        sequence.error = Some(error);
        Verdict::Fail
    }

    fn store_prompt_logprobs(&mut self, work: &StepWork) {
        for found in &work.output.prompt_logprobs {
            let sequence = &self.sequences[found.slot as usize];
            let slot = SlotIdx(found.slot);
            if !sequence.is_live
                || work.step <= sequence.claimed_after_step
                || self.ring.num_generated(slot) > 0
            {
                continue;
            }
            let entries = &work.output.logprobs[found.first_logprob as usize..]
                [..found.num_logprobs as usize];
            let logprobs = TokenLogprobs {
                rank: found.rank,
                entries,
            };
            self.ring
                .store_prompt_logprobs(slot, found.position, logprobs);
        }
    }

    fn finish_reason(&self, departure: &Departure) -> RingFinish {
        let sequence = &self.sequences[departure.slot as usize];
        match departure.cause {
            Cause::Failed => RingFinish::Error(sequence.error.unwrap_or(EngineError::EngineFailed)),
            Cause::Cancelled => RingFinish::Cancelled,
            Cause::Length => RingFinish::Length,
            Cause::Stopped => match sequence.finish {
                Some(finish) if finish.is_length() => RingFinish::Length,
                _ => RingFinish::Stop,
            },
        }
    }

    fn publish_stats(&mut self) {
        let gauges = self.policy.gauges();
        self.counters.num_running = u64::from(gauges.num_running);
        self.counters.num_waiting = u64::from(gauges.num_waiting);
        self.counters.kv_blocks_owned = u64::from(gauges.kv_blocks_used);
        self.counters.kv_blocks_cached = u64::from(gauges.kv_blocks_cached);
        self.counters.num_steps = gauges.num_steps_total;
        self.counters.num_preemptions = gauges.num_preemptions_total;
        self.counters.prefix_query_tokens = gauges.prefix_query_tokens_total;
        self.counters.prefix_hit_tokens = gauges.prefix_hit_tokens_total;
        self.counters.num_deferrals = gauges.num_deferrals_total;
        self.ring.publish_stats(&self.counters);
    }
}

fn refusal_error(refusal: Refusal) -> EngineError {
    match refusal {
        Refusal::NeverFits { .. } => EngineError::NeverFits,
        Refusal::TooLong { .. } => EngineError::TooLong,
        Refusal::EmptyPrompt
        | Refusal::NothingToGenerate
        | Refusal::UnknownSlot
        | Refusal::SlotBusy => {
            unreachable!("the ring validates requests and the slot was empty: {refusal}")
        }
    }
}

fn sampling_params(request: &Request, seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        repetition_penalty: request.repetition_penalty,
        presence_penalty: request.presence_penalty,
        frequency_penalty: request.frequency_penalty,
        seed,
        min_tokens: request.min_tokens,
        logprobs: request.num_logprobs,
    }
}
