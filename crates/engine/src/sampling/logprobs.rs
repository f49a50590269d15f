//! Log-probabilities of the raw logits: before bias, masks, penalties and temperature, as vLLM
//! reports them by default.

use super::elementary::{exp_nonpositive, exp_nonpositive_lanes};
use super::scan::{BLOCK, count_at_least};
use super::simd::{Level, Simd, kernel};
use izar_ring::LogprobEntry;

/// Stands for minus infinity, as in vLLM's server: JSON has no infinities.
pub const MIN_LOGPROB: f32 = -9999.0;

/// The logprobs of one sampled token: natural logarithms, finite.
#[derive(Clone, Debug)]
pub struct Logprobs {
    entries: Vec<LogprobEntry>,
    rank: u32,
}

impl Logprobs {
    /// Room for `max_logprobs` top tokens.
    pub fn new(max_logprobs: usize) -> Self {
        Self {
            entries: Vec::with_capacity(1 + max_logprobs),
            rank: 0,
        }
    }

    /// The sampled token first, then the most likely tokens in falling order (equal ones by rising
    /// id); the sampled token is among those again if it is one of them. Empty before the first
    /// token.
    pub fn entries(&self) -> &[LogprobEntry] {
        &self.entries
    }

    /// How many tokens are at least as likely as the sampled one, itself included: 1 for the most
    /// likely.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.rank = 0;
    }

    /// Makes room for the sampled token only.
    pub(super) fn reset(&mut self) {
        self.entries.clear();
        self.entries.push(LogprobEntry {
            token: 0,
            logprob: MIN_LOGPROB,
        });
    }

    pub(super) fn set_sampled(&mut self, token: u32, logprob: f32, rank: u32) {
        self.entries[0] = LogprobEntry { token, logprob };
        self.rank = rank;
    }

    /// Appends the `num_top` largest of the tokens, which are in rising order; `last` is the value
    /// of the smallest of them.
    pub(super) fn set_top(
        &mut self,
        tokens: &[u32],
        values: &[f32],
        last: f32,
        num_top: usize,
        normaliser: Normaliser,
    ) {
        let num_larger = values.iter().filter(|&&v| v > last).count();
        let mut num_equal = num_top.saturating_sub(num_larger);
        for (&token, &logit) in tokens.iter().zip(values) {
            let is_equal = logit == last && num_equal > 0;
            num_equal -= usize::from(is_equal);
            if logit > last || is_equal {
                // The logit for now: more tokens are equal once they are logprobs.
                self.entries.push(LogprobEntry {
                    token,
                    logprob: logit,
                });
            }
        }
        let top = &mut self.entries[1..];
        top.sort_unstable_by(|a, b| b.logprob.total_cmp(&a.logprob).then(a.token.cmp(&b.token)));
        for entry in top {
            entry.logprob = normaliser.logprob(entry.logprob);
        }
    }
}

/// What turns the logits of a row into log-probabilities: their maximum and the logarithm of the
/// sum of exponentials.
#[derive(Clone, Copy, Debug)]
pub(super) struct Normaliser {
    max: f32,
    log_sum: f32,
}

impl Normaliser {
    /// `max` is the largest of `logits`, above -∞.
    pub fn new(level: Level, logits: &[f32], max: f32) -> Self {
        let sum = match max == f32::INFINITY {
            // Infinite logits share all the probability.
            true => f64::from(count_at_least(level, logits, max)),
            false => sum_exp(level, logits, max),
        };
        Self {
            max,
            log_sum: sum.ln() as f32,
        }
    }

    /// The logprob of a token with this logit.
    pub fn logprob(self, logit: f32) -> f32 {
        // Infinity minus infinity is not a number, but a token as likely as the likeliest is at
        // distance 0.
        let distance = if logit == self.max {
            0.0
        } else {
            logit - self.max
        };
        (distance - self.log_sum).max(MIN_LOGPROB)
    }
}

kernel! {
    /// The sum of `e^(logit - max)`, in double precision over blocks summed in single precision.
    fn sum_exp(logits: &[f32], max: f32) -> f64 = sum_exp_lanes
}

#[inline(always)]
fn sum_exp_lanes<S: Simd>(simd: S, logits: &[f32], max: f32) -> f64 {
    let mut total = 0.0;
    for block in logits.chunks(BLOCK) {
        // Two chains hide part of an addition's latency behind the other's exponential.
        let mut sums = [simd.splat(0.0); 2];
        let vectors = block.chunks_exact(S::LANES);
        for &x in vectors.remainder() {
            total += f64::from(exp_nonpositive(x - max));
        }
        for (i, numbers) in vectors.enumerate() {
            let distance = simd.sub(simd.load(numbers), simd.splat(max));
            sums[i % 2] = simd.add(sums[i % 2], exp_nonpositive_lanes(simd, distance));
        }
        let mut lanes = [0.0; 16];
        simd.store(simd.add(sums[0], sums[1]), &mut lanes);
        total += lanes.iter().map(|&sum| f64::from(sum)).sum::<f64>();
    }
    total
}
