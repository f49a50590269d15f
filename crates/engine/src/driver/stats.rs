//! Where a step's time goes, and how the engine is told to stop.
//!
//! The parts carry Albireo's names (§2.1): T1 scheduling and T2 input processing are one here (`planning`), T3 is the forward
//! pass, T4 sampling, T5 output processing (`publishing`).
//!
//! Every step is told three times: summed for the engine's owner, counted in histograms and written down whole in the ring's step log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use izar_ring::{StepRecord, StepStats};

use super::clock::now_ns;
use super::executor::StepWork;

const TIME_BOUNDS: &[u64] = &StepStats::TIME_BOUNDS_NS;

/// Shared between the engine's scheduler thread (writes times, reads the stop flag) and its owner (the reverse).
#[derive(Debug, Default)]
pub(crate) struct Control {
    stopping: AtomicBool,
    times: [AtomicU64; 8],
}

/// Sums since the engine started. Times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Steps completed.
    pub num_steps: u64,
    /// T1 + T2: taking in requests, planning, preparing the step's inputs; without passing them on.
    pub planning_ns: u64,
    /// Of that, the part of T2: preparing the step's inputs from its plan.
    pub filling_ns: u64,
    /// The rest of T2: passing the step on to the executor, which copies the inputs and launches.
    pub launching_ns: u64,
    /// T3: the forward pass.
    pub forward_ns: u64,
    /// T4: sampling.
    pub sampling_ns: u64,
    /// T5: publishing tokens and ending sequences.
    pub publishing_ns: u64,
    /// From the end of a step to the start of the next, where the engine had work throughout: what planning and
    /// publishing cost on the token path.
    pub gap_ns: u64,
}

impl Control {
    pub(super) fn stop(&self) {
        // Relaxed: carries nothing; the scheduler looks at it in every round and at least every heartbeat.
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        // Relaxed: see `stop`.
        self.stopping.load(Ordering::Relaxed)
    }

    fn add(&self, which: usize, ns: u64) {
        // Relaxed: figures for people; each is right by itself, and one thread writes.
        self.times[which].fetch_add(ns, Ordering::Relaxed);
    }

    /// Takes over sums that somebody else keeps.
    pub(crate) fn set_times(&self, times: &StepTimes) {
        let StepTimes {
            num_steps,
            planning_ns,
            forward_ns,
            sampling_ns,
            publishing_ns,
            gap_ns,
            filling_ns,
            launching_ns,
        } = *times;
        let sums = [
            num_steps,
            planning_ns,
            forward_ns,
            sampling_ns,
            publishing_ns,
            gap_ns,
            filling_ns,
            launching_ns,
        ];
        for (place, sum) in self.times.iter().zip(sums) {
            // Relaxed: see `add`.
            place.store(sum, Ordering::Relaxed);
        }
    }

    pub(super) fn times(&self) -> StepTimes {
        // Relaxed: see `add`.
        let [
            num_steps,
            planning_ns,
            forward_ns,
            sampling_ns,
            publishing_ns,
            gap_ns,
            filling_ns,
            launching_ns,
        ] = std::array::from_fn(|which| self.times[which].load(Ordering::Relaxed));
        StepTimes {
            num_steps,
            planning_ns,
            filling_ns,
            launching_ns,
            forward_ns,
            sampling_ns,
            publishing_ns,
            gap_ns,
        }
    }
}

/// The scheduler's end of [`StepTimes`], and the histograms that front ends see.
pub(super) struct StepClock {
    control: Arc<Control>,
    steps: StepStats,
    /// End of the last step, if the engine has had work since.
    last_finished_ns: Option<u64>,
    /// What is known of the steps planned and not published, oldest first; at most [`MAX_STEPS`].
    steps_in_flight: VecDeque<StepRecord>,
}

/// Most steps planned and not published.
const MAX_STEPS: usize = 2;

impl StepClock {
    pub(super) fn new(control: Arc<Control>) -> Self {
        Self {
            control,
            steps: StepStats::default(),
            last_finished_ns: None,
            steps_in_flight: VecDeque::with_capacity(MAX_STEPS),
        }
    }

    /// The engine ran out of work: the next gap is not its fault.
    pub(super) fn idle(&mut self) {
        self.last_finished_ns = None;
    }

    /// The histograms so far.
    pub(super) fn steps(&self) -> &StepStats {
        &self.steps
    }

    /// A step was planned into `work` since `watch` was started.
    pub(super) fn planned(&mut self, work: &StepWork, watch: &Stopwatch) {
        let ns = watch.elapsed_ns();
        self.control.add(1, ns);
        self.steps.planning_ns.observe(TIME_BOUNDS, ns);
        self.steps_in_flight.push_back(StepRecord {
            step: work.step,
            planning_started_ns: watch.started_ns,
            planning_ns: ns,
            num_tokens: work.tokens.len() as u32,
            num_sequences: work.entries.len() as u32,
            ..StepRecord::default()
        });
    }

    /// Of planning, the time that filling the step's inputs took.
    pub(super) fn filled(&mut self, ns: u64) {
        self.control.add(6, ns);
    }

    /// The step planned last was launched since `watch` was started.
    pub(super) fn launched(&mut self, watch: &Stopwatch) {
        let ns = watch.elapsed_ns();
        self.control.add(7, ns);
        if let Some(step) = self.steps_in_flight.back_mut() {
            step.launching_ns = ns;
        }
    }

    /// The oldest step was published since `watch` was started: everything about it.
    pub(super) fn published(&mut self, watch: &Stopwatch) -> StepRecord {
        let ns = watch.elapsed_ns();
        self.control.add(4, ns);
        self.steps.publishing_ns.observe(TIME_BOUNDS, ns);
        let Some(mut step) = self.steps_in_flight.pop_front() else {
            unreachable!("a step is planned before it is published")
        };
        step.publishing_started_ns = watch.started_ns;
        step.publishing_ns = ns;
        step
    }

    /// The oldest step has come back from the executor.
    pub(super) fn completed(&mut self, work: &StepWork) {
        let output = &work.output;
        let took = output.finished_ns.saturating_sub(output.started_ns);
        let forward_ns = took.saturating_sub(output.sampling_ns);
        self.control.add(0, 1);
        self.control.add(2, forward_ns);
        self.control.add(3, output.sampling_ns);
        self.steps
            .tokens
            .observe(&StepStats::TOKEN_BOUNDS, work.tokens.len() as u64);
        self.steps.forward_ns.observe(TIME_BOUNDS, forward_ns);
        self.steps
            .sampling_ns
            .observe(TIME_BOUNDS, output.sampling_ns);
        let gap_ns = self
            .last_finished_ns
            .map(|last| output.started_ns.saturating_sub(last));
        if let Some(gap_ns) = gap_ns {
            self.control.add(5, gap_ns);
            self.steps.gap_ns.observe(TIME_BOUNDS, gap_ns);
        }
        self.last_finished_ns = Some(output.finished_ns);
        if let Some(step) = self.steps_in_flight.front_mut() {
            step.started_ns = output.started_ns;
            step.forward_ns = forward_ns;
            step.sampling_ns = output.sampling_ns;
            step.gap_ns = gap_ns.unwrap_or(0);
        }
    }
}

/// Measures one stretch of the scheduler thread's time.
pub(super) struct Stopwatch {
    started: Instant,
    /// The same on the engine's clock.
    started_ns: u64,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self {
            started: Instant::now(),
            started_ns: now_ns(),
        }
    }

    pub(super) fn elapsed_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}
