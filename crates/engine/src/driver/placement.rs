//! The two host placements: when planning happens relative to the step it plans for.
//!
//! - `host-sync` is the classic loop: plan, launch, wait, publish, again. Nothing overlaps.
//! - `host-async` is Albireo's (§4, §5) on one host thread: step n+1 is planned and launched while step n runs, on the
//!   assumption that nobody stops in step n; the outcome of step n is published while step n+1 runs.
//!
//! Both give the same tokens: a sequence's tokens depend on its own request alone.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::executor::{Executor, ExecutorFailed, StepWork};
use super::scheduler::Scheduler;
use super::stats::Stopwatch;

/// Longest wait without a heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// Where planning happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// Plan, launch, wait, publish.
    #[default]
    HostSync,
    /// Plan and launch step n+1 while step n runs.
    HostAsync,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostSync => "host-sync",
            Self::HostAsync => "host-async",
        })
    }
}

/// The name is none of the placements.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown scheduler '{0}'; known: host-sync, host-async")]
pub struct UnknownPlacement(String);

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "host-sync" => Ok(Self::HostSync),
            "host-async" => Ok(Self::HostAsync),
            _ => Err(UnknownPlacement(name.to_owned())),
        }
    }
}

/// Runs until the scheduler is told to stop.
///
/// # Errors
/// [`ExecutorFailed`]: the engine cannot go on.
pub(super) fn run(
    placement: Placement,
    scheduler: &mut Scheduler,
    executor: &mut dyn Executor,
) -> Result<(), ExecutorFailed> {
    match placement {
        Placement::HostSync => run_sync(scheduler, executor),
        Placement::HostAsync => run_async(scheduler, executor),
    }
}

fn run_sync(scheduler: &mut Scheduler, executor: &mut dyn Executor) -> Result<(), ExecutorFailed> {
    let mut spares = Spares::new(1, scheduler);
    while scheduler.keeps_running() {
        if launch_next(scheduler, executor, &mut spares)? {
            retire_oldest(scheduler, executor, &mut spares)?;
        } else {
            scheduler.idle(HEARTBEAT);
        }
    }
    Ok(())
}

fn run_async(scheduler: &mut Scheduler, executor: &mut dyn Executor) -> Result<(), ExecutorFailed> {
    let mut spares = Spares::new(2, scheduler);
    let mut num_in_flight = 0;
    while scheduler.keeps_running() || num_in_flight > 0 {
        let launched = scheduler.keeps_running() && launch_next(scheduler, executor, &mut spares)?;
        num_in_flight += usize::from(launched);
        if num_in_flight == 0 {
            scheduler.idle(HEARTBEAT);
        } else if num_in_flight == 2 || !launched {
            // The successor is behind it, or there is none: take in its outcome.
            retire_oldest(scheduler, executor, &mut spares)?;
            num_in_flight -= 1;
        }
    }
    Ok(())
}

/// Takes in what front ends want, and plans and launches a step; false if there is nothing to compute.
fn launch_next(
    scheduler: &mut Scheduler,
    executor: &mut dyn Executor,
    spares: &mut Spares,
) -> Result<bool, ExecutorFailed> {
    let watch = Stopwatch::start();
    scheduler.take_in();
    let mut work = spares.take();
    if !scheduler.plan(&mut work) {
        spares.put(work);
        return Ok(false);
    }
    scheduler.clock.planned(watch.elapsed_ns());
    executor.launch(work)?;
    Ok(true)
}

/// Waits for the oldest step, publishes its outcome, and keeps its box for another.
fn retire_oldest(
    scheduler: &mut Scheduler,
    executor: &mut dyn Executor,
    spares: &mut Spares,
) -> Result<(), ExecutorFailed> {
    let work = wait(scheduler, executor)?;
    let watch = Stopwatch::start();
    scheduler.publish(&work);
    scheduler.clock.published(watch.elapsed_ns());
    spares.put(work);
    Ok(())
}

/// Boxes that are not in flight.
struct Spares([Option<Box<StepWork>>; 2]);

impl Spares {
    /// A box for each step that may be in flight, at most two.
    fn new(depth: usize, scheduler: &Scheduler) -> Self {
        Self(std::array::from_fn(|idx| {
            (idx < depth).then(|| Box::new(scheduler.new_work()))
        }))
    }

    fn take(&mut self) -> Box<StepWork> {
        let Some(work) = self.0.iter_mut().find_map(Option::take) else {
            unreachable!("there is a box for every step that may be in flight")
        };
        work
    }

    fn put(&mut self, work: Box<StepWork>) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some(work);
        }
    }
}

/// Waits for the oldest step, with heartbeats while it runs.
fn wait(
    scheduler: &mut Scheduler,
    executor: &mut dyn Executor,
) -> Result<Box<StepWork>, ExecutorFailed> {
    loop {
        if let Some(work) = executor.wait(HEARTBEAT)? {
            return Ok(work);
        }
        scheduler.heartbeat();
    }
}
