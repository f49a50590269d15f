//! What the server counts, under the names of vLLM's metrics where vLLM has one, so that dashboards made for it work unchanged.
//!
//! Clocks: TTFT, time per output token and end-to-end latency are the server's (request parsed → token in the server's hands);
//! inter-token latency is the engine's (its timestamp of each token), so that tokens which arrive together do not read as zero.
//! Gauges of the engine are read from the ring's header at scrape time: the server never sees the engine.

mod histogram;
mod meter;
mod render;

pub use histogram::{Counter, Histogram};
pub use meter::{EngineTimes, FinishedReason, SequenceMeter};
pub use render::{Gauges, render};

/// A snapshot of the engine's own numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineSnapshot {
    /// Sequences that hold a batch row.
    pub num_running: u64,
    /// Sequences admitted to the ring but not running.
    pub num_waiting: u64,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// Prompt tokens looked up in the prefix cache, since the start.
    pub prefix_cache_queries: u64,
    /// Prompt tokens found there, since the start.
    pub prefix_cache_hits: u64,
    /// Sequences preempted, since the start.
    pub num_preemptions: u64,
    /// KV blocks in all.
    pub num_kv_blocks: u64,
    /// Tokens in a block.
    pub block_size: u64,
}

const TTFT_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// vLLM's bounds begin at 10 ms, where a fast engine would show nothing; the ones below are ours.
const TOKEN_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST_SECONDS: &[f64] = &[
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0, 100000.0, 200000.0,
];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Everything the server counts.
#[derive(Debug)]
pub struct Metrics {
    /// Prompt tokens of sequences that were submitted.
    pub prompt_tokens: Counter,
    /// Of those, tokens whose KV came from the prefix cache.
    pub prompt_tokens_cached: Counter,
    /// Tokens received from the engine and counted in a usage.
    pub generation_tokens: Counter,
    /// Sequences finished, by [`FinishedReason`].
    pub finished: [Counter; FinishedReason::ALL.len()],
    /// Requests refused because the ring was full.
    pub admission_rejections: Counter,
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
    /// Prompt length of a sequence.
    pub request_prompt_tokens: Histogram,
    /// Output length of a sequence.
    pub request_generation_tokens: Histogram,
    /// `n` of a request.
    pub request_params_n: Histogram,
    /// Limit on output tokens of a sequence.
    pub request_params_max_tokens: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            prompt_tokens: Counter::default(),
            prompt_tokens_cached: Counter::default(),
            generation_tokens: Counter::default(),
            finished: Default::default(),
            admission_rejections: Counter::default(),
            time_to_first_token: Histogram::seconds(TTFT_SECONDS),
            inter_token_latency: Histogram::seconds(TOKEN_SECONDS),
            time_per_output_token: Histogram::seconds(TOKEN_SECONDS),
            e2e_latency: Histogram::seconds(REQUEST_SECONDS),
            queue_time: Histogram::seconds(REQUEST_SECONDS),
            prefill_time: Histogram::seconds(REQUEST_SECONDS),
            decode_time: Histogram::seconds(REQUEST_SECONDS),
            inference_time: Histogram::seconds(REQUEST_SECONDS),
            request_prompt_tokens: Histogram::counts(TOKENS),
            request_generation_tokens: Histogram::counts(TOKENS),
            request_params_n: Histogram::counts(CHOICES),
            request_params_max_tokens: Histogram::counts(TOKENS),
        }
    }
}
