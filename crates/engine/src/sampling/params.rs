//! What a request asks of the sampler, and the checks that make it safe to use.
//!
//! [`SamplingParams`] holds the numbers, [`TokenLists`] borrows the variable-length fields from
//! wherever the request keeps them. Both are read once, when a sequence is bound to its row
//! ([`super::RowState::bind`]); the row keeps its own copy, so a front end that changes its memory
//! later changes nothing.

use izar_ring::LogitBias;
use thiserror::Error;

/// Temperatures below this are greedy, as in vLLM's OpenAI server.
pub const GREEDY_TEMPERATURE: f32 = 1e-5;

/// Nucleus sizes below this are greedy: no vocabulary is large enough for a second token to fit in.
const GREEDY_TOP_P: f32 = 1e-6;

/// The numbers of a request's sampling parameters, under vLLM's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; below [`GREEDY_TEMPERATURE`] the largest logit wins. Finite, at least 0.
    pub temperature: f32,
    /// Keep the most likely tokens until their mass reaches this. In (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Keep this many of the largest logits (and what ties with the last of them). 0 keeps all.
    pub top_k: u32,
    /// Keep tokens at least this fraction as likely as the most likely one. In [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or generated. Above
    /// 0; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of generated tokens. Finite.
    pub presence_penalty: f32,
    /// Subtracted from the logits of generated tokens, once for each time they were. Finite.
    pub frequency_penalty: f32,
    /// Key of the request's random numbers. Unseeded requests draw one from [`super::SeedSource`].
    pub seed: u64,
    /// End-of-sequence and stop tokens cannot be sampled before this many tokens were generated.
    pub min_tokens: u32,
    /// None: no logprobs. `Some(n)`: those of the sampled token and of the `n` most likely ones.
    pub logprobs: Option<u32>,
}

impl Default for SamplingParams {
    /// Plain sampling from the model's distribution: temperature 1, nothing cut, nothing penalised.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            min_tokens: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Greedy decoding, everything else as [`SamplingParams::default`].
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Whether the largest logit always wins: no temperature to speak of, or a cut that leaves one
    /// token.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_TEMPERATURE || self.top_k == 1 || self.top_p < GREEDY_TOP_P
    }

    pub(crate) fn has_repetition_penalty(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    pub(crate) fn has_generated_penalty(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    pub(super) fn validate(&self, max_logprobs: usize) -> Result<(), ParamsError> {
        let range = |name, value: f32, holds: bool, expected| {
            if holds {
                Ok(())
            } else {
                Err(ParamsError::OutOfRange {
                    name,
                    value,
                    expected,
                })
            }
        };
        let t = self.temperature;
        range(
            "temperature",
            t,
            t.is_finite() && t >= 0.0,
            "finite and at least 0",
        )?;
        let p = self.top_p;
        range("top_p", p, p > 0.0 && p <= 1.0, "above 0 and at most 1")?;
        let p = self.min_p;
        range("min_p", p, (0.0..=1.0).contains(&p), "from 0 to 1")?;
        let r = self.repetition_penalty;
        range(
            "repetition_penalty",
            r,
            r.is_finite() && r > 0.0,
            "finite and above 0",
        )?;
        let p = self.presence_penalty;
        range("presence_penalty", p, p.is_finite(), "finite")?;
        let p = self.frequency_penalty;
        range("frequency_penalty", p, p.is_finite(), "finite")?;
        match self.logprobs {
            Some(asked) if asked as usize > max_logprobs => Err(ParamsError::TooManyLogprobs {
                asked,
                max_logprobs,
            }),
            _ => Ok(()),
        }
    }
}

/// The variable-length fields of a request. Empty means absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenLists<'a> {
    /// The model's end-of-sequence tokens: masked until `min_tokens` were generated, whether
    /// ignored or not.
    pub eos_ids: &'a [u32],
    /// The request's own stop tokens: masked until `min_tokens` were generated.
    pub stop_ids: &'a [u32],
    /// If not empty, only these may be sampled.
    pub allowed_ids: &'a [u32],
    /// Added to the logits, finite.
    pub logit_bias: &'a [LogitBias],
    /// Token sequences that must not be completed by a generated token.
    pub bad_words: BadWords<'a>,
}

/// A list of token sequences in one slice: each is its length followed by its tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct BadWords<'a>(pub &'a [u32]);

impl<'a> BadWords<'a> {
    /// The sequences in order. `None` ends a slice whose last length points past its end, or is 0.
    pub fn iter(&self) -> impl Iterator<Item = Option<&'a [u32]>> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (&len, tail) = rest.split_first()?;
            let word = tail.split_at_checked(len as usize).filter(|_| len > 0);
            rest = word.map_or(&[][..], |(_, after)| after);
            Some(word.map(|(word, _)| word))
        })
    }

    /// How many generated tokens must be remembered to recognise every sequence.
    pub(crate) fn longest_prefix(&self) -> usize {
        let words = self.iter().flatten();
        words.map(|word| word.len() - 1).max().unwrap_or(0)
    }
}

/// Why a request's parameters cannot be used. The request is refused; nothing else is affected.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ParamsError {
    /// A number outside its range (or not a number).
    #[error("{name} must be {expected}, got {value}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// What it was.
        value: f32,
        /// The range in words.
        expected: &'static str,
    },
    /// More top tokens than the engine was started for.
    #[error("logprobs must be at most {max_logprobs}, got {asked}")]
    TooManyLogprobs {
        /// What was asked for.
        asked: u32,
        /// The engine's limit.
        max_logprobs: usize,
    },
    /// A token id that the model does not have.
    #[error("{name} contains token {token}, but the vocabulary has {vocab_size} tokens")]
    OutsideVocabulary {
        /// The list.
        name: &'static str,
        /// The token.
        token: u32,
        /// The vocabulary's size.
        vocab_size: usize,
    },
    /// The encoding of [`BadWords`] is broken, or a word is empty.
    #[error("bad_words must be non-empty sequences, each preceded by its length")]
    MalformedBadWords,
    /// More tokens than a row has room for.
    #[error("the sequence has {num_tokens} tokens, but max_model_len is {max_model_len}")]
    TooLong {
        /// Prompt and generated tokens together.
        num_tokens: usize,
        /// The row's limit.
        max_model_len: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_words_are_split_by_their_lengths() {
        let words: Vec<_> = BadWords(&[1, 7, 3, 4, 5, 6]).iter().collect();
        assert_eq!(words, [Some(&[7][..]), Some(&[4, 5, 6][..])]);
    }

    #[test]
    fn broken_bad_words_end_in_none() {
        for broken in [&[2, 1][..], &[0], &[1, 5, u32::MAX, 1]] {
            assert_eq!(BadWords(broken).iter().last(), Some(None), "{broken:?}");
        }
    }

    #[test]
    fn every_number_out_of_range_is_refused_by_name() {
        let ok = SamplingParams::default();
        let cases: Vec<(&str, SamplingParams)> = [f32::NAN, f32::INFINITY, -1.0]
            .into_iter()
            .flat_map(|bad| {
                [
                    (
                        "temperature",
                        SamplingParams {
                            temperature: bad,
                            ..ok
                        },
                    ),
                    ("top_p", SamplingParams { top_p: bad, ..ok }),
                    ("min_p", SamplingParams { min_p: bad, ..ok }),
                    (
                        "repetition_penalty",
                        SamplingParams {
                            repetition_penalty: bad,
                            ..ok
                        },
                    ),
                ]
            })
            .chain([
                ("top_p", SamplingParams { top_p: 0.0, ..ok }),
                (
                    "repetition_penalty",
                    SamplingParams {
                        repetition_penalty: 0.0,
                        ..ok
                    },
                ),
                (
                    "presence_penalty",
                    SamplingParams {
                        presence_penalty: f32::NAN,
                        ..ok
                    },
                ),
                (
                    "frequency_penalty",
                    SamplingParams {
                        frequency_penalty: f32::INFINITY,
                        ..ok
                    },
                ),
            ])
            .collect();
        for (field, params) in cases {
            match params.validate(20) {
                Err(ParamsError::OutOfRange { name, .. }) => assert_eq!(name, field),
                other => panic!("{field}: {other:?}"),
            }
        }
        assert_eq!(ok.validate(20), Ok(()));
        let many = SamplingParams {
            logprobs: Some(21),
            ..ok
        };
        assert!(matches!(
            many.validate(20),
            Err(ParamsError::TooManyLogprobs { asked: 21, .. })
        ));
    }

    #[test]
    fn tiny_temperature_top_p_and_top_k_of_one_are_greedy() {
        let ok = SamplingParams::default();
        assert!(!ok.is_greedy());
        assert!(
            SamplingParams {
                temperature: 9e-6,
                ..ok
            }
            .is_greedy()
        );
        assert!(SamplingParams { top_p: 1e-7, ..ok }.is_greedy());
        assert!(SamplingParams { top_k: 1, ..ok }.is_greedy());
        assert!(
            !SamplingParams {
                temperature: 1e-5,
                ..ok
            }
            .is_greedy()
        );
    }
}
