//! Measures one sequence from request to last token.

use std::sync::Arc;
use std::time::Instant;

use super::Metrics;

/// How a sequence ended, as `vllm:request_success_total` labels it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishedReason {
    /// End of sequence, a stop token or a stop string.
    Stop,
    /// A limit on tokens.
    Length,
    /// The client left, or the server gave up on it.
    Abort,
    /// The engine failed it.
    Error,
}

impl FinishedReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// The label's value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// The engine's own times of a sequence, nanoseconds of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineTimes {
    /// When the scheduler claimed it.
    pub claimed_ns: u64,
    /// When its first token was sampled.
    pub first_token_ns: u64,
    /// When it completed.
    pub completed_ns: u64,
    /// Prompt tokens found in the prefix cache.
    pub num_cached_tokens: u64,
}

/// Measures one sequence. Dropped before [`SequenceMeter::finish`], it counts as aborted.
#[derive(Debug)]
pub struct SequenceMeter {
    metrics: Arc<Metrics>,
    arrival: Instant,
    prompt_tokens: u64,
    first_token: Option<Instant>,
    last_token_ns: u64,
    num_tokens: u64,
    finished: bool,
}

impl SequenceMeter {
    /// Starts a sequence of a request that arrived at `arrival` and counts its prompt, which is 0 for all but one of the sequences that
    /// share one.
    pub fn start(
        metrics: Arc<Metrics>,
        arrival: Instant,
        prompt_tokens: u64,
        max_tokens: u64,
    ) -> Self {
        metrics.prompt_tokens.add(prompt_tokens);
        metrics.request_params_max_tokens.observe(max_tokens);
        if prompt_tokens > 0 {
            metrics.request_prompt_tokens.observe(prompt_tokens);
        }
        Self {
            metrics,
            arrival,
            prompt_tokens,
            first_token: None,
            last_token_ns: 0,
            num_tokens: 0,
            finished: false,
        }
    }

    /// Counts a token that the engine sampled at `timestamp_ns` of its clock.
    pub fn token(&mut self, timestamp_ns: u64) {
        if self.num_tokens == 0 {
            let now = Instant::now();
            self.first_token = Some(now);
            self.metrics
                .time_to_first_token
                .observe(nanos(now - self.arrival));
        } else {
            self.metrics
                .inter_token_latency
                .observe(timestamp_ns.saturating_sub(self.last_token_ns));
        }
        self.last_token_ns = timestamp_ns;
        self.num_tokens += 1;
    }

    /// Ends the sequence.
    pub fn finish(&mut self, reason: FinishedReason, times: Option<EngineTimes>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let m = &self.metrics;
        m.finished[reason as usize].add(1);
        m.generation_tokens.add(self.num_tokens);
        if matches!(reason, FinishedReason::Abort | FinishedReason::Error) {
            return;
        }
        let now = Instant::now();
        m.request_generation_tokens.observe(self.num_tokens);
        m.e2e_latency.observe(nanos(now - self.arrival));
        if let Some(first) = self.first_token {
            let decode_ns = nanos(now - first);
            m.decode_time.observe(decode_ns);
            if self.num_tokens > 1 {
                m.time_per_output_token
                    .observe(decode_ns / (self.num_tokens - 1));
            }
        }
        if let Some(times) = times {
            m.prompt_tokens_cached
                .add(times.num_cached_tokens.min(self.prompt_tokens));
            let prefill_ns = times.first_token_ns.saturating_sub(times.claimed_ns);
            m.prefill_time.observe(prefill_ns);
            if let Some(first) = self.first_token {
                // The two clocks may differ, so only their differences meet: what of the TTFT was not prefill was the queue.
                m.queue_time
                    .observe(nanos(first - self.arrival).saturating_sub(prefill_ns));
            }
            m.inference_time
                .observe(times.completed_ns.saturating_sub(times.claimed_ns));
        }
    }
}

impl Drop for SequenceMeter {
    fn drop(&mut self) {
        self.finish(FinishedReason::Abort, None);
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(histogram: &super::super::Histogram) -> (f64, u64) {
        histogram.cumulative(|_, _| ())
    }

    #[test]
    fn gaps_are_one_fewer_than_tokens_and_on_the_engines_clock() {
        let metrics = Arc::new(Metrics::default());
        let mut meter = SequenceMeter::start(Arc::clone(&metrics), Instant::now(), 5, 3);
        for timestamp_ns in [1_000_000, 3_000_000, 4_000_000] {
            meter.token(timestamp_ns);
        }
        meter.finish(FinishedReason::Stop, None);
        drop(meter);
        assert_eq!(total(&metrics.inter_token_latency), (0.003, 2));
        assert_eq!(total(&metrics.time_to_first_token).1, 1);
        assert_eq!(total(&metrics.time_per_output_token).1, 1);
        assert_eq!(
            (metrics.generation_tokens.get(), metrics.prompt_tokens.get()),
            (3, 5)
        );
        assert_eq!(metrics.finished.each_ref().map(Counter::get), [1, 0, 0, 0]);
    }

    #[test]
    fn dropped_meter_counts_as_aborted_once() {
        let metrics = Arc::new(Metrics::default());
        let mut meter = SequenceMeter::start(Arc::clone(&metrics), Instant::now(), 0, 3);
        meter.token(1);
        drop(meter);
        assert_eq!(metrics.finished.each_ref().map(Counter::get), [0, 0, 1, 0]);
        assert_eq!(metrics.generation_tokens.get(), 1);
    }

    use super::super::Counter;
}
