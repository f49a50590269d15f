//! The parameters that chat and completions share: sampling, stopping, streaming.

use serde_json::Value;

use super::format::take_format;
use super::{Limits, MAX_LOGPROBS, refuse_unless};
use crate::constrain::FormatRequest;
use crate::error::ApiError;
use crate::fields::Fields;

const MAX_CHOICES: i64 = 128;
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 4096;
const MAX_BAD_WORDS: usize = 1024;
/// Below this a temperature is greedy: the quotient of logits would leave the range of f32.
const LEAST_TEMPERATURE: f32 = 1e-4;
/// A nucleus of nothing is the nucleus of the likeliest token.
const LEAST_TOP_P: f32 = 1e-6;

/// What a parameter is where a request leaves it out: OpenAI's values, or those of the model's `generation_config.json`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingDefaults {
    /// 1 by default.
    pub temperature: f32,
    /// 1 by default: the whole distribution.
    pub top_p: f32,
    /// 0 by default: the whole distribution.
    pub top_k: u32,
    /// 0 by default.
    pub min_p: f32,
    /// 1 by default: none.
    pub repetition_penalty: f32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
        }
    }
}

/// How to sample and when to stop, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingRequest {
    /// Choices for each prompt.
    pub n: usize,
    /// 0 is greedy.
    pub temperature: f32,
    /// Above 0, at most 1.
    pub top_p: f32,
    /// 0 is all.
    pub top_k: u32,
    /// 0 to 1.
    pub min_p: f32,
    /// −2 to 2.
    pub presence_penalty: f32,
    /// −2 to 2.
    pub frequency_penalty: f32,
    /// Above 0; 1 is none.
    pub repetition_penalty: f32,
    /// The client's seed.
    pub seed: Option<u64>,
    /// Stop strings, none of them empty.
    pub stop: Vec<String>,
    /// Whether what stopped the text stays in it.
    pub include_stop: bool,
    /// Token ids that end the sequence.
    pub stop_token_ids: Vec<u32>,
    /// Whether the model's own end-of-sequence tokens are ordinary ones.
    pub ignore_eos: bool,
    /// No stop of any kind before this many output tokens.
    pub min_tokens: u32,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// Added to logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// The only tokens that may be sampled.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Words that may not be produced.
    pub bad_words: Vec<String>,
    /// Lower runs earlier.
    pub priority: i32,
    /// Whether the answer carries token ids.
    pub return_token_ids: bool,
    /// What the answer must look like.
    pub format: Option<FormatRequest>,
    /// Log probabilities wanted of the prompt: none, or the number of alternatives.
    pub prompt_logprobs: Option<u32>,
}

impl SamplingRequest {
    /// Takes the parameters out of a request.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`].
    pub fn take(fields: &mut Fields, limits: &Limits) -> Result<Self, ApiError> {
        refuse_what_is_not_served(fields)?;
        let vocab = limits.vocab_size;
        let defaults = &limits.defaults;
        let request = Self {
            n: fields.take_int("n", 1..=MAX_CHOICES)?.unwrap_or(1) as usize,
            temperature: fields
                .take_f32("temperature", 0.0..=2.0)?
                .unwrap_or(defaults.temperature),
            top_p: fields
                .take_f32("top_p", 0.0..=1.0)?
                .unwrap_or(defaults.top_p)
                .max(LEAST_TOP_P),
            top_k: fields
                .take_int("top_k", -1..=i64::from(i32::MAX))?
                .map_or(defaults.top_k, |k| k.max(0) as u32),
            min_p: fields
                .take_f32("min_p", 0.0..=1.0)?
                .unwrap_or(defaults.min_p),
            presence_penalty: fields
                .take_f32("presence_penalty", -2.0..=2.0)?
                .unwrap_or(0.0),
            frequency_penalty: fields
                .take_f32("frequency_penalty", -2.0..=2.0)?
                .unwrap_or(0.0),
            repetition_penalty: fields
                .take_f32("repetition_penalty", 0.01..=100.0)?
                .unwrap_or(defaults.repetition_penalty),
            seed: fields.take_seed("seed")?,
            stop: take_stops(fields)?,
            include_stop: fields
                .take_bool("include_stop_str_in_output")?
                .unwrap_or(false),
            stop_token_ids: fields
                .take_token_ids("stop_token_ids", vocab)?
                .unwrap_or_default(),
            ignore_eos: fields.take_bool("ignore_eos")?.unwrap_or(false),
            min_tokens: fields
                .take_int("min_tokens", 0..=i64::from(u32::MAX))?
                .unwrap_or(0) as u32,
            skip_special_tokens: fields.take_bool("skip_special_tokens")?.unwrap_or(true),
            logit_bias: take_logit_bias(fields, vocab)?,
            allowed_token_ids: fields.take_token_ids("allowed_token_ids", vocab)?,
            bad_words: take_bad_words(fields)?,
            priority: fields
                .take_int("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?
                .unwrap_or(0) as i32,
            return_token_ids: fields.take_bool("return_token_ids")?.unwrap_or(false),
            format: take_format(fields)?,
            prompt_logprobs: fields
                .take_int("prompt_logprobs", 0..=MAX_LOGPROBS)?
                .map(|n| n as u32),
        };
        if request
            .allowed_token_ids
            .as_ref()
            .is_some_and(Vec::is_empty)
        {
            return Err(fields.error("allowed_token_ids", "must hold at least one token id"));
        }
        Ok(Self {
            temperature: if request.temperature < LEAST_TEMPERATURE {
                0.0
            } else {
                request.temperature
            },
            ..request
        })
    }
}

/// Refuses what would change the answer and is not served, rather than answering something else.
fn refuse_what_is_not_served(fields: &mut Fields) -> Result<(), ApiError> {
    refuse_unless(
        fields,
        "use_beam_search",
        &[Value::Bool(false)],
        "is not served",
    )?;
    refuse_unless(
        fields,
        "truncate_prompt_tokens",
        &[],
        "is not served: shorten the prompt before sending it",
    )?;
    Ok(())
}

fn take_stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let mut stops = fields.take_strings("stop")?.unwrap_or_default();
    stops.retain(|stop| !stop.is_empty());
    if stops.len() > MAX_STOPS || stops.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
        return Err(fields.error(
            "stop",
            format!("must be at most {MAX_STOPS} strings of at most {MAX_STOP_BYTES} bytes"),
        ));
    }
    Ok(stops)
}

fn take_bad_words(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let words = fields.take_strings("bad_words")?.unwrap_or_default();
    if words.len() > MAX_BAD_WORDS
        || words
            .iter()
            .any(|word| word.is_empty() || word.len() > MAX_STOP_BYTES)
    {
        return Err(fields.error("bad_words", format!("must be at most {MAX_BAD_WORDS} non-empty strings of at most {MAX_STOP_BYTES} bytes")));
    }
    Ok(words)
}

/// `{"50256": -100, …}`.
fn take_logit_bias(fields: &mut Fields, vocab_size: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let problem = || {
        format!(
            "must be an object from token ids (0 to {}) to numbers from -100 to 100",
            vocab_size.saturating_sub(1)
        )
    };
    let entries = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(entries)) => entries,
        Some(_) => return Err(fields.error("logit_bias", problem())),
    };
    entries
        .into_iter()
        .map(|(id, bias)| {
            let id = id.parse::<u32>().ok().filter(|&id| id < vocab_size)?;
            let bias = bias
                .as_f64()
                .filter(|bias| (-100.0..=100.0).contains(bias))?;
            Some((id, bias as f32))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| fields.error("logit_bias", problem()))
}

impl SamplingRequest {
    /// Refuses what a stream has no place for.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`].
    pub fn check_stream(&self, stream: StreamRequest) -> Result<(), ApiError> {
        if stream.stream && self.prompt_logprobs.is_some() {
            return Err(ApiError::field(
                "prompt_logprobs",
                "is not served where `stream` is true",
            ));
        }
        Ok(())
    }
}

/// Whether and how to stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamRequest {
    /// Server-sent events instead of one body.
    pub stream: bool,
    /// A last chunk with the usage.
    pub include_usage: bool,
    /// The usage so far on every chunk (vLLM's extension).
    pub continuous_usage: bool,
}

impl StreamRequest {
    /// Takes `stream` and `stream_options`.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`], also where there are options but no stream.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let stream = fields.take_bool("stream")?.unwrap_or(false);
        let Some(options) = fields.take("stream_options") else {
            return Ok(Self {
                stream,
                ..Self::default()
            });
        };
        if !stream {
            return Err(fields.error("stream_options", "is only allowed where `stream` is true"));
        }
        let mut options = Fields::nested(options, "stream_options".to_owned())?;
        let include_usage = options.take_bool("include_usage")?.unwrap_or(false);
        let continuous_usage = options
            .take_bool("continuous_usage_stats")?
            .unwrap_or(false)
            && include_usage;
        options.finish();
        Ok(Self {
            stream,
            include_usage,
            continuous_usage,
        })
    }
}

#[cfg(test)]
mod tests;
