//! Counters and histograms that many tasks update at once.
//!
//! Values are integers in a unit of their own (nanoseconds, tokens) and are divided by that unit's scale only when printed, so that
//! an observation is one search and two additions. All orderings are relaxed: a metric publishes nothing but itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

    /// Calls `f` with each upper bound (infinity last) and the number of observations up to it; returns their sum and number.
    pub fn cumulative(&self, mut f: impl FnMut(f64, u64)) -> (f64, u64) {
        let mut total = 0;
        for (idx, count) in self.counts.iter().enumerate() {
            total += count.load(Relaxed);
            f(
                self.bounds
                    .get(idx)
                    .map_or(f64::INFINITY, |&bound| bound as f64 / self.scale),
                total,
            );
        }
        (self.sum.load(Relaxed) as f64 / self.scale, total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_counts_cumulative() {
        let histogram = Histogram::counts(&[1.0, 10.0]);
        for value in [1, 2, 10, 11] {
            histogram.observe(value);
        }
        let mut seen = Vec::new();
        let totals = histogram.cumulative(|bound, count| seen.push((bound, count)));
        assert_eq!(seen, [(1.0, 1), (10.0, 3), (f64::INFINITY, 4)]);
        assert_eq!(totals, (24.0, 4));
    }

    #[test]
    fn seconds_keep_nanoseconds() {
        let histogram = Histogram::seconds(&[0.001]);
        histogram.observe(1_000_000);
        histogram.observe(1_000_001);
        let mut seen = Vec::new();
        histogram.cumulative(|_, count| seen.push(count));
        assert_eq!(seen, [1, 2]);
    }
}
