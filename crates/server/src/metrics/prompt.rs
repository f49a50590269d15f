//! Measures one prompt, which several sequences may share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::Metrics;

/// Counts a prompt once: when the first token of any of its sequences comes, and the rest when the last of them is gone.
///
/// All orderings are relaxed: the sequences of a prompt are polled by one task, and a metric publishes nothing but itself.
#[derive(Debug)]
pub struct PromptMeter {
    metrics: Arc<Metrics>,
    num_tokens: u64,
    n: u64,
    is_counted: AtomicBool,
    /// Least of what its sequences found in the prefix cache: those that come second find what the first has computed.
    num_cached: AtomicU64,
    /// Output of the longest sequence that ended by itself, plus one; 0 while there is none.
    longest: AtomicU64,
}

impl PromptMeter {
    /// Starts a prompt of `num_tokens` tokens with `n` sequences.
    pub fn start(metrics: &Arc<Metrics>, num_tokens: u64, n: usize) -> Arc<Self> {
        Arc::new(Self {
            metrics: Arc::clone(metrics),
            num_tokens,
            n: n as u64,
            is_counted: AtomicBool::new(false),
            num_cached: AtomicU64::new(u64::MAX),
            longest: AtomicU64::new(0),
        })
    }

    pub(super) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The first token of a sequence has come: the prompt was computed.
    pub(super) fn first_token(&self) {
        if !self.is_counted.swap(true, Relaxed) {
            self.metrics.prompt_tokens.add(self.num_tokens);
        }
    }

    /// A sequence has ended by itself with `num_tokens` tokens.
    pub(super) fn ended(&self, num_tokens: u64) {
        self.longest.fetch_max(num_tokens + 1, Relaxed);
    }

    /// A sequence found `num_tokens` of the prompt in the prefix cache.
    pub(super) fn cached(&self, num_tokens: u64) {
        self.num_cached.fetch_min(num_tokens, Relaxed);
    }
}

impl Drop for PromptMeter {
    fn drop(&mut self) {
        let m = &self.metrics;
        let cached = match *self.num_cached.get_mut() {
            u64::MAX => 0,
            num_tokens => num_tokens.min(self.num_tokens),
        };
        if *self.is_counted.get_mut() {
            m.prompt_tokens_cached.add(cached);
            m.prompt_tokens_computed.add(self.num_tokens - cached);
        }
        if let Some(longest) = self.longest.get_mut().checked_sub(1) {
            m.request_prompt_tokens.observe(self.num_tokens);
            m.request_prefill_computed_tokens
                .observe(self.num_tokens - cached);
            m.request_max_generation_tokens.observe(longest);
            m.request_params_n.observe(self.n);
        }
    }
}
