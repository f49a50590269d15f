//! Counters and histograms that many tasks update at once.
//!
//! Values are integers in a unit of their own (nanoseconds, tokens) and are divided by that unit's scale only when printed, so that
//! an observation is one search and two additions. All orderings are relaxed: a metric publishes nothing but itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Distribution;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Observations by upper bound.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds, inclusive, rising, in the printed unit times `scale`.
    bounds: Box<[u64]>,
    /// One more than bounds: the last holds what exceeds them all.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
    scale: f64,
}

impl Histogram {
    /// A histogram with the given upper bounds in the printed unit, one of which is `scale` observed units.
    pub fn new(bounds: &[f64], scale: f64) -> Self {
        Self {
            bounds: bounds.iter().map(|b| (b * scale).round() as u64).collect(),
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            scale,
        }
    }

    /// Durations, observed in nanoseconds and printed in seconds.
    pub fn seconds(bounds: &[f64]) -> Self {
        Self::new(bounds, 1e9)
    }

    /// Numbers of things.
    pub fn counts(bounds: &[f64]) -> Self {
        Self::new(bounds, 1.0)
    }

    /// Adds one observation.
    pub fn observe(&self, value: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// What was observed so far.
    pub fn distribution(&self) -> Distribution {
        let printed = |value: u64| value as f64 / self.scale;
        Distribution {
            bounds: self.bounds.iter().copied().map(printed).collect(),
            counts: self
                .counts
                .iter()
                .map(|count| count.load(Relaxed))
                .collect(),
            sum: printed(self.sum.load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_the_last_bucket_takes_the_rest() {
        let histogram = Histogram::counts(&[1.0, 10.0]);
        for value in [1, 2, 10, 11] {
            histogram.observe(value);
        }
        let found = histogram.distribution();
        assert_eq!(
            (found.bounds, found.counts, found.sum),
            (vec![1.0, 10.0], vec![1, 2, 1], 24.0)
        );
    }

    #[test]
    fn seconds_keep_nanoseconds() {
        let histogram = Histogram::seconds(&[0.001]);
        histogram.observe(1_000_000);
        histogram.observe(1_000_001);
        assert_eq!(histogram.distribution().counts, [1, 1]);
    }
}
