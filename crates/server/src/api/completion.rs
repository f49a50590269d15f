//! `/v1/completions`, the request.

use serde_json::Value;

use super::{Limits, MAX_LOGPROBS, SamplingRequest, StreamRequest, refuse_unless};
use crate::error::ApiError;
use crate::fields::{Fields, token_ids};

/// OpenAI's default limit on output tokens.
const DEFAULT_MAX_TOKENS: i64 = 16;

/// A prompt as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text to encode.
    Text(String),
    /// Token ids to use as they are.
    Ids(Vec<u32>),
}

/// A completion request, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// The model asked for; none is the one that is served.
    pub model: Option<String>,
    /// At least one.
    pub prompts: Vec<Prompt>,
    /// Whether the text begins with the prompt.
    pub echo: bool,
    /// Limit on output tokens; 0 only with `echo`.
    pub max_tokens: u32,
    /// Logprobs wanted: none, or the number of alternatives.
    pub logprobs: Option<u32>,
    /// Whether text prompts get the model's own special tokens, such as BOS.
    pub add_special_tokens: bool,
    /// Sampling and stopping.
    pub sampling: SamplingRequest,
    /// Streaming.
    pub stream: StreamRequest,
}

impl CompletionRequest {
    /// Parses and checks a body.
    ///
    /// # Errors
    /// [`ApiError::MalformedJson`], [`ApiError::NotAnObject`], [`ApiError::InvalidField`].
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let f = &mut fields;
        refuse_unless(
            f,
            "suffix",
            &[Value::from("")],
            "is not served: models here complete from the left alone",
        )?;
        let echo = f.take_bool("echo")?.unwrap_or(false);
        let best_of = f.take_int("best_of", 1..=128)?;
        let request = Self {
            model: f.take_string("model")?,
            prompts: take_prompts(f, limits)?,
            echo,
            max_tokens: take_max_tokens(f, echo)?,
            logprobs: take_logprobs(f)?,
            add_special_tokens: f.take_bool("add_special_tokens")?.unwrap_or(true),
            sampling: SamplingRequest::take(f, limits)?,
            stream: StreamRequest::take(f)?,
        };
        request.sampling.check_stream(request.stream)?;
        let n = request.sampling.n;
        if best_of.is_some_and(|best| best != n as i64) {
            return Err(f.error("best_of", "must be absent or equal to `n`"));
        }
        if request.prompts.len().saturating_mul(n) > limits.max_sequences {
            return Err(f.error(
                "prompt",
                format!(
                    "times `n` must make at most {} sequences",
                    limits.max_sequences
                ),
            ));
        }
        fields.finish();
        Ok(request)
    }
}

fn take_max_tokens(fields: &mut Fields, echo: bool) -> Result<u32, ApiError> {
    let max_tokens = fields
        .take_int("max_tokens", 0..=i64::from(u32::MAX))?
        .unwrap_or(DEFAULT_MAX_TOKENS);
    if max_tokens == 0 && !echo {
        return Err(fields.error("max_tokens", "must be at least 1 unless `echo` is true"));
    }
    Ok(max_tokens as u32)
}

fn take_logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let logprobs = fields.take_int("logprobs", 0..=MAX_LOGPROBS)?;
    Ok(logprobs.map(|n| n as u32))
}

fn take_prompts(fields: &mut Fields, limits: &Limits) -> Result<Vec<Prompt>, ApiError> {
    const PROBLEM: &str =
        "must be a string, a list of strings, a list of token ids or a list of such lists";
    let prompts = match fields.take("prompt") {
        Some(Value::String(text)) => vec![Prompt::Text(text)],
        Some(Value::Array(items)) => match items.first() {
            Some(Value::String(_)) => {
                texts(items).ok_or_else(|| fields.error("prompt", PROBLEM))?
            }
            Some(Value::Number(_)) => vec![
                ids(&Value::Array(items), limits)
                    .map_err(|problem| fields.error("prompt", problem))?,
            ],
            Some(Value::Array(_)) => {
                let prompts: Result<Vec<_>, _> =
                    items.iter().map(|item| ids(item, limits)).collect();
                prompts.map_err(|problem| fields.error("prompt", problem))?
            }
            _ => return Err(fields.error("prompt", PROBLEM)),
        },
        _ => return Err(fields.error("prompt", PROBLEM)),
    };
    if prompts.contains(&Prompt::Ids(Vec::new())) {
        return Err(fields.error("prompt", "must not be empty"));
    }
    Ok(prompts)
}

fn texts(items: Vec<Value>) -> Option<Vec<Prompt>> {
    items
        .into_iter()
        .map(|item| match item {
            Value::String(text) => Some(Prompt::Text(text)),
            _ => None,
        })
        .collect()
}

fn ids(value: &Value, limits: &Limits) -> Result<Prompt, String> {
    token_ids(value, limits.vocab_size).map(Prompt::Ids)
}

#[cfg(test)]
mod tests {
    use super::super::SamplingDefaults;
    use super::*;

    fn parse(body: &str) -> Result<CompletionRequest, ApiError> {
        let limits = Limits {
            vocab_size: 100,
            max_model_len: 64,
            max_sequences: 8,
            defaults: SamplingDefaults::default(),
        };
        CompletionRequest::parse(body.as_bytes(), &limits)
    }

    fn refused(body: &str) -> String {
        match parse(body) {
            Err(ApiError::InvalidField { param, .. }) => param,
            other => panic!("{body}: {other:?}"),
        }
    }

    #[test]
    fn every_form_of_prompt_is_understood() {
        let text = |t: &str| Prompt::Text(t.to_owned());
        for (prompt, want) in [
            (r#""a""#, vec![text("a")]),
            (r#"["a","b"]"#, vec![text("a"), text("b")]),
            ("[1,2]", vec![Prompt::Ids(vec![1, 2])]),
            (
                "[[1],[2,3]]",
                vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])],
            ),
        ] {
            assert_eq!(
                parse(&format!(r#"{{"prompt":{prompt}}}"#))
                    .expect(prompt)
                    .prompts,
                want
            );
        }
    }

    #[test]
    fn other_prompts_are_refused_by_name() {
        for prompt in [
            "null",
            "3",
            "[]",
            "[[]]",
            r#"["a",1]"#,
            r#"[1,"a"]"#,
            "[[1],[100]]",
            "[100]",
            "[-1]",
            "{}",
            "[1.5]",
            "[[1],2]",
        ] {
            assert_eq!(
                refused(&format!(r#"{{"prompt":{prompt}}}"#)),
                "prompt",
                "{prompt}"
            );
        }
        assert_eq!(refused("{}"), "prompt");
    }

    #[test]
    fn too_many_sequences_are_refused_before_any_work() {
        let prompts = vec![r#""a""#; 100_000].join(",");
        assert_eq!(refused(&format!(r#"{{"prompt":[{prompts}]}}"#)), "prompt");
        assert_eq!(refused(r#"{"prompt":["a","b","c"],"n":3}"#), "prompt");
    }

    #[test]
    fn no_output_is_only_for_echo() {
        assert_eq!(refused(r#"{"prompt":"a","max_tokens":0}"#), "max_tokens");
        assert_eq!(
            parse(r#"{"prompt":"a","max_tokens":0,"echo":true}"#)
                .expect("valid")
                .max_tokens,
            0
        );
        assert_eq!(parse(r#"{"prompt":"a"}"#).expect("valid").max_tokens, 16);
    }

    #[test]
    fn suffix_and_best_of_are_refused_clearly() {
        assert_eq!(refused(r#"{"prompt":"a","suffix":"b"}"#), "suffix");
        assert_eq!(refused(r#"{"prompt":"a","best_of":2}"#), "best_of");
        assert!(parse(r#"{"prompt":"a","suffix":null,"best_of":1}"#).is_ok());
    }
}
