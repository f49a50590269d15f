//! What one thread of the scheduler does: the host scheduler's work, on memory that a GPU reaches.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use izar_policy::{
    Cause, Config, Departure, PlanHeader, Refusal, StepResult, Verdict, entry_flags,
};
use izar_ring::{
    BadRequest, EngineError, EngineRing, EngineSlot, EngineState, EngineStats, FinishReason,
    LeaseIdx, OutputToken, Request, RingGeometry, RingMemory, RingOptions, SlotEvent, SlotIdx,
    SlotResult, State, StepStats, TokenLogprobs,
};

use crate::memory::Addresses;

/// How often dead front ends are looked for.
const REAP_INTERVAL_NS: u64 = 1_000_000_000;
/// Steps between two looks that front ends get at the histograms.
const STEPS_PER_SHOW: u64 = 16;
/// Words of a bad word in a row's lists, beside its prefix.
const BAD_WORD_WORDS: usize = 3;

/// Kinds of [`Event`].
pub mod event_kind {
    /// A request to be claimed; the block copies it first.
    pub const SUBMITTED: u32 = 0;
    /// A cancellation.
    pub const CANCELLED: u32 = 1;
}

/// Something a front end wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// The slot.
    pub slot: u32,
    /// Of [`event_kind`].
    pub kind: u32,
}

/// What the scheduler keeps of a sequence, and what the block needs to bind its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Live {
    /// Key of its random numbers; drawn at the claim, kept through preemptions.
    pub seed: u64,
    /// Claimed and not complete.
    pub is_live: u32,
    /// Tokens generated so far.
    pub num_generated: u32,
    /// The token that stopped it, if `finish` says so.
    pub stop_token: u32,
    /// [`sample_status`] of its last token, once that ended it.
    pub finish: u32,
    /// Number of the error that ended it.
    pub error: u32,
    /// Bad words in its lists.
    pub num_bad_words: u32,
    /// Generated tokens that its bad words look back at.
    pub longest_prefix: u32,
    /// Zero.
    pub reserved: u32,
    /// Since when its next token waits for its mask; 0 if it does not.
    pub deferred_since_ns: u64,
}

/// Values of [`Sample::status`], the sampler's own.
pub mod sample_status {
    /// A token, and the sequence goes on.
    pub const TOKEN: u32 = 1;
    /// An end-of-sequence token.
    pub const EOS: u32 = 2;
    /// One of the request's stop tokens.
    pub const STOP_TOKEN: u32 = 3;
    /// A token, the last one allowed.
    pub const MAX_TOKENS: u32 = 4;
    /// A token, and the context is full.
    pub const CONTEXT_END: u32 = 5;
    /// No token: a logit is not a number, or all are -∞.
    pub const NON_FINITE: u32 = 16;
    /// No token: the request's constraints left none.
    pub const NOTHING_ALLOWED: u32 = 17;
    /// No token yet: its mask is not there.
    pub const DEFERRED: u32 = 19;
}

/// What a step sampled for one entry, as the block read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sample {
    /// Ring slot of the sequence.
    pub slot: u32,
    /// The token, if there is one.
    pub token: u32,
    /// Of [`sample_status`].
    pub status: u32,
    /// Rank of the token, if log-probabilities were asked for.
    pub rank: u32,
    /// Where its log-probabilities start, in entries.
    pub first_logprob: u64,
    /// How many there are.
    pub num_logprobs: u32,
    /// Zero.
    pub reserved: u32,
}

/// When a step was where, on the engine's clock, and what it cost the scheduler. Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StepTimes {
    /// Its first kernel ran.
    pub started_ns: u64,
    /// Its logits were there.
    pub sampling_ns: u64,
    /// It was complete.
    pub finished_ns: u64,
    /// Taking requests in, planning and launching it took so long.
    pub planning_ns: u64,
    /// Publishing the step before took so long.
    pub publishing_ns: u64,
    /// Tokens it computed.
    pub num_tokens: u64,
}

/// The engine's side of the ring, with its slots in memory that outlives it.
type Ring = EngineRing<&'static mut [EngineSlot]>;

/// The scheduler's state beyond the arrays that [`Addresses`] names.
pub struct Core {
    at: Addresses,
    ring: Ring,
    counters: EngineStats,
    steps: StepStats,
    num_drawn: u64,
    reaped_ns: u64,
    /// End of the last step, if the engine has had work since.
    last_finished_ns: Option<u64>,
}

impl Core {
    /// Makes, at `place`, a scheduler with nothing to do, for a ring that was created and described; false if the sizes are
    /// impossible. In place, because stacks of a GPU are small.
    ///
    /// # Safety
    /// The addresses are those of memory as [`Addresses`] describes it, which lives as long as the result, and nobody else uses
    /// what it does not share.
    pub unsafe fn init(place: &mut MaybeUninit<Self>, at: &Addresses) -> bool {
        let options = RingOptions {
            geometry: RingGeometry {
                num_slots: at.config.num_slots,
                num_leases: at.num_leases,
                input_arena_bytes: at.input_arena_bytes,
                output_arena_bytes: at.output_arena_bytes,
            },
            lease_timeout_ns: at.lease_timeout_ns,
            ..RingOptions::default()
        };
        let (Some(base), Some(copy)) = (
            NonNull::new(at.ring as *mut u8),
            NonNull::new(at.submitted as *mut u8),
        ) else {
            return false;
        };
        // SAFETY: promised by the caller; the copy is filled before a claim, by the thread that claims or threads that it waits
        // for. Every field of a place of our own is written, the ring by `continue_described`.
        unsafe {
            let memory =
                RingMemory::new(base, at.ring_bytes as usize).reading_submissions_from(copy);
            let core = place.as_mut_ptr();
            let ring = &mut *(&raw mut (*core).ring).cast::<MaybeUninit<Ring>>();
            let made = Ring::continue_described(ring, memory, &options, at.vocab_size, at.slots());
            if made.is_err() || izar_policy::State::init(&at.config, at.policy_memory()).is_err() {
                return false;
            }
            at.live().fill(Live::default());
            *at.plan().header = PlanHeader::default();
            (&raw mut (*core).at).write(*at);
            (&raw mut (*core).counters).write(EngineStats::default());
            (&raw mut (*core).steps).write(StepStats::default());
            (&raw mut (*core).num_drawn).write(0);
            (&raw mut (*core).reaped_ns).write(0);
            (&raw mut (*core).last_finished_ns).write(None);
        }
        true
    }

    fn policy(&mut self) -> izar_policy::State<'_> {
        // SAFETY: promised at `init`; the exclusive borrow of `self` keeps it the only one.
        unsafe { self.at.policy() }
    }

    fn live(&mut self, slot: u32) -> &mut Live {
        // SAFETY: promised at `init`; the exclusive borrow of `self` keeps it the only one.
        let live = unsafe { self.at.live() };
        &mut live[slot as usize]
    }

    /// Opens for requests.
    pub fn open(&mut self, now_ns: u64) {
        self.ring.heartbeat(now_ns);
        self.ring.set_engine_state(EngineState::Ready, None);
    }

    /// Shows that the engine lives.
    pub fn heartbeat(&mut self, now_ns: u64) {
        self.ring.heartbeat(now_ns);
    }

    /// Shows the figures of an engine that has run out of work: the next gap is not its fault.
    pub fn idle(&mut self, now_ns: u64) {
        self.ring.heartbeat(now_ns);
        self.publish_stats();
        self.ring.publish_steps(&self.steps);
        self.last_finished_ns = None;
    }

    /// Looks at slots that may have news, and now and then for dead front ends. Returns the number of events, in the order in
    /// which they are to be handled.
    pub fn look(&mut self, candidates: &[u32], now_ns: u64) -> u32 {
        // SAFETY: promised at `init`; used by this call alone.
        let events = unsafe { self.at.events() };
        let mut count = 0;
        let mut note = |event| {
            let (slot, kind) = match event {
                SlotEvent::Submitted { slot } => (slot, event_kind::SUBMITTED),
                SlotEvent::Cancelled { slot } => (slot, event_kind::CANCELLED),
                SlotEvent::Recycled { .. } => return,
            };
            if let Some(place) = events.get_mut(count) {
                *place = Event { slot: slot.0, kind };
                count += 1;
            }
        };
        for lease in 0..self.at.num_leases {
            self.ring.notice_doorbell(LeaseIdx(lease), &mut note);
        }
        for &slot in candidates {
            self.ring.scan_slot(SlotIdx(slot), &mut note);
        }
        if now_ns.saturating_sub(self.reaped_ns) > REAP_INTERVAL_NS {
            self.reaped_ns = now_ns;
            self.ring.reap_expired_leases(now_ns, &mut note);
        }
        count as u32
    }

    /// Handles the first `num_events` events: claims and cancellations.
    pub fn admit(&mut self, num_events: u32, now_ns: u64) {
        for idx in 0..num_events as usize {
            // SAFETY: promised at `init`; used by this statement alone.
            let Some(&event) = unsafe { self.at.events() }.get(idx) else {
                return;
            };
            if event.kind == event_kind::SUBMITTED {
                self.claim(event.slot, now_ns);
            } else {
                self.cancel(event.slot, now_ns);
            }
        }
    }

    fn claim(&mut self, slot: u32, now_ns: u64) {
        let Ok(request) = self.ring.claim(SlotIdx(slot), now_ns) else {
            return;
        };
        self.counters.prompt_tokens += u64::from(request.prompt_len);
        let seed = request.seed.unwrap_or_else(|| self.draw_seed());
        *self.live(slot) = Live {
            seed,
            is_live: 1,
            ..Live::default()
        };
        if let Err(error) = self.enqueue(&request, now_ns) {
            self.complete(slot, error, None, now_ns);
        }
    }

    /// Hands a claimed request to the policy.
    fn enqueue(&mut self, request: &Request, now_ns: u64) -> Result<(), EngineError> {
        let slot = request.slot;
        // What this placement does not do is refused, not done without.
        if request.num_prompt_logprobs.is_some() {
            return Err(EngineError::BadRequest(BadRequest::Flags));
        }
        self.note_lists(slot)?;
        let max_total_len = request.prompt_len.saturating_add(request.max_tokens);
        // SAFETY: promised at `init`; used until the end of this function alone. The prompt is borrowed from the ring.
        let mut policy = unsafe { self.at.policy() };
        policy
            .add(
                slot.0,
                self.ring.prompt(slot),
                max_total_len,
                request.priority,
                now_ns,
            )
            .map_err(refusal_error)
    }

    /// Checks that the request's lists fit a row, and notes what of them the block needs.
    fn note_lists(&mut self, slot: SlotIdx) -> Result<(), EngineError> {
        let (mut num_bad_words, mut longest, mut bad_words_len) = (0, 0, 0);
        for word in self.ring.bad_words(slot) {
            num_bad_words += 1;
            longest = word.len().saturating_sub(1).max(longest);
            bad_words_len += BAD_WORD_WORDS + word.len().saturating_sub(1);
        }
        let stop_len = self.ring.stop_ids(slot).len();
        let bias_len = 2 * self.ring.logit_bias(slot).len();
        if stop_len + bias_len + bad_words_len > self.at.list_capacity as usize {
            let longest = stop_len.max(bias_len).max(bad_words_len);
            return Err(EngineError::BadRequest(match longest {
                len if len == bad_words_len => BadRequest::BadWords,
                len if len == bias_len => BadRequest::LogitBias,
                _ => BadRequest::StopIds,
            }));
        }
        let live = self.live(slot.0);
        live.num_bad_words = num_bad_words;
        live.longest_prefix = longest as u32;
        Ok(())
    }

    fn cancel(&mut self, slot: u32, now_ns: u64) {
        // A submission may be cancelled in the scan that announced it and then be refused.
        if self.live(slot).is_live == 0 {
            return;
        }
        let departure = self.policy().cancel(slot);
        self.complete(slot, FinishReason::Cancelled, departure, now_ns);
    }

    fn complete(
        &mut self,
        slot: u32,
        reason: impl Into<FinishReason>,
        departure: Option<Departure>,
        now_ns: u64,
    ) {
        let live = self.live(slot);
        live.is_live = 0;
        let stop_token = matches!(live.finish, sample_status::EOS | sample_status::STOP_TOKEN)
            .then_some(live.stop_token);
        let result = SlotResult {
            completed_ns: now_ns,
            num_cached_tokens: departure.map_or(0, |d| d.num_cached_tokens),
            num_preemptions: departure.map_or(0, |d| d.num_preemptions),
            stop_token,
        };
        self.ring.complete(SlotIdx(slot), reason, &result);
    }

    /// Plans the next step; returns its entries, 0 if there is nothing to compute. Ring states follow.
    pub fn plan(&mut self, now_ns: u64) -> u32 {
        // SAFETY: promised at `init`; the block reads the plan after this call.
        let mut plan = unsafe { self.at.plan() };
        if self.policy().plan(now_ns, &mut plan).is_err() {
            return 0;
        }
        for &slot in plan.preempted() {
            self.ring.set_state(SlotIdx(slot), State::DecodePaused);
        }
        for entry in plan.entries() {
            if entry.flags & entry_flags::RESUMED != 0 && self.live(entry.slot).num_generated > 0 {
                self.ring
                    .set_state(SlotIdx(entry.slot), State::DecodeProcessing);
            }
        }
        plan.header.num_entries
    }

    /// Takes in what step `step` sampled: publishes tokens, ends sequences, tells the policy.
    pub fn publish(&mut self, step: u64, num_samples: u32, times: &StepTimes, now_ns: u64) {
        // SAFETY: promised at `init`; the block wrote them before this call.
        let samples = unsafe { self.at.samples(num_samples) };
        // SAFETY: promised at `init`; used by this call alone.
        let results = unsafe { self.at.results() };
        // SAFETY: promised at `init`; the policy's arrays are used through this value alone, which nothing else here touches.
        let mut policy = unsafe { self.at.policy() };
        let mut count = 0;
        for sample in samples {
            if policy.accepts(step, sample.slot) {
                results[count] = self.take_sample(sample, times.finished_ns, now_ns);
                count += 1;
            }
        }
        let has_token =
            |result: &&StepResult| matches!(result.verdict, Verdict::Continue | Verdict::Stop);
        let shown = results[..count].iter().filter(has_token);
        self.ring
            .show_tokens(shown.map(|result| SlotIdx(result.slot)));
        // Steps complete in order: the block waits for the oldest.
        let _ = policy.complete_step(step, &results[..count], |departure| {
            let reason = self.finish_reason(&departure);
            self.complete(departure.slot, reason, Some(departure), now_ns);
        });
        self.observe(times);
        self.ring.heartbeat(now_ns);
        self.publish_stats();
        if step.is_multiple_of(STEPS_PER_SHOW) {
            self.ring.publish_steps(&self.steps);
        }
    }

    /// Stages a sample's token; what the policy is to be told.
    fn take_sample(&mut self, sample: &Sample, finished_ns: u64, now_ns: u64) -> StepResult {
        let slot = sample.slot;
        if sample.status > sample_status::CONTEXT_END {
            return StepResult {
                slot,
                token: 0,
                verdict: self.without_token(sample, now_ns),
            };
        }
        // SAFETY: the block found so many entries written for this sample of a completed step.
        let entries = unsafe { self.at.logprobs(sample.first_logprob, sample.num_logprobs) };
        let logprobs = (!entries.is_empty()).then_some(TokenLogprobs {
            rank: sample.rank,
            entries,
        });
        let output = OutputToken {
            token: sample.token,
            timestamp_ns: finished_ns,
        };
        self.ring.stage_token(SlotIdx(slot), output, logprobs);
        self.counters.output_tokens += 1;
        let ends = sample.status != sample_status::TOKEN;
        let live = self.live(slot);
        live.num_generated += 1;
        live.deferred_since_ns = 0;
        if ends {
            live.finish = sample.status;
            live.stop_token = sample.token;
        }
        StepResult {
            slot,
            token: sample.token,
            verdict: if ends {
                Verdict::Stop
            } else {
                Verdict::Continue
            },
        }
    }

    /// What becomes of a sequence whose row gave no token. One that waits for a mask does so for a while only.
    fn without_token(&mut self, sample: &Sample, now_ns: u64) -> Verdict {
        let mask_timeout_ns = self.at.mask_timeout_ns;
        let live = self.live(sample.slot);
        let mut error = sample_error(sample.status);
        if sample.status == sample_status::DEFERRED {
            if live.deferred_since_ns == 0 {
                live.deferred_since_ns = now_ns;
            }
            if now_ns - live.deferred_since_ns <= mask_timeout_ns {
                return Verdict::Defer;
            }
            error = EngineError::MaskLate;
        }
        live.error = error.code().into();
        Verdict::Fail
    }

    fn finish_reason(&mut self, departure: &Departure) -> FinishReason {
        let live = self.live(departure.slot);
        match departure.cause {
            Cause::Failed => {
                let error = EngineError::from_code(live.error as u16);
                FinishReason::Error(error.unwrap_or(EngineError::EngineFailed))
            }
            Cause::Cancelled => FinishReason::Cancelled,
            Cause::Length => FinishReason::Length,
            Cause::Stopped => match live.finish {
                sample_status::MAX_TOKENS | sample_status::CONTEXT_END => FinishReason::Length,
                _ => FinishReason::Stop,
            },
        }
    }

    fn observe(&mut self, times: &StepTimes) {
        let bounds = &StepStats::TIME_BOUNDS_NS;
        let took_ns = times.finished_ns.saturating_sub(times.started_ns);
        let sampling_ns = times.finished_ns.saturating_sub(times.sampling_ns);
        let steps = &mut self.steps;
        steps
            .tokens
            .observe(&StepStats::TOKEN_BOUNDS, times.num_tokens);
        let forward_ns = took_ns.saturating_sub(sampling_ns);
        steps.forward_ns.observe(bounds, forward_ns);
        steps.sampling_ns.observe(bounds, sampling_ns);
        steps.planning_ns.observe(bounds, times.planning_ns);
        steps.publishing_ns.observe(bounds, times.publishing_ns);
        if let Some(last) = self.last_finished_ns {
            steps
                .gap_ns
                .observe(bounds, times.started_ns.saturating_sub(last));
        }
        self.last_finished_ns = Some(times.finished_ns);
    }

    fn publish_stats(&mut self) {
        let gauges = self.policy().gauges();
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

    /// Ends everything because the engine stops. `candidates` are slots that may have submissions; nothing is in flight.
    pub fn close(&mut self, candidates: &[u32], now_ns: u64) {
        self.ring.set_engine_state(EngineState::Stopped, None);
        let num_events = self.look(candidates, now_ns);
        for idx in 0..num_events as usize {
            // SAFETY: promised at `init`; used by this statement alone.
            let event = unsafe { self.at.events() }[idx];
            if event.kind == event_kind::SUBMITTED {
                self.complete(event.slot, EngineError::EngineStopping, None, now_ns);
            }
        }
        for slot in 0..self.at.config.num_slots {
            if self.live(slot).is_live != 0 {
                self.policy().cancel(slot);
                self.complete(slot, EngineError::EngineStopping, None, now_ns);
            }
        }
        self.publish_stats();
    }

    /// A seed for a request that brings none: a walk through all 64-bit numbers, mixed (SplitMix64).
    fn draw_seed(&mut self) -> u64 {
        self.num_drawn += 1;
        let mut z = self
            .at
            .seed
            .wrapping_add(self.num_drawn.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The policy's configuration.
    pub fn config(&self) -> &Config {
        &self.at.config
    }
}

/// Why a sample has no token, if it is none that waits.
fn sample_error(status: u32) -> EngineError {
    match status {
        sample_status::NON_FINITE => EngineError::NonFiniteLogits,
        sample_status::NOTHING_ALLOWED => EngineError::NothingAllowed,
        _ => EngineError::EngineFailed,
    }
}

fn refusal_error(refusal: Refusal) -> EngineError {
    match refusal {
        Refusal::NeverFits { .. } => EngineError::NeverFits,
        Refusal::TooLong { .. } => EngineError::TooLong,
        // The ring validates requests, and the slot was empty.
        Refusal::EmptyPrompt
        | Refusal::NothingToGenerate
        | Refusal::UnknownSlot
        | Refusal::SlotBusy => EngineError::EngineFailed,
    }
}
