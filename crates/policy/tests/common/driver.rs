//! A driver that runs requests to their end on the stand-in model and checks every plan it gets.
//!
//! It is as unfriendly as a real one may be: a step runs as late as possible, so through block tables that the
//! next plan has already changed; entries of a step run in reverse order; a slot is used again at once.

use std::collections::{BTreeMap, HashMap, HashSet};

use izar_policy::{
    Cause, Config, Departure, OwnedPlan, OwnedState, PlanEntry, Refusal, StepResult, Verdict,
    entry_flags,
};

use super::model::{End, KvMemory, Request};
use super::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Complete a step, then plan the next.
    Exact,
    /// Plan a step, then complete the one before.
    Optimistic,
    /// Either, at random.
    Mixed,
}

/// What became of one request.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub output: Vec<u32>,
    pub cause: Option<Cause>,
    pub refusal: Option<Refusal>,
    /// Driver iteration of its first token.
    pub first_token_step: Option<u64>,
    pub departure: Option<Departure>,
    /// Positions at which its recomputations started.
    pub resumed_at: Vec<u32>,
}

struct Live {
    request: usize,
    history: Vec<u32>,
    row: Option<u32>,
    /// Its last sample was deferred.
    is_deferred: bool,
}

struct InFlight {
    step: u64,
    entries: Vec<(PlanEntry, Vec<u32>)>,
}

pub struct Driver {
    pub config: Config,
    pub state: OwnedState,
    mode: Mode,
    rng: Rng,
    kv: KvMemory,
    plan: OwnedPlan,
    live: HashMap<u32, Live>,
    free_slots: Vec<u32>,
    in_flight: Vec<InFlight>,
    /// What the last step's sampler wrote, by row.
    sampled: Vec<u32>,
    /// The executor's own tables, kept by copying new entries only.
    tables: Vec<Vec<u32>>,
    /// Slots that the last plan let decode on, with their length then.
    streaming: BTreeMap<u32, usize>,
    requests: Vec<Request>,
    /// The request that arrives next.
    next: usize,
    pub outcomes: Vec<Outcome>,
    pub now: u64,
}

impl Driver {
    pub fn new(config: Config, mode: Mode, seed: u64, requests: Vec<Request>) -> Self {
        let state = OwnedState::new(config).expect("the configuration is valid");
        Self {
            config,
            mode,
            rng: Rng(seed),
            kv: KvMemory::new(config.num_blocks, config.block_size),
            plan: state.new_plan(),
            live: HashMap::new(),
            free_slots: (0..config.num_slots).collect(),
            in_flight: Vec::new(),
            sampled: vec![u32::MAX; config.max_num_seqs as usize],
            tables: vec![Vec::new(); config.max_num_seqs as usize],
            streaming: BTreeMap::new(),
            outcomes: vec![Outcome::default(); requests.len()],
            requests,
            next: 0,
            state,
            now: 0,
        }
    }

    /// Runs until everybody has left. Panics when that takes more than `max_steps`.
    pub fn run(&mut self, max_steps: u64) {
        while self.next < self.requests.len() || !self.live.is_empty() || !self.in_flight.is_empty()
        {
            self.now += 1;
            assert!(
                self.now < max_steps,
                "somebody starves: {:?}",
                self.state.gauges()
            );
            self.step();
        }
        let gauges = self.state.gauges();
        assert_eq!(gauges.kv_blocks_used, 0, "every block comes back");
        assert_eq!((gauges.num_running, gauges.num_waiting), (0, 0));
    }

    /// Arrivals and cancellations that are due, half of the times.
    fn events(&mut self) {
        if self.rng.chance(50) {
            self.cancel_due();
        }
        if self.rng.chance(50) {
            self.add_due();
        }
    }

    fn add_due(&mut self) {
        while self.next < self.requests.len()
            && self.requests[self.next].arrival_step <= self.now
            && let Some(slot) = self.free_slots.pop()
        {
            self.add(self.next, slot);
            self.next += 1;
        }
    }

    fn add(&mut self, request: usize, slot: u32) {
        let Request {
            prompt,
            max_total_len,
            priority,
            ..
        } = &self.requests[request];
        match self
            .state
            .add(slot, prompt, *max_total_len, *priority, request as u64)
        {
            Ok(()) => {
                if self.requests[request].computes_all {
                    self.state.compute_all(slot);
                }
                let live = Live {
                    request,
                    history: prompt.clone(),
                    row: None,
                    is_deferred: false,
                };
                self.live.insert(slot, live);
            }
            Err(refusal) => {
                self.outcomes[request].refusal = Some(refusal);
                self.free_slots.push(slot);
            }
        }
        self.check();
    }

    fn cancel_due(&mut self) {
        let due = |live: &Live| {
            self.requests[live.request]
                .cancel_step
                .is_some_and(|step| step <= self.now)
        };
        let mut slots: Vec<u32> = self
            .live
            .iter()
            .filter(|(_, live)| due(live))
            .map(|(&slot, _)| slot)
            .collect();
        slots.sort_unstable();
        for slot in slots {
            let departure = self.state.cancel(slot).expect("the sequence is live");
            assert_eq!(departure.cause, Cause::Cancelled);
            self.depart(departure);
            self.check();
        }
    }

    /// One iteration: at most one plan, and a completion when there is something to complete.
    pub fn step(&mut self) {
        let ahead = match self.mode {
            Mode::Exact => false,
            Mode::Optimistic => true,
            Mode::Mixed => self.rng.chance(50),
        };
        self.events();
        let had_work = !self.live.is_empty();
        let planned = self.plan_next();
        self.events();
        let num_in_flight = self.in_flight.len();
        if !planned && num_in_flight == 0 {
            assert!(
                !had_work || self.live.is_empty(),
                "work but no plan: {:?}",
                self.state.gauges()
            );
        }
        if num_in_flight == 2 || (num_in_flight == 1 && (!ahead || !planned)) {
            self.complete_oldest();
        }
    }

    fn plan_next(&mut self) -> bool {
        self.state
            .plan(self.now, &mut self.plan)
            .expect("at most one step is in flight");
        self.check();
        self.check_plan();
        for &slot in self.plan.preempted() {
            self.live
                .get_mut(&slot)
                .expect("preempted sequences are live")
                .row = None;
        }
        if self.plan.is_empty() {
            return false;
        }
        let entries = self.plan.entries().to_vec();
        let entries = entries
            .into_iter()
            .map(|entry| (entry, self.take_entry(&entry)))
            .collect();
        self.in_flight.push(InFlight {
            step: self.plan.header().step,
            entries,
        });
        true
    }

    /// Does for an entry what a driver does at planning time. Returns its input tokens; a backfilled one is left 0.
    fn take_entry(&mut self, entry: &PlanEntry) -> Vec<u32> {
        let live = self
            .live
            .get_mut(&entry.slot)
            .expect("planned sequences are live");
        let admitted = entry.flags & (entry_flags::FIRST | entry_flags::RESUMED) != 0;
        // Who seemed to end is preempted without a word, and comes back if its last sample was deferred.
        let returns = admitted && live.is_deferred;
        assert!(
            admitted == live.row.is_none() || returns,
            "a first entry is flagged"
        );
        assert!(admitted || live.row == Some(entry.row), "rows are kept");
        assert!(
            !admitted || entry.start == 0 || !self.requests[live.request].computes_all,
            "what is to be computed is not taken from the cache"
        );
        live.row = Some(entry.row);
        if entry.flags & entry_flags::RESUMED != 0 {
            self.outcomes[live.request].resumed_at.push(entry.start);
        }
        let table = &mut self.tables[entry.row as usize];
        // A step in flight may still read entries beyond these: they stay.
        let end = entry.num_blocks as usize;
        let new = end - entry.num_new_blocks as usize..end;
        table.resize(table.len().max(end), u32::MAX);
        table[new.clone()].copy_from_slice(&self.state.block_table(entry.row)[new]);
        let input = entry.start as usize..(entry.start + entry.num_tokens) as usize;
        if entry.flags & entry_flags::BACKFILL != 0 {
            assert_eq!(
                live.history.len(),
                entry.start as usize,
                "only unknown tokens backfill"
            );
            return vec![0];
        }
        live.history[input].to_vec()
    }

    fn check_plan(&mut self) {
        let (header, entries) = (*self.plan.header(), self.plan.entries());
        let num_tokens: u32 = entries.iter().map(|entry| entry.num_tokens).sum();
        assert_eq!(num_tokens, header.num_tokens);
        assert!(
            num_tokens <= self.config.max_num_batched_tokens,
            "the token budget holds"
        );
        assert!(
            entries.len() <= self.config.max_num_seqs as usize,
            "the row budget holds"
        );
        let num_decodes = header.num_decodes as usize;
        assert!(
            entries[..num_decodes]
                .iter()
                .all(|entry| !entry.is_prefill())
        );
        assert!(
            entries[num_decodes..]
                .iter()
                .all(|entry| entry.is_prefill())
        );
        let rows: HashSet<u32> = entries.iter().map(|entry| entry.row).collect();
        assert_eq!(rows.len(), entries.len(), "rows are distinct");
        assert_eq!(
            entries.iter().filter(|entry| entry.samples()).count() as u32,
            header.num_samples
        );
        let planned: HashSet<u32> = entries.iter().map(|entry| entry.slot).collect();
        assert!(
            self.plan
                .preempted()
                .iter()
                .all(|slot| !planned.contains(slot))
        );
        for (slot, len) in core::mem::take(&mut self.streaming) {
            let ends = len >= self.longest(self.live[&slot].request);
            let goes_on = planned.contains(&slot) || self.plan.preempted().contains(&slot);
            assert!(goes_on || ends, "a running stream paused");
            assert!(
                !(ends && planned.contains(&slot)),
                "planned beyond its length"
            );
        }
        for entry in self.plan.entries().iter().filter(|entry| entry.samples()) {
            let len = (entry.start + entry.num_tokens + 1) as usize;
            self.streaming.insert(entry.slot, len);
        }
    }

    fn longest(&self, request: usize) -> usize {
        self.requests[request]
            .max_total_len
            .min(self.config.max_total_len()) as usize
    }

    fn complete_oldest(&mut self) {
        let InFlight { step, entries } = self.in_flight.remove(0);
        let sampled = self.execute(&entries);
        let mut results = Vec::new();
        for ((entry, _), token) in entries.iter().zip(sampled) {
            if !entry.samples() {
                continue;
            }
            if self.state.accepts(step, entry.slot) {
                let verdict = if self.defers(entry) {
                    self.defer(entry);
                    Verdict::Defer
                } else {
                    self.publish(entry, token)
                };
                results.push(StepResult {
                    slot: entry.slot,
                    token,
                    verdict,
                });
            } else if self.rng.chance(50) {
                let verdict = [Verdict::Continue, Verdict::Defer][self.rng.range(0, 1) as usize];
                results.push(StepResult {
                    slot: entry.slot,
                    token,
                    verdict,
                });
            }
        }
        let mut departures = Vec::new();
        self.state
            .complete_step(step, &results, |departure| departures.push(departure))
            .expect("steps complete in order");
        for departure in departures {
            self.depart(departure);
        }
        self.check();
    }

    fn execute(&mut self, entries: &[(PlanEntry, Vec<u32>)]) -> Vec<u32> {
        let backfill = self.sampled.clone();
        let mut sampled = vec![0; entries.len()];
        for (idx, (entry, tokens)) in entries.iter().enumerate().rev() {
            let table = &self.state.block_table(entry.row)[..entry.num_blocks as usize];
            assert_eq!(
                table,
                &self.tables[entry.row as usize][..table.len()],
                "copies are enough"
            );
            let mut tokens = tokens.clone();
            if entry.flags & entry_flags::BACKFILL != 0 {
                tokens[0] = backfill[entry.row as usize];
            }
            sampled[idx] = self.kv.forward(table, entry.start, &tokens);
            if entry.samples() && self.is_due(entry) {
                self.sampled[entry.row as usize] = sampled[idx];
            }
        }
        sampled
    }

    /// Whether the entry samples the token that its sequence wants next, and not one behind a deferred one.
    fn is_due(&self, entry: &PlanEntry) -> bool {
        let len = (entry.start + entry.num_tokens) as usize;
        self.live
            .get(&entry.slot)
            .is_none_or(|live| live.history.len() == len)
    }

    fn defers(&mut self, entry: &PlanEntry) -> bool {
        assert!(self.is_due(entry), "only what is due is accepted");
        let percent = self.requests[self.live[&entry.slot].request].deferred;
        self.rng.chance(percent)
    }

    /// Nothing was sampled: the row's newest token stays what it was, and the sequence must be planned again.
    fn defer(&mut self, entry: &PlanEntry) {
        let live = self.live.get_mut(&entry.slot).expect("accepted");
        live.is_deferred = true;
        let len = live.history.len();
        self.sampled[entry.row as usize] = live.history[len - 1];
        if let Some(planned) = self.streaming.get_mut(&entry.slot) {
            *planned = len;
        }
    }

    fn publish(&mut self, entry: &PlanEntry, token: u32) -> Verdict {
        let live = self
            .live
            .get_mut(&entry.slot)
            .expect("accepted sequences are live");
        let end = self.requests[live.request].judge(token);
        if end == Some(End::Fail) {
            return Verdict::Fail;
        }
        let outcome = &mut self.outcomes[live.request];
        assert_eq!(
            outcome.output.len() as u32,
            entry.output_idx,
            "outputs are in sequence"
        );
        outcome.first_token_step.get_or_insert(self.now);
        live.is_deferred = false;
        outcome.output.push(token);
        live.history.push(token);
        if end.is_some() {
            Verdict::Stop
        } else {
            Verdict::Continue
        }
    }

    fn depart(&mut self, departure: Departure) {
        let live = self
            .live
            .remove(&departure.slot)
            .expect("who leaves is live");
        let outcome = &mut self.outcomes[live.request];
        assert_eq!(departure.num_generated as usize, outcome.output.len());
        outcome.cause = Some(departure.cause);
        outcome.departure = Some(departure);
        self.streaming.remove(&departure.slot);
        self.free_slots.push(departure.slot);
    }

    fn check(&mut self) {
        self.state
            .check_integrity()
            .expect("the state is consistent");
    }
}
