//! A team of worker threads that run one closure together (SPMD), with barriers inside it.
//!
//! One step of the model is one [`Team::run`]: every thread wakes once, walks the same phases, and meets the
//! others at a barrier after each phase. Work inside a phase is claimed item by item: each rank first takes its own contiguous
//! range, so that weights stream from memory in order, then helps the rank that is behind. Which rank computes an item
//! never changes the item's result; the engine's bitwise reproducibility rests on that.
//!
//! The calling thread is rank 0, so a team of one has no threads at all. Waiting is bounded: spin for some microseconds,
//! yield the core some times, then sleep on a condition variable; other processes may need the cores more than we do.
//! Nothing is allocated after construction.
//!
//! A panic on any rank poisons the team: the other ranks leave their barriers by panicking too, and so does `run`.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Words written by different threads live on different line pairs (the prefetcher fetches 128 bytes).
#[repr(align(128))]
struct Padded<T>(T);

/// A 32-bit event count that one side advances and the others wait on.
struct Signal {
    word: Padded<AtomicU32>,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

/// How long a waiter keeps its core before it sleeps.
#[derive(Clone, Copy)]
struct Patience {
    spins: u32,
    yields: u32,
}

/// Between phases of a step the others are at most an item behind.
const IN_STEP: Patience = Patience {
    spins: 400,
    yields: 4,
};
/// Between steps the caller samples and plans; a sleeping worker costs the next step a wake-up.
const BETWEEN_STEPS: Patience = Patience {
    spins: 1000,
    yields: 20,
};

impl Signal {
    fn new() -> Self {
        Self {
            word: Padded(AtomicU32::new(0)),
            sleepers: AtomicU32::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    fn guard(&self) -> MutexGuard<'_, ()> {
        // The lock protects no data, so a panicking holder leaves nothing broken.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> u32 {
        // SYNC team-signal: pairs with the increment in `Signal::advance`.
        self.word.0.load(Ordering::Acquire)
    }

    fn advance(&self) {
        // SYNC team-signal: publishes everything written before to whoever sees the new value.
        // SeqCst, because this store and the load of `sleepers` below must not be reordered: a waiter does
        // the mirror image (count itself, then read the word), and one of the two must see the other.
        self.word.0.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            drop(self.guard());
            self.wake.notify_all();
        }
    }

    /// Waits until the word differs from `seen`.
    fn wait_past(&self, seen: u32, patience: Patience) {
        for _ in 0..patience.spins {
            if self.current() != seen {
                return;
            }
            std::hint::spin_loop();
        }
        for _ in 0..patience.yields {
            if self.current() != seen {
                return;
            }
            std::thread::yield_now();
        }
        self.sleep_past(seen);
    }

    #[cold]
    fn sleep_past(&self, seen: u32) {
        let mut guard = self.guard();
        // SeqCst: see `advance`.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.word.0.load(Ordering::SeqCst) == seen {
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

type Job = *const (dyn Fn(&Rank<'_>) + Sync);

struct Shared {
    size: usize,
    /// Advanced by rank 0 for every job; workers wait on it.
    start: Signal,
    /// Written by rank 0 before `start` advances; `None` tells the workers to leave.
    job: UnsafeCell<Option<Job>>,
    /// Ranks that reached the current barrier.
    arrived: Padded<AtomicUsize>,
    /// Advanced by the last rank to reach a barrier.
    phase: Signal,
    /// Ranks that left the current job.
    finished: Padded<AtomicUsize>,
    /// Advanced by the last rank to leave a job.
    done: Signal,
    /// Per rank: how many items of its own range have been claimed in this phase, by anyone.
    claimed: Box<[Padded<AtomicUsize>]>,
    poisoned: AtomicBool,
}

// SAFETY: `job` is the only field that is not Sync. Rank 0 writes it while every worker waits on `start`, and
// workers read it only after `start` advanced and before they reach the job's final barrier.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is only dereferenced while `Team::run` keeps its closure alive.
unsafe impl Send for Shared {}

/// Threads that run one closure at a time, together. Dropping it ends them.
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// One thread's view of the running job.
pub struct Rank<'a> {
    rank: usize,
    shared: &'a Shared,
}

impl Team {
    /// Starts `num_threads - 1` workers; the caller of [`Team::run`] is the remaining one.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    ///
    /// # Panics
    /// If `num_threads` is 0.
    pub fn new(num_threads: usize) -> std::io::Result<Self> {
        assert!(num_threads > 0, "a team needs at least one thread");
        let shared = Arc::new(Shared {
            size: num_threads,
            start: Signal::new(),
            job: UnsafeCell::new(None),
            arrived: Padded(AtomicUsize::new(0)),
            phase: Signal::new(),
            finished: Padded(AtomicUsize::new(0)),
            done: Signal::new(),
            claimed: (0..num_threads)
                .map(|_| Padded(AtomicUsize::new(0)))
                .collect(),
            poisoned: AtomicBool::new(false),
        });
        let mut team = Self {
            shared,
            threads: Vec::with_capacity(num_threads - 1),
        };
        for rank in 1..num_threads {
            let shared = Arc::clone(&team.shared);
            let thread = std::thread::Builder::new()
                .name(format!("izar-cpu-{rank}"))
                .spawn(move || worker(&shared, rank))?;
            team.threads.push(thread);
        }
        Ok(team)
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// Runs `job` once on every rank and returns when all are done.
    ///
    /// # Panics
    /// If `job` panics on any rank, now or in an earlier run.
    pub fn run<F: Fn(&Rank<'_>) + Sync>(&mut self, job: F) {
        let shared = &*self.shared;
        let erased: *const (dyn Fn(&Rank<'_>) + Sync + '_) = &job;
        // SAFETY: only the lifetime changes. The pointer is dereferenced by ranks inside this call alone:
        // `finish` below returns after every rank has left the job.
        let erased: Job = unsafe { std::mem::transmute(erased) };
        // SAFETY: `&mut self` and the end of the previous job leave no reader: every worker waits on `start`.
        unsafe { *shared.job.get() = Some(erased) };
        shared.start.advance();
        let rank = Rank { rank: 0, shared };
        let outcome = catch_unwind(AssertUnwindSafe(|| job(&rank)));
        if outcome.is_err() {
            shared.poison();
        }
        shared.finish(0);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
        assert!(!shared.is_poisoned(), "a worker of the CPU team panicked");
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // SAFETY: as in `run`, nobody reads the job between two jobs.
        unsafe { *self.shared.job.get() = None };
        self.shared.start.advance();
        for thread in self.threads.drain(..) {
            // A worker catches its job's panics, so joining cannot fail.
            let _ = thread.join();
        }
    }
}

fn worker(shared: &Shared, rank: usize) {
    let mut seen = 0;
    loop {
        shared.start.wait_past(seen, BETWEEN_STEPS);
        seen = seen.wrapping_add(1);
        // SAFETY: rank 0 wrote the job before it advanced `start` and does not touch it until we reached `finish`.
        let Some(job) = (unsafe { *shared.job.get() }) else {
            return;
        };
        // SAFETY: `Team::run` keeps the closure alive until every rank reached `finish`.
        let job = unsafe { &*job };
        if catch_unwind(AssertUnwindSafe(|| job(&Rank { rank, shared }))).is_err() {
            shared.poison();
        }
        shared.finish(rank);
    }
}

impl Shared {
    fn is_poisoned(&self) -> bool {
        // Relaxed: a flag that only ever turns on; the barriers order everything else.
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Releases every rank from the barrier it waits at; it then finds the poison.
    fn poison(&self) {
        // Relaxed: `phase.advance` publishes it to the waiting ranks.
        self.poisoned.store(true, Ordering::Relaxed);
        self.phase.advance();
    }

    /// Meets the other ranks; the last one clears the claims for the next phase.
    fn meet(&self) {
        let seen = self.phase.current();
        assert!(!self.is_poisoned(), "another rank of the CPU team panicked");
        // SYNC team-barrier: AcqRel, so that the last arrival has seen what every rank wrote in this phase
        // and hands it on through `phase`.
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            for claimed in &self.claimed {
                // Relaxed: `phase.advance` publishes it.
                claimed.0.store(0, Ordering::Relaxed);
            }
            self.arrived.0.store(0, Ordering::Relaxed);
            self.phase.advance();
        } else {
            self.phase.wait_past(seen, IN_STEP);
        }
        assert!(!self.is_poisoned(), "another rank of the CPU team panicked");
    }

    /// The end of a job: rank 0 waits for all workers.
    fn finish(&self, rank: usize) {
        let seen = self.done.current();
        // SYNC team-finish: AcqRel, as for the barrier: rank 0 sees what every worker wrote.
        let last = self.finished.0.fetch_add(1, Ordering::AcqRel) + 1 == self.size;
        if last {
            self.finished.0.store(0, Ordering::Relaxed);
            self.done.advance();
        } else if rank == 0 {
            self.done.wait_past(seen, IN_STEP);
        }
    }
}

impl Rank<'_> {
    /// This rank's index, `0..size`.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// Waits until every rank is here. What any rank wrote before is visible to all after.
    ///
    /// # Panics
    /// If another rank panicked.
    pub fn barrier(&self) {
        if self.shared.size == 1 {
            self.shared.claimed[0].0.store(0, Ordering::Relaxed);
            return;
        }
        self.shared.meet();
    }

    /// Runs `item(i)` for every `i` in `0..num_items`, each on exactly one rank, and ends with a barrier.
    /// Every rank must call this with the same `num_items`.
    ///
    /// # Panics
    /// If another rank panicked.
    pub fn for_each(&self, num_items: usize, mut item: impl FnMut(usize)) {
        let size = self.shared.size;
        for victim in 0..size {
            let owner = (self.rank + victim) % size;
            let range = num_items * owner / size..num_items * (owner + 1) / size;
            loop {
                // Relaxed: a claim carries no data; the barriers around the phase do.
                let next = self.shared.claimed[owner].0.fetch_add(1, Ordering::Relaxed);
                if next >= range.len() {
                    break;
                }
                item(range.start + next);
            }
        }
        self.barrier();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_exactly_once_in_every_phase() {
        for size in [1, 2, 3, 5] {
            let mut team = Team::new(size).unwrap();
            let counts: Vec<AtomicUsize> = (0..97).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..50 {
                team.run(|rank| {
                    for phase in 0..7 {
                        rank.for_each(counts.len() - phase, |i| {
                            counts[i].fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
            for (i, count) in counts.iter().enumerate() {
                let phases = (0..7).filter(|phase| i < 97 - phase).count();
                assert_eq!(
                    count.load(Ordering::Relaxed),
                    50 * phases,
                    "item {i} of a team of {size}"
                );
            }
        }
    }

    #[test]
    fn a_phase_sees_what_the_phase_before_wrote() {
        let mut team = Team::new(3).unwrap();
        let cells: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        team.run(|rank| {
            for round in 1..200 {
                rank.for_each(cells.len(), |i| {
                    cells[i].store(round * 1000 + i, Ordering::Relaxed)
                });
                rank.for_each(cells.len(), |i| {
                    let other = (i * 7 + 3) % cells.len();
                    assert_eq!(cells[other].load(Ordering::Relaxed), round * 1000 + other);
                });
            }
        });
    }

    #[test]
    fn sleeping_workers_wake_for_the_next_job() {
        let mut team = Team::new(2).unwrap();
        let runs = AtomicUsize::new(0);
        for _ in 0..3 {
            team.run(|_| {
                runs.fetch_add(1, Ordering::Relaxed);
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(runs.load(Ordering::Relaxed), 6);
    }

    #[test]
    fn a_rank_waits_asleep_for_a_slow_one() {
        let mut team = Team::new(2).unwrap();
        let slow = AtomicUsize::new(0);
        team.run(|rank| {
            if rank.rank() == 1 {
                std::thread::sleep(std::time::Duration::from_millis(30));
                slow.store(1, Ordering::Relaxed);
            }
            rank.barrier();
            assert_eq!(slow.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn a_panic_on_one_rank_reaches_the_caller() {
        for panicking in 0..2 {
            let mut team = Team::new(2).unwrap();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                team.run(|rank| {
                    assert_ne!(rank.rank(), panicking, "on purpose");
                    rank.barrier();
                    rank.barrier();
                });
            }));
            assert!(outcome.is_err());
        }
    }
}
