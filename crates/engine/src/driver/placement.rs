//! The host placements: when planning happens relative to the step it plans for.
//!
//! - `host-sync` is the classic loop: plan, launch, wait, publish, again. Nothing overlaps.
//! - `host-async` is Albireo's (§4, §5) on one host thread: step n+1 is planned and launched while step n runs, on the
//!   assumption that nobody stops in step n; the outcome of step n is published while step n+1 runs.
//!
//! Both give the same tokens: a sequence's tokens depend on its own request alone.
//!
//! For experiments, each mechanism of `host-async` can be switched off ([`Overlap`]), and every round can be held until it is let
//! through ([`super::StepGate`]).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::executor::{Executor, ExecutorFailed, StepWork};
use super::scheduler::Scheduler;
use super::stats::Stopwatch;
use super::study::Overlap;

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
    /// The same on the device, by a resident scheduler; not the driver's work.
    Gpu,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HostSync => "host-sync",
            Self::HostAsync => "host-async",
            Self::Gpu => "gpu",
        })
    }
}

/// The name is none of the placements.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown scheduler '{0}'; known: host-sync, host-async, gpu")]
pub struct UnknownPlacement(String);

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "host-sync" => Ok(Self::HostSync),
            "host-async" => Ok(Self::HostAsync),
            "gpu" => Ok(Self::Gpu),
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
        Placement::Gpu => unreachable!("`Engine::start` refuses what is not a host's placement"),
    }
}

fn run_sync(scheduler: &mut Scheduler, executor: &mut dyn Executor) -> Result<(), ExecutorFailed> {
    let mut spares = Spares::new(1, scheduler);
    while scheduler.keeps_running() {
        if let Some(next) = plan_next(scheduler, &mut spares) {
            launch(scheduler, executor, next)?;
            let work = wait(scheduler, executor)?;
            take_in_outcome(scheduler, &mut spares, work);
        } else {
            scheduler.idle(HEARTBEAT);
        }
    }
    Ok(())
}

fn run_async(scheduler: &mut Scheduler, executor: &mut dyn Executor) -> Result<(), ExecutorFailed> {
    let mut spares = Spares::new(2, scheduler);
    // A step has been launched and its outcome is not taken in.
    let mut runs = false;
    while scheduler.keeps_running() || runs {
        let overlap = scheduler.overlap();
        let mut outcome = None;
        if runs && !overlap.scheduling {
            outcome = Some(wait(scheduler, executor)?);
        }
        let next = match scheduler.keeps_running() {
            true => plan_next(scheduler, &mut spares),
            false => None,
        };
        let launches = next.is_some();
        if let Some(next) = next {
            outcome = before_launch(scheduler, executor, overlap, runs, outcome)?;
            if !overlap.output
                && let Some(work) = outcome.take()
            {
                take_in_outcome(scheduler, &mut spares, work);
                runs = false;
            }
            launch(scheduler, executor, next)?;
        }
        if runs {
            // The successor is behind it, or there is none: take in its outcome.
            let work = match outcome {
                Some(work) => work,
                None => wait(scheduler, executor)?,
            };
            take_in_outcome(scheduler, &mut spares, work);
        } else if !launches {
            scheduler.idle(HEARTBEAT);
        }
        runs = launches;
    }
    Ok(())
}

/// The outcome of the step that runs, if it must be over before the next is launched.
fn before_launch(
    scheduler: &mut Scheduler,
    executor: &mut dyn Executor,
    overlap: Overlap,
    runs: bool,
    outcome: Option<Box<StepWork>>,
) -> Result<Option<Box<StepWork>>, ExecutorFailed> {
    if runs && outcome.is_none() && !overlap.launches_ahead() {
        return Ok(Some(wait(scheduler, executor)?));
    }
    Ok(outcome)
}

/// Takes in what front ends want and plans a step; nothing if there is nothing to compute.
fn plan_next(scheduler: &mut Scheduler, spares: &mut Spares) -> Option<Box<StepWork>> {
    if !scheduler.enter_round(HEARTBEAT) {
        return None;
    }
    let watch = Stopwatch::start();
    scheduler.take_in();
    let mut work = spares.take();
    if !scheduler.plan(&mut work) {
        spares.put(work);
        return None;
    }
    scheduler.clock.planned(&work, &watch);
    Some(work)
}

fn launch(
    scheduler: &mut Scheduler,
    executor: &mut dyn Executor,
    work: Box<StepWork>,
) -> Result<(), ExecutorFailed> {
    let watch = Stopwatch::start();
    executor.launch(work)?;
    scheduler.clock.launched(&watch);
    Ok(())
}

/// Publishes what a step gave, and keeps its box for another.
fn take_in_outcome(scheduler: &mut Scheduler, spares: &mut Spares, work: Box<StepWork>) {
    let watch = Stopwatch::start();
    scheduler.publish(&work);
    scheduler.retire(&watch);
    spares.put(work);
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
