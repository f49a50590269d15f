//! Where the engine's time goes, step by step: histograms in the header, and a log of the latest steps.
//!
//! The engine's scheduler owns and fills the histograms and publishes copies; whoever scrapes metrics reads them. They count from
//! the engine's start. Nothing hangs on their agreeing with each other at one instant.
//!
//! The log is a ring of [`STEP_LOG_LEN`](crate::STEP_LOG_LEN) records behind a head word that counts them since the ring was
//! created. The engine writes the record, then the head, and never waits: a reader that is too slow loses records and can tell. It reads the
//! head (`h`), records below `h`, and the head again (`k`): record `i` is whole if `i + STEP_LOG_LEN > k`, because
//! record `k` may be half written over the one `STEP_LOG_LEN` before it, and no later one is begun ([`first_whole_step`]).

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

/// One step, as the log has it. Times of day on the engine's clock (ns), durations in ns.
///
/// Planning, launching and publishing are the scheduler's time; the forward pass and then sampling the executor's, from device
/// timestamps where there is a device. With planning ahead the former overlap the step before.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepRecord {
    /// Number of the step.
    pub step: u64,
    /// When the scheduler began to take requests in and to plan it.
    pub planning_started_ns: u64,
    /// For how long.
    pub planning_ns: u64,
    /// Then: passing it to the executor.
    pub launching_ns: u64,
    /// When the executor began it.
    pub started_ns: u64,
    /// The forward pass, from there on.
    pub forward_ns: u64,
    /// Then: sampling.
    pub sampling_ns: u64,
    /// When the scheduler began to publish what it sampled.
    pub publishing_started_ns: u64,
    /// For how long.
    pub publishing_ns: u64,
    /// From the end of the step before to its start, if the engine had work throughout; else 0.
    pub gap_ns: u64,
    /// Tokens computed.
    pub num_tokens: u32,
    /// Sequences it computed them for.
    pub num_sequences: u32,
    /// Zero.
    pub reserved: u64,
}

record_codec!(StepRecord, 96, {
    step,
    planning_started_ns,
    planning_ns,
    launching_ns,
    started_ns,
    forward_ns,
    sampling_ns,
    publishing_started_ns,
    publishing_ns,
    gap_ns,
    num_tokens,
    num_sequences,
    reserved,
});

/// Index of the oldest record that is whole if it was read before the head was `head`.
pub const fn first_whole_step(head: u64) -> u64 {
    head.saturating_sub(crate::layout::STEP_LOG_LEN - 1)
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
