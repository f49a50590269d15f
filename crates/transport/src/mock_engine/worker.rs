//! The mock's thread: scan, claim, one step, publish, rest.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use izar_ring::{
    EngineError, EngineState, EngineStats, FinishReason, LogprobEntry, MaskState, OutputToken,
    Request, SlotEvent, SlotIdx, SlotResult, StepRecord, TokenLogprobs,
};

use super::{Control, DRAIN, FAIL, FREEZE, KILL, MockOptions, Reply, ReplyEnd, STOP};
use crate::EngineEnd;

/// The mock's clock: wall time, so that a front end of the same host can measure delays.
pub(super) fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |t| t.as_nanos() as u64)
}

struct Running {
    request: Request,
    reply: Reply,
    num_generated: u32,
}

pub(super) struct Worker {
    engine: EngineEnd,
    options: MockOptions,
    control: Arc<Control>,
    events: Vec<SlotEvent>,
    waiting: VecDeque<SlotIdx>,
    running: Vec<Running>,
    entries: Vec<LogprobEntry>,
    stats: EngineStats,
    next_step: Instant,
    next_beat: Instant,
    /// The last step had nothing to say: no need of another before something happens.
    is_hanging: bool,
    /// The group whose turn it is.
    group: u32,
}

/// Between two heartbeats, and two looks for dead front ends.
const BEAT: Duration = Duration::from_millis(20);

impl Worker {
    pub(super) fn new(engine: EngineEnd, options: MockOptions, control: Arc<Control>) -> Worker {
        let now = Instant::now();
        Worker {
            engine,
            options,
            control,
            events: Vec::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            entries: Vec::new(),
            stats: EngineStats::default(),
            next_step: now,
            next_beat: now,
            is_hanging: false,
            group: 0,
        }
    }

    pub(super) fn run(mut self) -> EngineEnd {
        loop {
            match self.control.command.load(Ordering::Acquire) {
                KILL => return self.engine,
                STOP => break self.stop(EngineState::Stopped),
                FAIL => break self.stop(EngineState::Failed),
                FREEZE => std::thread::sleep(Duration::from_millis(1)),
                command => self.turn(command == DRAIN),
            }
        }
        self.engine
    }

    fn turn(&mut self, draining: bool) {
        let now = Instant::now();
        if now >= self.next_beat {
            self.next_beat = now + BEAT;
            let state = if draining {
                EngineState::Draining
            } else {
                EngineState::Ready
            };
            self.engine.set_engine_state(state, None);
            self.engine.heartbeat(now_ns());
            let events = &mut self.events;
            self.engine
                .reap_expired_leases(now_ns(), &mut |event| events.push(event));
        }
        let events = &mut self.events;
        self.engine.scan(&mut |event| events.push(event));
        let mut published = !self.events.is_empty();
        if published && self.is_hanging {
            self.next_step = now;
        }
        self.take_events();
        self.claim_waiting();
        if !self.running.is_empty() && now >= self.next_step {
            let stepped = self.step();
            // A masked sequence may say something as soon as its mask is there.
            let is_masked = self.running.iter().any(|r| r.request.is_masked);
            self.is_hanging = !stepped && self.options.num_groups == 1 && !is_masked;
            self.next_step = match self.is_hanging {
                true => self.next_beat,
                false => self.after(now),
            };
            published |= stepped;
        }
        if published {
            self.publish_stats();
            self.engine.doorbell().ring();
        }
        self.rest();
    }

    /// When the next step is due. Lost time is made up for where the tokens of a step are spread, so that their rate holds.
    fn after(&self, now: Instant) -> Instant {
        let options = &self.options;
        let interval = options.step_time / options.num_groups;
        let due = self.next_step + interval;
        let made_up = match options.num_groups {
            1 => Duration::ZERO,
            _ => options.step_time,
        };
        if due + made_up > now {
            due
        } else {
            now + interval
        }
    }

    fn take_events(&mut self) {
        for event in std::mem::take(&mut self.events) {
            match event {
                SlotEvent::Submitted { slot } => self.waiting.push_back(slot),
                SlotEvent::Cancelled { slot } => self.cancel(slot),
                SlotEvent::Recycled { .. } => {}
            }
        }
    }

    fn cancel(&mut self, slot: SlotIdx) {
        self.waiting.retain(|waiting| *waiting != slot);
        self.running.retain(|running| running.request.slot != slot);
        self.complete(slot, FinishReason::Cancelled, None);
    }

    fn complete(&mut self, slot: SlotIdx, reason: FinishReason, stop_token: Option<u32>) {
        let result = SlotResult {
            completed_ns: now_ns(),
            stop_token,
            ..SlotResult::default()
        };
        self.engine.complete(slot, reason, &result);
    }

    fn claim_waiting(&mut self) {
        while self.running.len() < self.options.max_num_seqs as usize {
            let Some(slot) = self.waiting.pop_front() else {
                return;
            };
            if let Ok(request) = self.engine.claim(slot, now_ns()) {
                let reply = (self.options.script)(&request, self.engine.prompt(slot));
                self.store_prompt_logprobs(&request);
                self.running.push(Running {
                    request,
                    reply,
                    num_generated: 0,
                });
                // Relaxed: a count for tests.
                self.control.seen.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn store_prompt_logprobs(&mut self, request: &Request) {
        let Some(num_top) = request.num_prompt_logprobs else {
            return;
        };
        let prompt = self.engine.prompt(request.slot).to_vec();
        for (position, &token) in (0..).zip(&prompt).skip(1) {
            mock_logprobs(&mut self.entries, token, num_top, self.options.vocab_size);
            let logprobs = TokenLogprobs {
                rank: 1,
                entries: &self.entries,
            };
            self.engine
                .store_prompt_logprobs(request.slot, position, logprobs);
        }
    }

    /// What a sequence's mask makes of the token it would say next: nothing while the mask is not there, and the lowest token
    /// allowed instead of a forbidden one.
    fn masked(&self, slot: SlotIdx, index: u32, token: u32) -> Option<u32> {
        let Some(masks) = self.engine.token_masks(slot) else {
            return Some(token);
        };
        let mut mask = vec![0; self.options.vocab_size.div_ceil(32) as usize];
        match masks.load(index, &mut mask) {
            MaskState::Awaited => None,
            MaskState::Open => Some(token),
            MaskState::Ready => {
                let allows = |id: &u32| mask[*id as usize / 32] >> (id % 32) & 1 != 0;
                let lowest = || (0..self.options.vocab_size).find(allows);
                Some(token).filter(allows).or_else(lowest)
            }
        }
    }

    /// One token for every running sequence; false if none had anything to say.
    fn step(&mut self) -> bool {
        let (mut i, now, before) = (0, now_ns(), self.stats.output_tokens);
        let num_before = self.running.len();
        self.stats.num_steps += 1;
        while i < self.running.len() {
            let slot = self.running[i].request.slot.0;
            if slot % self.options.num_groups != self.group {
                i += 1;
                continue;
            }
            match self.advance(i, now) {
                None => i += 1,
                Some((reason, stop_token)) => {
                    let slot = self.running.swap_remove(i).request.slot;
                    self.complete(slot, reason, stop_token);
                }
            }
        }
        self.group = (self.group + 1) % self.options.num_groups;
        self.log_step(now, num_before, self.stats.output_tokens - before);
        self.stats.output_tokens > before || self.running.len() < num_before
    }

    /// What a mock does in a step is publishing.
    fn log_step(&mut self, began_ns: u64, num_sequences: usize, num_tokens: u64) {
        self.engine.log_step(&StepRecord {
            step: self.stats.num_steps,
            planning_started_ns: began_ns,
            started_ns: began_ns,
            publishing_started_ns: began_ns,
            publishing_ns: now_ns().saturating_sub(began_ns),
            num_tokens: num_tokens as u32,
            num_sequences: num_sequences as u32,
            ..StepRecord::default()
        });
    }

    /// The next token of one sequence; its end, if that has come.
    fn advance(&mut self, i: usize, timestamp_ns: u64) -> Option<(FinishReason, Option<u32>)> {
        let Running {
            request,
            reply,
            num_generated,
        } = &self.running[i];
        let Some(token) = reply.token(*num_generated) else {
            return match reply.end {
                ReplyEnd::Stop => Some((FinishReason::Stop, None)),
                ReplyEnd::Length => Some((FinishReason::Length, None)),
                ReplyEnd::Fail(error) => Some((error.into(), None)),
                ReplyEnd::Hang => None,
            };
        };
        let token = token % self.options.vocab_size;
        let token = self.masked(request.slot, *num_generated, token)?;
        let Running {
            request,
            reply,
            num_generated,
        } = &mut self.running[i];
        *num_generated += 1;
        let count = *num_generated;
        let last_of_list = reply.end == ReplyEnd::Stop && reply.token(count).is_none();
        let (slot, max_tokens, min_tokens) = (request.slot, request.max_tokens, request.min_tokens);
        let logprobs = request.num_logprobs.map(|n| {
            mock_logprobs(&mut self.entries, token, n, self.options.vocab_size);
            TokenLogprobs {
                rank: 1,
                entries: &self.entries,
            }
        });
        self.engine.publish_token(
            slot,
            OutputToken {
                token,
                timestamp_ns,
            },
            logprobs,
        );
        self.stats.output_tokens += 1;
        if last_of_list || (count > min_tokens && self.engine.stop_ids(slot).contains(&token)) {
            Some((FinishReason::Stop, Some(token)))
        } else if count == max_tokens {
            Some((FinishReason::Length, None))
        } else {
            None
        }
    }

    fn publish_stats(&mut self) {
        self.stats.num_running = self.running.len() as u64;
        self.stats.num_waiting = self.waiting.len() as u64;
        self.engine.publish_stats(&self.stats);
        *self
            .control
            .stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = self.stats;
    }

    /// Sleeps until the next step, the next heartbeat, a command or a front end's doorbell.
    fn rest(&self) {
        let until = if self.running.is_empty() {
            self.next_beat
        } else {
            self.next_beat.min(self.next_step)
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let before = self.control.command.load(Ordering::Relaxed);
        self.engine.doorbell().park(left, || {
            self.engine.has_news() || self.control.command.load(Ordering::Relaxed) != before
        });
    }

    /// Ends everything and says so.
    fn stop(&mut self, state: EngineState) {
        let events = &mut self.events;
        self.engine.scan(&mut |event| events.push(event));
        self.take_events();
        let error = if state == EngineState::Failed {
            EngineError::EngineFailed
        } else {
            EngineError::EngineStopping
        };
        let slots = self.running.drain(..).map(|running| running.request.slot);
        let slots: Vec<SlotIdx> = slots.chain(self.waiting.drain(..)).collect();
        slots
            .into_iter()
            .for_each(|slot| self.complete(slot, error.into(), None));
        self.engine
            .set_engine_state(state, (state == EngineState::Failed).then_some(error));
        self.publish_stats();
        self.engine.doorbell().ring();
    }
}

/// Made-up log probabilities: the sampled token first, then its successors, each half as probable as the one before.
fn mock_logprobs(entries: &mut Vec<LogprobEntry>, token: u32, num_top: u32, vocab_size: u32) {
    let entry = |i: u32| LogprobEntry {
        token: token.wrapping_add(i) % vocab_size,
        logprob: -(i as f32 + 1.0) * std::f32::consts::LN_2,
    };
    entries.clear();
    entries.push(entry(0));
    entries.extend((0..num_top).map(entry));
}
