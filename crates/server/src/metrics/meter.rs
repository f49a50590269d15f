//! Measures one sequence from request to last token.

use std::sync::Arc;
use std::time::Instant;

use super::PromptMeter;
use crate::exchange::Exchange;

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
    prompt: Arc<PromptMeter>,
    exchange: Option<Arc<Exchange>>,
    arrival: Instant,
    max_tokens: u64,
    first_token: Option<Instant>,
    last_token_ns: u64,
    num_tokens: u64,
    finished: bool,
}

impl SequenceMeter {
    /// Starts a sequence of at most `max_tokens` tokens for a request that arrived at `arrival`.
    pub fn start(prompt: &Arc<PromptMeter>, arrival: Instant, max_tokens: u64) -> Self {
        Self {
            prompt: Arc::clone(prompt),
            exchange: Exchange::current(),
            arrival,
            max_tokens,
            first_token: None,
            last_token_ns: 0,
            num_tokens: 0,
            finished: false,
        }
    }

    /// Counts a token that the engine sampled at `timestamp_ns` of its clock.
    pub fn token(&mut self, timestamp_ns: u64) {
        let metrics = self.prompt.metrics();
        if self.num_tokens == 0 {
            let now = Instant::now();
            self.first_token = Some(now);
            self.prompt.first_token();
            if let Some(exchange) = &self.exchange {
                exchange.note_first_token();
            }
            metrics
                .time_to_first_token
                .observe(nanos(now - self.arrival));
        } else {
            metrics
                .inter_token_latency
                .observe(timestamp_ns.saturating_sub(self.last_token_ns));
        }
        metrics.generation_tokens.add(1);
        self.last_token_ns = timestamp_ns;
        self.num_tokens += 1;
    }

    /// Ends the sequence.
    pub fn finish(&mut self, reason: FinishedReason, times: Option<EngineTimes>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        if let Some(exchange) = &self.exchange {
            exchange.note_completion_tokens(self.num_tokens);
        }
        let m = self.prompt.metrics();
        m.finished[reason as usize].add(1);
        if matches!(reason, FinishedReason::Abort | FinishedReason::Error) {
            return;
        }
        let now = Instant::now();
        self.prompt.ended(self.num_tokens);
        m.request_generation_tokens.observe(self.num_tokens);
        m.request_params_max_tokens.observe(self.max_tokens);
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
            self.observe(&times);
        }
    }

    fn observe(&self, times: &EngineTimes) {
        let m = self.prompt.metrics();
        self.prompt.cached(times.num_cached_tokens);
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
    use super::super::{Counter, Metrics};
    use super::*;

    fn total(histogram: &super::super::Histogram) -> (f64, u64) {
        let found = histogram.distribution();
        (found.sum, found.counts.iter().sum())
    }

    fn metrics() -> Arc<Metrics> {
        Arc::new(Metrics::new(100))
    }

    #[test]
    fn gaps_are_one_fewer_than_tokens_and_on_the_engines_clock() {
        let metrics = metrics();
        let prompt = PromptMeter::start(&metrics, 5, 1);
        let mut meter = SequenceMeter::start(&prompt, Instant::now(), 3);
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
        let metrics = metrics();
        let prompt = PromptMeter::start(&metrics, 7, 1);
        let mut meter = SequenceMeter::start(&prompt, Instant::now(), 3);
        meter.token(1);
        drop((meter, prompt));
        assert_eq!(metrics.finished.each_ref().map(Counter::get), [0, 0, 1, 0]);
        assert_eq!(metrics.generation_tokens.get(), 1);
        assert_eq!(total(&metrics.request_prompt_tokens).1, 0);
        let sources = [
            &metrics.prompt_tokens,
            &metrics.prompt_tokens_computed,
            &metrics.prompt_tokens_cached,
        ];
        assert_eq!(sources.map(Counter::get), [7, 7, 0]);
    }

    #[test]
    fn prompt_that_nothing_came_of_is_not_counted() {
        let metrics = metrics();
        let prompt = PromptMeter::start(&metrics, 7, 1);
        drop((SequenceMeter::start(&prompt, Instant::now(), 3), prompt));
        assert_eq!(metrics.prompt_tokens.get(), 0);
        assert_eq!(metrics.prompt_tokens_computed.get(), 0);
    }

    #[test]
    fn sequences_of_one_prompt_count_it_once_and_its_longest_output() {
        let metrics = metrics();
        let prompt = PromptMeter::start(&metrics, 40, 2);
        for (num_tokens, num_cached_tokens) in [(2, 0), (5, 32)] {
            let mut meter = SequenceMeter::start(&prompt, Instant::now(), 9);
            (0..num_tokens).for_each(|ns| meter.token(ns));
            let times = EngineTimes {
                claimed_ns: 0,
                first_token_ns: 1,
                completed_ns: 2,
                num_cached_tokens,
            };
            meter.finish(FinishedReason::Length, Some(times));
        }
        assert_eq!(metrics.prompt_tokens.get(), 40);
        drop(prompt);
        assert_eq!(metrics.prompt_tokens_computed.get(), 40);
        assert_eq!(total(&metrics.request_prompt_tokens), (40.0, 1));
        assert_eq!(total(&metrics.request_max_generation_tokens), (5.0, 1));
        assert_eq!(total(&metrics.request_generation_tokens), (7.0, 2));
        assert_eq!(total(&metrics.request_params_n), (2.0, 1));
        assert_eq!(total(&metrics.request_params_max_tokens), (18.0, 2));
    }
}
