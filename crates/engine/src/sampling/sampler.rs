//! The sampler proper: one row of logits in, one token out.

use super::boundary::{self, Decision};
use super::candidates::{Affine, Candidates};
use super::edit;
use super::logprobs::{Logprobs, Normaliser};
use super::race;
use super::row::RowState;
use super::scan::{self, BLOCK, GROUPS, GroupMaxima};
use super::selection::Selection;
use super::simd::Level;
use super::truncate::{self, Kept};
use thiserror::Error;

/// Why no token could be sampled. Only the sequence whose row it was is affected.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SampleError {
    /// A logit is not a number, or all are minus infinity: the model computed nonsense.
    #[error("the model's logits are not finite")]
    NonFinite,
    /// Allowed tokens, bad words, minimum length and grammar together forbid every token.
    #[error("the request's constraints leave no token to sample")]
    NothingAllowed,
}

/// Scratch memory for sampling rows, one for each worker thread.
#[derive(Debug)]
pub struct Sampler {
    level: Level,
    vocab_size: usize,
    maxima: Vec<GroupMaxima>,
    candidates: Candidates,
    selection: Selection,
    /// An edited copy of the row, where the raw one is still needed for logprobs.
    edited: Vec<f32>,
}

impl Sampler {
    /// Scratch for rows of `vocab_size` logits (at most 2^22): about 20 bytes a token. Nothing is
    /// allocated later.
    pub fn new(vocab_size: usize) -> Self {
        Self::at_level(Level::best(), vocab_size)
    }

    fn at_level(level: Level, vocab_size: usize) -> Self {
        assert!(
            (1..=1 << 22).contains(&vocab_size),
            "vocab_size {vocab_size} is not in 1..=2^22"
        );
        Self {
            level,
            vocab_size,
            maxima: vec![[0.0; GROUPS]; vocab_size.div_ceil(BLOCK)],
            candidates: Candidates::new(vocab_size),
            selection: Selection::new(vocab_size),
            edited: vec![0.0; vocab_size],
        }
    }

    /// Samples the next token of the sequence bound to `row` and records it there.
    ///
    /// `logits` (`[vocab_size]`, f32) are overwritten. `grammar` allows token `id` if bit `id % 32` of
    /// word `id / 32` is set. On an error nothing was recorded. [`RowState::logprobs`] has the
    /// token's logprobs afterwards.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        row: &mut RowState,
        grammar: Option<&[u32]>,
    ) -> Result<u32, SampleError> {
        let token = match row.params.logprobs {
            None => {
                let raw_max = self.scan_raw(logits, row, grammar, false)?;
                self.choose(logits, row, grammar, raw_max)?
            }
            Some(num_top) => self.choose_with_logprobs(logits, row, grammar, num_top as usize)?,
        };
        row.push(token);
        Ok(token)
    }

    /// What [`Sampler::sample`] would sample, without recording it, and how firm the decision is.
    /// `logits` are overwritten.
    ///
    /// For tests and diagnosis: it sorts the row and allocates.
    pub fn decide(
        &mut self,
        logits: &mut [f32],
        row: &RowState,
        grammar: Option<&[u32]>,
    ) -> Result<Decision, SampleError> {
        let raw_max = self.scan_raw(logits, row, grammar, false)?;
        let token = self.choose(logits, row, grammar, raw_max)?;
        let margin = if row.params.is_greedy() {
            boundary::greedy_margin(logits, token)
        } else {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, scan::larger);
            boundary::sampled_margin(logits, row.map(max), &row.params, row.draws(), token)
        };
        Ok(Decision { token, margin })
    }

    /// Log-probabilities of a token that was not sampled but given, such as one of the prompt, in
    /// the distribution that `logits` (`[vocab_size]`) stand for, and of the `num_top` most likely
    /// ones.
    pub fn logprobs_of(
        &mut self,
        logits: &[f32],
        token: u32,
        num_top: usize,
        out: &mut Logprobs,
    ) -> Result<(), SampleError> {
        assert_eq!(logits.len(), self.vocab_size, "logits of a row");
        let max = self.scan(logits)?.ok_or(SampleError::NonFinite)?;
        let normaliser = Normaliser::new(self.level, logits, max);
        self.top_logprobs(logits, normaliser, num_top, out);
        self.finish_logprobs(logits, normaliser, token, out);
        Ok(())
    }

    fn finish_logprobs(
        &self,
        logits: &[f32],
        normaliser: Normaliser,
        token: u32,
        out: &mut Logprobs,
    ) {
        let logit = logits[token as usize];
        let rank = scan::count_at_least(self.level, logits, logit);
        out.set_sampled(token, normaliser.logprob(logit), rank);
    }

    fn choose_with_logprobs(
        &mut self,
        logits: &mut [f32],
        row: &mut RowState,
        grammar: Option<&[u32]>,
        num_top: usize,
    ) -> Result<u32, SampleError> {
        let raw_max = self.scan_raw(logits, row, grammar, true)?;
        let normaliser = Normaliser::new(self.level, logits, raw_max);
        self.top_logprobs(logits, normaliser, num_top, &mut row.logprobs);
        let token = if edit::has_edits(row, grammar) || raw_max == f32::INFINITY {
            // Taken out for the call, which needs the rest of `self`; moving a `Vec` copies
            // nothing.
            let mut edited = std::mem::take(&mut self.edited);
            edited.copy_from_slice(logits);
            let token = self.choose(&mut edited, row, grammar, raw_max);
            self.edited = edited;
            token?
        } else {
            self.choose(logits, row, grammar, raw_max)?
        };
        self.finish_logprobs(logits, normaliser, token, &mut row.logprobs);
        Ok(token)
    }

    /// The largest of the raw logits, or -∞ if that need not be known: edits that mask nothing may
    /// be applied unseen.
    fn scan_raw(
        &mut self,
        logits: &[f32],
        row: &RowState,
        grammar: Option<&[u32]>,
        is_needed: bool,
    ) -> Result<f32, SampleError> {
        assert_eq!(logits.len(), self.vocab_size, "logits of a row");
        if is_needed || edit::has_masks(row, grammar) || !edit::has_edits(row, grammar) {
            return self.scan(logits)?.ok_or(SampleError::NonFinite);
        }
        Ok(f32::NEG_INFINITY)
    }

    /// Edits the logits and picks a token. `raw_max` and `maxima` are what [`Sampler::scan_raw`]
    /// found.
    fn choose(
        &mut self,
        logits: &mut [f32],
        row: &RowState,
        grammar: Option<&[u32]>,
        raw_max: f32,
    ) -> Result<u32, SampleError> {
        let mut max = raw_max;
        if edit::has_edits(row, grammar) {
            edit::apply(self.level, logits, row, grammar);
            // Only masks can leave nothing where there was something.
            let none_left = match raw_max > f32::NEG_INFINITY {
                true => SampleError::NothingAllowed,
                false => SampleError::NonFinite,
            };
            max = self.scan(logits)?.ok_or(none_left)?;
        }
        if max == f32::INFINITY {
            edit::level_infinite(logits);
            max = self.scan(logits)?.ok_or(SampleError::NonFinite)?;
        }
        let most_likely = scan::first_of(logits, &self.maxima, max);
        if row.params.is_greedy() {
            return Ok(most_likely);
        }
        let (map, draws) = (row.map(max), row.draws());
        let kept = truncate::truncate(
            self.level,
            logits,
            &self.maxima,
            map,
            &row.params,
            &mut self.candidates,
            &mut self.selection,
        );
        Ok(match kept {
            Kept::All => race::among_all(self.level, logits, &self.maxima, map, most_likely, draws),
            Kept::Listed => race::among(self.level, &self.candidates, draws),
        })
    }

    /// Fills `out` with room for the sampled token and the `num_top` most likely ones. `maxima` are
    /// those of `logits`.
    fn top_logprobs(
        &mut self,
        logits: &[f32],
        normaliser: Normaliser,
        num_top: usize,
        out: &mut Logprobs,
    ) {
        let num_top = num_top.min(self.vocab_size);
        out.reset();
        if num_top == 0 {
            return;
        }
        let map = Affine::IDENTITY;
        let bound = truncate::kth_group_value(&self.maxima, map, num_top, &mut self.selection);
        self.candidates
            .gather(self.level, logits, &self.maxima, map, bound);
        let values = self.candidates.values();
        let last = self
            .selection
            .kth_largest(values, num_top.min(values.len()));
        out.set_top(self.candidates.tokens(), values, last, num_top, normaliser);
    }

    /// The largest logit, `None` if there is none above minus infinity.
    fn scan(&mut self, logits: &[f32]) -> Result<Option<f32>, SampleError> {
        let found = scan::scan(self.level, logits, &mut self.maxima);
        if found.has_nan {
            return Err(SampleError::NonFinite);
        }
        Ok((found.max > f32::NEG_INFINITY).then_some(found.max))
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::{SamplingParams, TokenLists};
    use super::super::row::RowLimits;
    use super::*;
    use proptest::prelude::*;

    /// Tokens of a few steps of a sequence that uses masks and penalties.
    fn tokens_at(level: Level, logits: &[f32], params: &SamplingParams) -> Vec<u32> {
        let limits = RowLimits {
            vocab_size: logits.len(),
            max_model_len: 64,
            max_logprobs: 0,
        };
        let mut row = RowState::new(limits);
        let bound = row.bind(params, &TokenLists::default(), &[0, 1], []);
        bound.expect("valid parameters");
        let grammar = vec![0xF7FF_FFEF; logits.len().div_ceil(32)];
        let mut sampler = Sampler::at_level(level, logits.len());
        let step = |n| {
            let mut logits = logits.to_vec();
            let grammar = (n % 2 == 0).then_some(&grammar[..]);
            sampler
                .sample(&mut logits, &mut row, grammar)
                .expect("finite logits")
        };
        (0..6).map(step).collect()
    }

    proptest! {
        #[test]
        fn every_instruction_set_gives_the_same_tokens(
            logits in prop::collection::vec(-8f32..8.0, 8..5000),
            temperature in prop_oneof![1 => Just(0f32), 4 => 0.1f32..3.0],
            top_p in prop_oneof![1 => Just(1f32), 2 => 0.1f32..1.0],
            top_k in prop_oneof![1 => Just(0u32), 1 => 1u32..2000],
            min_p in prop_oneof![1 => Just(0f32), 1 => 0f32..0.3],
            seed: u64,
        ) {
            let params = SamplingParams {
                temperature, top_p, top_k, min_p, seed, repetition_penalty: 1.3, ..Default::default()
            };
            let expected = tokens_at(Level::best(), &logits, &params);
            for level in Level::available() {
                prop_assert_eq!(&tokens_at(level, &logits, &params), &expected, "{:?}", level);
            }
        }
    }
}
