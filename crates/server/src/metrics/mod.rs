//! What the server counts, under the names of vLLM's metrics where vLLM has one, so that dashboards made for it work unchanged.
//!
//! Clocks: TTFT, time per output token and end-to-end latency are the server's (request parsed → token in the server's hands);
//! inter-token latency is the engine's (its timestamp of each token), so that tokens which arrive together do not read as zero.
//! Gauges of the engine are read from the ring's header when somebody asks: the server never sees the engine.
//!
//! There is one registry and one walk over it ([`walk`]): whoever shows the numbers, a page for Prometheus or the stream that the page at `/`
//! reads, is a [`Sink`] that the walk fills.

mod gather;
mod histogram;
mod meter;
mod page;
mod prompt;
mod render;
mod sink;

use crate::error::Shortage;
pub use gather::{EngineSnapshot, Gauges, SLOT_STATES};
pub use histogram::{Counter, Histogram};
pub use meter::{EngineTimes, FinishedReason, SequenceMeter};
pub use prompt::PromptMeter;
pub use render::{render, walk};
pub use sink::{Distribution, Sink};

const TTFT_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// vLLM's bounds begin at 10 ms, where a fast engine would show nothing; the ones below are ours.
const TOKEN_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// As with tokens: the bounds below 0.3 s are ours.
const REQUEST_SECONDS: &[f64] = &[
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Everything the server counts.
#[derive(Debug)]
pub struct Metrics {
    /// Tokens of prompts that were computed, each counted once however many sequences share it.
    pub prompt_tokens: Counter,
    /// Of those, tokens that the engine computed; counted when the last sequence has ended.
    pub prompt_tokens_computed: Counter,
    /// Of those, tokens whose KV came from the prefix cache; counted when the last sequence has ended.
    pub prompt_tokens_cached: Counter,
    /// Tokens received from the engine, those of aborted sequences included.
    pub generation_tokens: Counter,
    /// Sequences finished, by [`FinishedReason`].
    pub finished: [Counter; FinishedReason::ALL.len()],
    /// Requests refused for want of room, by [`Shortage`].
    pub admission_rejections: [Counter; Shortage::ALL.len()],
    /// HTTP answers by the first digit of their status, 1 to 5.
    pub http_responses: [Counter; 5],
    /// Request received → first token.
    pub time_to_first_token: Histogram,
    /// Gaps between tokens, pooled over sequences.
    pub inter_token_latency: Histogram,
    /// Per sequence: (end to end − TTFT) / (output tokens − 1).
    pub time_per_output_token: Histogram,
    /// Request received → last token.
    pub e2e_latency: Histogram,
    /// Received → claimed by the engine's scheduler: the TTFT without the prefill.
    pub queue_time: Histogram,
    /// Claimed → first token.
    pub prefill_time: Histogram,
    /// First token → last token.
    pub decode_time: Histogram,
    /// Claimed → last token.
    pub inference_time: Histogram,
    /// Prompt length of a request.
    pub request_prompt_tokens: Histogram,
    /// Of which not from the prefix cache.
    pub request_prefill_computed_tokens: Histogram,
    /// Output length of a sequence.
    pub request_generation_tokens: Histogram,
    /// Output length of the longest of the sequences that share a prompt.
    pub request_max_generation_tokens: Histogram,
    /// `n` of a request.
    pub request_params_n: Histogram,
    /// Limit on output tokens of a sequence.
    pub request_params_max_tokens: Histogram,
}

impl Metrics {
    /// Nothing counted yet. Bounds of token counts reach up to `max_model_len`, as vLLM's do.
    pub fn new(max_model_len: u32) -> Self {
        let tokens = || Histogram::counts(&one_two_five(max_model_len));
        Self {
            prompt_tokens: Counter::default(),
            prompt_tokens_computed: Counter::default(),
            prompt_tokens_cached: Counter::default(),
            generation_tokens: Counter::default(),
            finished: Default::default(),
            admission_rejections: Default::default(),
            http_responses: Default::default(),
            time_to_first_token: Histogram::seconds(TTFT_SECONDS),
            inter_token_latency: Histogram::seconds(TOKEN_SECONDS),
            time_per_output_token: Histogram::seconds(TOKEN_SECONDS),
            e2e_latency: Histogram::seconds(REQUEST_SECONDS),
            queue_time: Histogram::seconds(REQUEST_SECONDS),
            prefill_time: Histogram::seconds(REQUEST_SECONDS),
            decode_time: Histogram::seconds(REQUEST_SECONDS),
            inference_time: Histogram::seconds(REQUEST_SECONDS),
            request_prompt_tokens: tokens(),
            request_prefill_computed_tokens: tokens(),
            request_generation_tokens: tokens(),
            request_max_generation_tokens: tokens(),
            request_params_n: Histogram::counts(CHOICES),
            request_params_max_tokens: tokens(),
        }
    }
}

/// 1, 2, 5, 10, 20, 50, … up to `most`.
fn one_two_five(most: u32) -> Vec<f64> {
    (0..)
        .flat_map(|exponent| [1, 2, 5].map(|mantissa| mantissa * 10_u64.pow(exponent)))
        .take_while(|&bound| bound <= u64::from(most))
        .map(|bound| bound as f64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// vLLM's bounds (`vllm/v1/metrics/loggers.py`).
    const VLLM_TOKEN_SECONDS: [f64; 19] = [
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0,
    ];
    const VLLM_REQUEST_SECONDS: [f64; 21] = [
        0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
        240.0, 480.0, 960.0, 1920.0, 7680.0,
    ];

    #[test]
    fn every_bound_of_vllms_is_there() {
        assert!(VLLM_TOKEN_SECONDS.iter().all(|b| TOKEN_SECONDS.contains(b)));
        assert!(
            VLLM_REQUEST_SECONDS
                .iter()
                .all(|b| REQUEST_SECONDS.contains(b))
        );
        assert_eq!(one_two_five(100), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(one_two_five(u32::MAX).len(), 29);
    }
}
