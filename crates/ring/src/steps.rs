//! Where the engine's time goes, step by step, as histograms in the header.
//!
//! The engine's scheduler owns and fills them and publishes copies; whoever scrapes metrics reads them. They count from
//! the engine's start. Nothing hangs on their agreeing with each other at one instant.

use crate::codec::record_codec;

/// Observations by upper bound.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepHistogram {
    /// Observations in each bucket, not cumulative: one bucket for each bound, one for what exceeds them all; the rest stay zero.
    pub counts: [u64; 16],
    /// Sum of all observations.
    pub sum: u64,
}

record_codec!(StepHistogram, 136, { counts, sum });

impl StepHistogram {
    /// Counts `value` among `bounds`, inclusive upper bounds in rising order, at most 15.
    pub fn observe(&mut self, bounds: &[u64], value: u64) {
        let bucket = bounds.partition_point(|&bound| bound < value);
        self.counts[bucket] += 1;
        self.sum = self.sum.wrapping_add(value);
    }
}

/// Histograms over the engine's steps. Times in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepStats {
    /// Tokens computed in a step; bounds are [`StepStats::TOKEN_BOUNDS`].
    pub tokens: StepHistogram,
    /// From the end of a step to the start of the next, where the engine had work throughout; bounds of this
    /// and the rest are [`StepStats::TIME_BOUNDS_NS`].
    pub gap_ns: StepHistogram,
    /// The scheduler taking requests in, planning a step and launching it.
    pub planning_ns: StepHistogram,
    /// The forward pass.
    pub forward_ns: StepHistogram,
    /// Sampling.
    pub sampling_ns: StepHistogram,
    /// Publishing a step's tokens and ending sequences.
    pub publishing_ns: StepHistogram,
}

record_codec!(StepStats, 816, {
    tokens,
    gap_ns,
    planning_ns,
    forward_ns,
    sampling_ns,
    publishing_ns,
});

impl StepStats {
    /// Upper bounds of [`StepStats::tokens`].
    pub const TOKEN_BOUNDS: [u64; 13] = [
        1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
    ];
    /// Upper bounds of the times, ns: 1 µs to 1 s.
    pub const TIME_BOUNDS_NS: [u64; 15] = [
        1_000,
        2_000,
        5_000,
        10_000,
        20_000,
        50_000,
        100_000,
        200_000,
        500_000,
        1_000_000,
        2_000_000,
        5_000_000,
        10_000_000,
        100_000_000,
        1_000_000_000,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_the_last_bucket_takes_the_rest() {
        let mut histogram = StepHistogram::default();
        for value in [0, 1_000, 1_001, u64::MAX] {
            histogram.observe(&StepStats::TIME_BOUNDS_NS, value);
        }
        assert_eq!(
            (
                histogram.counts[0],
                histogram.counts[1],
                histogram.counts[15]
            ),
            (2, 1, 1)
        );
        assert_eq!(histogram.counts.iter().sum::<u64>(), 4);
    }
}
