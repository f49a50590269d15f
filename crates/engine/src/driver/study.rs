//! What an experiment may change in how an engine is driven, and what it may watch.
//!
//! [`Overlap`] switches the mechanisms of `host-async` off one by one. A [`StepGate`] holds the scheduler before every round until
//! the experimenter has done what belongs there, so that a recorded schedule of arrivals and cancellations can be replayed whatever
//! the clock says. A [`StepLog`] keeps a record of every step. An engine that is not experimented with has none of them and pays
//! for none.
//!
//! A *round* is one look at the ring and one plan, empty plans included. Gate and log are shared between the scheduler thread and the
//! experimenter's.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::executor::StepWork;

/// Which of Albireo's mechanisms `host-async` uses. All of them, unless an experiment wants to know what one is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Step n+1 is planned while step n runs (Albireo §4); otherwise once it has run.
    pub scheduling: bool,
    /// Step n+1 is launched while step n runs and takes its tokens on the device (Albireo §5); otherwise once the host has them.
    /// Nothing can be launched ahead unless the other two are on.
    pub backfill: bool,
    /// The outcome of step n is taken in while step n+1 runs; otherwise before it is launched.
    pub output: bool,
}

impl Overlap {
    /// Everything overlaps: `host-async`.
    pub const ALL: Self = Self {
        scheduling: true,
        backfill: true,
        output: true,
    };
    /// Nothing overlaps: a step at a time as in `host-sync`, but planned as `host-async` does, before the outcome of the step
    /// before is taken in. So the plans are those of `host-async`, whatever stops where.
    pub const NONE: Self = Self {
        scheduling: false,
        backfill: false,
        output: false,
    };

    /// Whether a step may be launched before the one before it has run.
    pub(super) fn launches_ahead(self) -> bool {
        self == Self::ALL
    }
}

/// An [`Overlap`] that can be changed while the engine runs; the next round sees it.
#[derive(Debug, Default)]
pub struct OverlapSwitch(AtomicU8);

impl OverlapSwitch {
    /// A switch that says `overlap`.
    pub fn new(overlap: Overlap) -> Self {
        let switch = Self::default();
        switch.set(overlap);
        switch
    }

    /// Changes it.
    pub fn set(&self, overlap: Overlap) {
        let off = |on: bool, bit: u8| u8::from(!on) << bit;
        let bits = off(overlap.scheduling, 0) | off(overlap.backfill, 1) | off(overlap.output, 2);
        // Relaxed: carries nothing; any round may be the first to see it.
        self.0.store(bits, Ordering::Relaxed);
    }

    /// What it says.
    pub fn get(&self) -> Overlap {
        // Relaxed: see `set`.
        let off = self.0.load(Ordering::Relaxed);
        Overlap {
            scheduling: off & 1 == 0,
            backfill: off & 2 == 0,
            output: off & 4 == 0,
        }
    }
}

/// What an experiment changes and watches. The default is nothing.
#[derive(Clone, Debug, Default)]
pub struct Study {
    /// Mechanisms of `host-async`, all if not given; `host-sync` has none to switch off.
    pub overlap: Option<Arc<OverlapSwitch>>,
    /// Holds every round.
    pub gate: Option<Arc<StepGate>>,
    /// Keeps a record of every step.
    pub log: Option<Arc<StepLog>>,
}

/// Holds the scheduler before every round until it is let through.
#[derive(Debug, Default)]
pub struct StepGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// The round that the scheduler stands before, from 1 on; 0 until it has come to the first.
    reached: u64,
    /// The last round that may begin.
    released: u64,
}

impl StepGate {
    /// A gate that lets nothing through yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until the scheduler stands before `round`, counted from 1; false if that takes longer than `timeout`. What was published
    /// until then can be read, and what is written to the ring now is seen by this round.
    pub fn wait(&self, round: u64, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while state.reached < round {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.sleep(state, left);
        }
        true
    }

    /// Lets all rounds up to `round` begin.
    pub fn release(&self, round: u64) {
        self.lock().released = round;
        self.changed.notify_all();
    }

    /// The scheduler has come to `round`: waits until it may begin or `timeout` passes; says which.
    pub(super) fn pass(&self, round: u64, timeout: Duration) -> bool {
        let mut state = self.lock();
        if state.reached < round {
            state.reached = round;
            self.changed.notify_all();
        }
        if state.released < round {
            state = self.sleep(state, timeout);
        }
        state.released >= round
    }

    pub(super) fn has_released(&self, round: u64) -> bool {
        self.lock().released >= round
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        // Two numbers that are always right: a panic elsewhere breaks nothing here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'a>(
        &self,
        state: MutexGuard<'a, GateState>,
        timeout: Duration,
    ) -> MutexGuard<'a, GateState> {
        let woken = self.changed.wait_timeout(state, timeout);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// What is known of a step once it has run. Times on the engine's clock, as the executor has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// Its number.
    pub step: u64,
    /// Sequences in it.
    pub num_entries: u32,
    /// Tokens computed.
    pub num_tokens: u32,
    /// Sequences that were preempted by plans since the record before.
    pub num_preempted: u32,
    /// KV blocks that sequences own when the step has run, what is planned ahead of it included.
    pub blocks_allocated: u32,
    /// Blocks that hold what sequences have computed up to this step. A block that several share counts for each of them.
    pub blocks_used: u32,
    /// When the executor began it.
    pub started_ns: u64,
    /// When its last token was sampled.
    pub finished_ns: u64,
    /// Fingerprint of what was planned: rows, positions, lengths, block tables, in order. Equal plans have equal ones, on any
    /// engine; ring slots do not count.
    pub plan: u64,
}

/// Records of steps, in order.
#[derive(Debug, Default)]
pub struct StepLog(Mutex<Vec<StepRecord>>);

impl StepLog {
    /// A log with room for so many steps before it grows.
    pub fn with_capacity(num_steps: usize) -> Self {
        Self(Mutex::new(Vec::with_capacity(num_steps)))
    }

    /// The records so far; the log is empty afterwards.
    pub fn take(&self) -> Vec<StepRecord> {
        std::mem::take(&mut *self.lock())
    }

    fn push(&self, record: StepRecord) {
        self.lock().push(record);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StepRecord>> {
        // Whole records are pushed: a panic elsewhere leaves none half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The scheduler's end of a [`StepLog`]: knows how many blocks each sequence has filled.
pub(super) struct Recorder {
    log: Arc<StepLog>,
    block_size: u32,
    /// By slot: blocks that its sequence fills. A preempted one fills none until it comes back.
    filled: Box<[Filled]>,
    sum: u32,
    num_preempted: u32,
}

#[derive(Clone, Copy, Default)]
struct Filled {
    blocks: u32,
    is_paused: bool,
}

impl Recorder {
    pub(super) fn new(log: Arc<StepLog>, num_slots: u32, block_size: u32) -> Self {
        Self {
            log,
            block_size,
            filled: vec![Filled::default(); num_slots as usize].into_boxed_slice(),
            sum: 0,
            num_preempted: 0,
        }
    }

    /// A sequence lost its blocks and waits.
    pub(super) fn preempted(&mut self, slot: u32) {
        self.set(slot, 0);
        self.filled[slot as usize].is_paused = true;
        self.num_preempted += 1;
    }

    /// A sequence takes a row, for the first time or again.
    pub(super) fn bound(&mut self, slot: u32) {
        self.filled[slot as usize].is_paused = false;
    }

    /// A sequence is gone.
    pub(super) fn left(&mut self, slot: u32) {
        self.set(slot, 0);
    }

    /// A step has run; its outcome is not taken in yet. `counts` says whether an entry's slot still holds the sequence it was
    /// planned for.
    pub(super) fn completed(
        &mut self,
        work: &StepWork,
        blocks_allocated: u32,
        counts: impl Fn(u32) -> bool,
    ) {
        for entry in &work.entries {
            if counts(entry.slot) && !self.filled[entry.slot as usize].is_paused {
                let end = entry.start + entry.num_tokens;
                self.set(entry.slot, end.div_ceil(self.block_size));
            }
        }
        self.log.push(StepRecord {
            step: work.step,
            num_entries: work.entries.len() as u32,
            num_tokens: work.tokens.len() as u32,
            num_preempted: std::mem::take(&mut self.num_preempted),
            blocks_allocated,
            blocks_used: self.sum,
            started_ns: work.output.started_ns,
            finished_ns: work.output.finished_ns,
            plan: fingerprint(work),
        });
    }

    fn set(&mut self, slot: u32, blocks: u32) {
        let filled = &mut self.filled[slot as usize];
        self.sum = self.sum - filled.blocks + blocks;
        filled.blocks = blocks;
    }
}

/// FNV-1a over the words of a plan.
fn fingerprint(work: &StepWork) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |word: u32| hash = (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3);
    for (idx, entry) in work.entries.iter().enumerate() {
        let flags = u32::from(entry.samples) | u32::from(entry.is_decode) << 1;
        let words = [entry.row, entry.start, entry.num_tokens, flags];
        words.into_iter().for_each(&mut mix);
        let table = &work.block_tables[idx * work.blocks_per_row..][..entry.num_blocks as usize];
        table.iter().copied().for_each(&mut mix);
    }
    for binding in &work.bindings[..work.num_bindings] {
        mix(binding.row);
        binding.history.iter().copied().for_each(&mut mix);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::super::executor::StepEntry;
    use super::*;

    const SOON: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn switch_says_what_was_set_and_everything_at_first() {
        assert_eq!(OverlapSwitch::default().get(), Overlap::ALL);
        for off in 0..8 {
            let overlap = Overlap {
                scheduling: off & 1 == 0,
                backfill: off & 2 == 0,
                output: off & 4 == 0,
            };
            assert_eq!(OverlapSwitch::new(overlap).get(), overlap);
        }
    }

    #[test]
    fn gate_holds_a_round_until_it_is_released() {
        let gate = Arc::new(StepGate::new());
        assert!(!gate.pass(1, SOON));
        assert!(gate.wait(1, SOON) && !gate.wait(2, SOON));
        gate.release(1);
        assert!(gate.pass(1, SOON) && !gate.pass(2, SOON));
        let engine = std::thread::spawn({
            let gate = Arc::clone(&gate);
            move || (3..=100).all(|round| gate.pass(round, LONG))
        });
        for round in 3..=100 {
            assert!(gate.wait(round, LONG));
            gate.release(round);
        }
        assert!(engine.join().unwrap());
        gate.release(200);
        assert!(gate.has_released(200) && !gate.has_released(201));
        assert!(gate.pass(150, SOON));
    }

    fn step(step: u64, entries: &[(u32, u32, u32)]) -> StepWork {
        let entry = |&(slot, start, num_tokens)| StepEntry {
            slot,
            row: slot,
            start,
            num_tokens,
            ..StepEntry::default()
        };
        StepWork {
            step,
            entries: entries.iter().map(entry).collect(),
            ..StepWork::default()
        }
    }

    #[test]
    fn recorder_counts_the_blocks_that_live_sequences_fill() {
        let log = Arc::new(StepLog::default());
        let mut recorder = Recorder::new(Arc::clone(&log), 4, 16);
        recorder.completed(&step(1, &[(0, 0, 16), (1, 0, 17)]), 3, |_| true);
        recorder.completed(&step(2, &[(0, 16, 1), (1, 17, 1)]), 5, |_| true);
        recorder.preempted(1);
        recorder.left(0);
        // Sequence 1 was planned before it was preempted, and 0 has left.
        recorder.completed(&step(3, &[(0, 17, 1), (1, 18, 1)]), 4, |slot| slot != 0);
        recorder.bound(1);
        recorder.completed(&step(4, &[(1, 0, 19)]), 2, |_| true);
        let records = log.take();
        let used: Vec<u32> = records.iter().map(|r| r.blocks_used).collect();
        assert_eq!(used, [3, 4, 0, 2]);
        let preempted: Vec<u32> = records.iter().map(|r| r.num_preempted).collect();
        assert_eq!(preempted, [0, 0, 1, 0]);
        assert!(log.take().is_empty());
    }

    #[test]
    fn fingerprint_sees_every_part_of_a_plan_but_the_slots() {
        let plan = step(1, &[(0, 0, 16)]);
        let print = fingerprint(&plan);
        let mut other = step(2, &[(0, 0, 16)]);
        other.entries[0].slot = 3;
        assert_eq!(fingerprint(&other), print);
        type Change = fn(&mut StepWork);
        let changes: [Change; 5] = [
            |work| work.entries[0].row = 1,
            |work| work.entries[0].start = 1,
            |work| work.entries[0].samples = true,
            |work| work.entries[0].is_decode = true,
            |work| {
                work.entries[0].num_blocks = 1;
                work.block_tables.push(0);
                work.blocks_per_row = 1;
            },
        ];
        for (idx, change) in changes.into_iter().enumerate() {
            let mut other = plan.clone();
            change(&mut other);
            assert_ne!(fingerprint(&other), print, "change {idx}");
        }
    }
}
