//! One look at everything there is to see.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use izar_transport::client::{EngineHealth, StepRecord};

use super::window::Point;
use super::{MAX_STEPS, Source};
use crate::metrics::{Distribution, Gauges, Sink, walk};

/// What a look found.
pub struct Sample {
    /// When, Unix time.
    pub time_ms: u64,
    /// The engine's condition in a word.
    pub health: &'static str,
    /// Gauges and counters by name and label.
    pub values: Vec<(String, f64)>,
    /// Histograms by name.
    pub histograms: Vec<(&'static str, Distribution)>,
    /// Every slot's state, by number.
    pub slots: Vec<u8>,
    /// Steps logged since the last look, at most [`MAX_STEPS`] and the latest.
    pub steps: Vec<StepRecord>,
    /// Steps since then that are not among them.
    pub num_steps_missed: u64,
    /// Where the next look begins in the step log.
    pub next_step: u64,
    /// What rates are made of.
    pub point: Point,
}

impl Sample {
    /// Looks; of the step log, from `next_step` on.
    pub fn take(source: &Source, next_step: u64) -> Self {
        let gauges = Gauges::read(&source.client, source.drain.in_flight());
        let (mut steps, mut missed, mut next) = (Vec::new(), 0, next_step);
        if let Ok(found) = source.client.new_steps(next_step, &mut steps) {
            (missed, next) = (found.num_missed, found.next);
        }
        let too_many = steps.len().saturating_sub(MAX_STEPS);
        steps.drain(..too_many);
        let mut record = Record::default();
        walk(&mut record, &source.metrics, &gauges);
        Self {
            time_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_millis() as u64),
            health: if source.drain.is_draining() {
                "draining"
            } else {
                word_for(gauges.health)
            },
            values: record.values,
            histograms: record.histograms,
            point: Point::new(Instant::now(), &source.metrics, &gauges),
            slots: gauges.slots,
            steps,
            num_steps_missed: missed + too_many as u64,
            next_step: next,
        }
    }
}

fn word_for(health: Option<EngineHealth>) -> &'static str {
    match health {
        Some(EngineHealth::Starting) => "starting",
        Some(EngineHealth::Ready) => "ready",
        Some(EngineHealth::Draining) => "draining",
        Some(EngineHealth::Stopped) => "stopped",
        Some(EngineHealth::Failed(_)) => "failed",
        Some(EngineHealth::Lost) | None => "lost",
    }
}

/// What a walk over the registry tells.
#[derive(Default)]
struct Record {
    values: Vec<(String, f64)>,
    histograms: Vec<(&'static str, Distribution)>,
}

impl Sink for Record {
    fn head(&mut self, _name: &'static str, _kind: &'static str, _help: &str) {}

    fn sample(&mut self, name: &'static str, label: &str, value: f64) {
        let name = if label.is_empty() {
            name.to_owned()
        } else {
            format!("{name}{{{label}}}")
        };
        self.values.push((name, value));
    }

    fn distribution(&mut self, name: &'static str, distribution: Distribution) {
        self.histograms.push((name, distribution));
    }
}
