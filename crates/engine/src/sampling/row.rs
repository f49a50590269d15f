//! What the sampler keeps of one running sequence: its parameters, its own copy of its lists, and
//! what penalties and bad words need to know of its history.
//!
//! A row belongs to whoever samples it, one thread at a time. It is bound when a sequence starts or
//! resumes and reused for the next; binding may grow a list that is longer than any before it,
//! sampling never allocates.

use super::candidates::Affine;
use super::counts::TokenCounts;
use super::logprobs::Logprobs;
use super::params::{ParamsError, SamplingParams, TokenLists};
use super::philox;
use super::race::Draws;
use izar_ring::LogitBias;

/// The sizes a row is built for.
#[derive(Clone, Copy, Debug)]
pub struct RowLimits {
    /// Logits per row.
    pub vocab_size: usize,
    /// Prompt and generated tokens of the longest sequence.
    pub max_model_len: usize,
    /// The most top logprobs a request may ask for.
    pub max_logprobs: usize,
}

impl RowLimits {
    /// What [`RowState::bind`] checks, for rows that live elsewhere.
    ///
    /// # Errors
    /// [`ParamsError`].
    pub(crate) fn check(
        &self,
        params: &SamplingParams,
        lists: &TokenLists<'_>,
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<(), ParamsError> {
        params.validate(self.max_logprobs)?;
        self.check_lists(lists)?;
        self.check_len(prompt.len() + generated.len())?;
        if params.has_repetition_penalty() {
            self.check_tokens("prompt", prompt)?;
        }
        self.check_tokens("generated", generated)
    }

    fn check_lists(&self, lists: &TokenLists<'_>) -> Result<(), ParamsError> {
        self.check_tokens("stop_ids", lists.stop_ids)?;
        for &LogitBias { token, bias } in lists.logit_bias {
            self.check_token("logit_bias", token)?;
            if !bias.is_finite() {
                return Err(ParamsError::OutOfRange {
                    name: "logit_bias",
                    value: bias,
                    expected: "finite",
                });
            }
        }
        self.check_tokens("allowed_ids", lists.allowed_ids)?;
        lists.bad_words.iter().try_for_each(|word| {
            self.check_tokens("bad_words", word.ok_or(ParamsError::MalformedBadWords)?)
        })
    }

    fn check_len(&self, num_tokens: usize) -> Result<(), ParamsError> {
        let max_model_len = self.max_model_len;
        if num_tokens > max_model_len {
            return Err(ParamsError::TooLong {
                num_tokens,
                max_model_len,
            });
        }
        Ok(())
    }

    fn check_tokens(&self, name: &'static str, tokens: &[u32]) -> Result<(), ParamsError> {
        tokens
            .iter()
            .try_for_each(|&token| self.check_token(name, token))
    }

    fn check_token(&self, name: &'static str, token: u32) -> Result<(), ParamsError> {
        let vocab_size = self.vocab_size;
        if token as usize >= vocab_size {
            return Err(ParamsError::OutsideVocabulary {
                name,
                token,
                vocab_size,
            });
        }
        Ok(())
    }
}

/// The sampler's state of one sequence.
#[derive(Debug)]
pub struct RowState {
    pub(super) params: SamplingParams,
    pub(super) key: [u32; 2],
    pub(super) num_generated: u32,
    pub(super) counts: TokenCounts,
    pub(super) logit_bias: Vec<LogitBias>,
    /// End-of-sequence and stop tokens.
    pub(super) stop_ids: Vec<u32>,
    /// Bit `id % 32` of word `id / 32` is set if the token is allowed. Read only if
    /// `has_allowed_ids`.
    pub(super) allowed_ids: Vec<u32>,
    pub(super) has_allowed_ids: bool,
    pub(super) bad_words: Vec<u32>,
    /// The last generated tokens, as many as the longest bad word has before its last.
    pub(super) tail: Vec<u32>,
    pub(super) tail_len: usize,
    pub(super) logprobs: Logprobs,
    limits: RowLimits,
}

impl RowState {
    /// A row with nothing bound to it; it samples greedily until something is.
    pub fn new(limits: RowLimits) -> Self {
        Self {
            params: SamplingParams::greedy(),
            key: [0; 2],
            num_generated: 0,
            // One more than fits in the context: an optimistic plan runs one step past the end, to
            // be dropped.
            counts: TokenCounts::new((limits.max_model_len + 1).min(limits.vocab_size)),
            logit_bias: Vec::new(),
            stop_ids: Vec::new(),
            allowed_ids: Vec::new(),
            has_allowed_ids: false,
            bad_words: Vec::new(),
            tail: Vec::new(),
            tail_len: 0,
            logprobs: Logprobs::new(limits.max_logprobs),
            limits,
        }
    }

    /// Prepares the row for a sequence of which `prompt` and `generated` are the tokens so far:
    /// none generated for a new one, all of them for one that resumes. Resuming gives the state
    /// that sampling those tokens would have given.
    ///
    /// On an error the row holds nothing useful and must be bound again.
    pub fn bind(
        &mut self,
        params: &SamplingParams,
        lists: &TokenLists<'_>,
        prompt: &[u32],
        generated: impl IntoIterator<Item = u32>,
    ) -> Result<(), ParamsError> {
        params.validate(self.limits.max_logprobs)?;
        self.params = *params;
        self.key = philox::key(params.seed);
        self.logprobs.clear();
        self.copy_lists(lists)?;
        self.num_generated = 0;
        self.counts.clear();
        self.tail.clear();
        self.limits.check_len(prompt.len())?;
        if params.has_repetition_penalty() {
            for &token in prompt {
                self.limits.check_token("prompt", token)?;
                self.counts.add_prompt_token(token);
            }
        }
        for token in generated {
            self.limits.check_token("generated", token)?;
            self.limits
                .check_len(prompt.len() + self.num_generated as usize + 1)?;
            self.push(token);
        }
        Ok(())
    }

    /// Tokens generated so far, which is the position that random numbers are drawn for.
    pub fn num_generated(&self) -> u32 {
        self.num_generated
    }

    /// The parameters bound to the row.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The logprobs of the token sampled last; `None` if the request asked for none.
    pub fn logprobs(&self) -> Option<&Logprobs> {
        self.params.logprobs.map(|_| &self.logprobs)
    }

    /// What makes scaled logits of at most 0 from the logits, of which `max` is the largest.
    pub(super) fn map(&self, max: f32) -> Affine {
        Affine {
            shift: max,
            scale: 1.0 / self.params.temperature,
        }
    }

    /// The random numbers of the next token.
    pub(super) fn draws(&self) -> Draws {
        Draws {
            key: self.key,
            position: self.num_generated,
        }
    }

    /// Records a generated token.
    pub(super) fn push(&mut self, token: u32) {
        self.num_generated += 1;
        if self.params.has_repetition_penalty() || self.params.has_generated_penalty() {
            self.counts.add_generated_token(token);
        }
        if self.tail_len > 0 {
            if self.tail.len() == self.tail_len {
                self.tail.remove(0);
            }
            self.tail.push(token);
        }
    }

    fn copy_lists(&mut self, lists: &TokenLists<'_>) -> Result<(), ParamsError> {
        self.limits.check_lists(lists)?;
        self.stop_ids.clear();
        self.stop_ids.extend_from_slice(lists.stop_ids);
        // A model's configuration may name end-of-sequence tokens beyond its logits; those cannot
        // be sampled anyway.
        let vocab_size = self.limits.vocab_size;
        self.stop_ids.extend(
            lists
                .eos_ids
                .iter()
                .filter(|&&id| (id as usize) < vocab_size),
        );

        self.logit_bias.clear();
        self.logit_bias.extend_from_slice(lists.logit_bias);

        self.copy_allowed_ids(lists.allowed_ids);
        self.copy_bad_words(lists);
        Ok(())
    }

    fn copy_allowed_ids(&mut self, allowed_ids: &[u32]) {
        self.has_allowed_ids = !allowed_ids.is_empty();
        if self.has_allowed_ids {
            self.allowed_ids.clear();
            self.allowed_ids
                .resize(self.limits.vocab_size.div_ceil(32), 0);
            for &token in allowed_ids {
                self.allowed_ids[token as usize / 32] |= 1 << (token % 32);
            }
        }
    }

    fn copy_bad_words(&mut self, lists: &TokenLists<'_>) {
        self.tail_len = lists.bad_words.longest_prefix();
        self.bad_words.clear();
        self.bad_words.extend_from_slice(lists.bad_words.0);
        self.tail.clear();
        self.tail.reserve_exact(self.tail_len);
    }
}
