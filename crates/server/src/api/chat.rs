//! `/v1/chat/completions`, the request.

use serde_json::{Map, Value};

use super::messages::take_messages;
use super::tools::ToolsRequest;
use super::{Limits, MAX_LOGPROBS, SamplingRequest, StreamRequest, refuse_unless};
use crate::error::ApiError;
use crate::fields::Fields;

/// A chat request, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// The model asked for; none is the one that is served.
    pub model: Option<String>,
    /// The conversation, as templates read it.
    pub messages: Vec<Value>,
    /// Tools, and whether they are to be called.
    pub tools: ToolsRequest,
    /// How the prompt is made of the conversation.
    pub template: TemplateRequest,
    /// Whether the answer begins with the text of the assistant's message that it continues.
    pub echo: bool,
    /// Whether the model's reasoning is part of the answer.
    pub include_reasoning: bool,
    /// Limit on output tokens; none is what the context has room for.
    pub max_tokens: Option<u32>,
    /// Logprobs wanted: none, or the number of alternatives.
    pub logprobs: Option<u32>,
    /// Sampling and stopping.
    pub sampling: SamplingRequest,
    /// Streaming.
    pub stream: StreamRequest,
}

impl ChatRequest {
    /// Parses and checks a body.
    ///
    /// # Errors
    /// [`ApiError::MalformedJson`], [`ApiError::NotAnObject`], [`ApiError::InvalidField`].
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        Self::take(Fields::parse(body)?, limits)
    }

    /// Takes a request out of its members.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`].
    pub fn take(mut fields: Fields, limits: &Limits) -> Result<Self, ApiError> {
        let f = &mut fields;
        let messages = take_messages(f)?;
        refuse_other_media(f)?;
        let request = Self {
            model: f.take_string("model")?,
            messages,
            tools: ToolsRequest::take(f)?,
            template: TemplateRequest::take(f)?,
            echo: f.take_bool("echo")?.unwrap_or(false),
            include_reasoning: f.take_bool("include_reasoning")?.unwrap_or(true),
            max_tokens: take_max_tokens(f)?,
            logprobs: take_logprobs(f)?,
            sampling: SamplingRequest::take(f, limits)?,
            stream: StreamRequest::take(f)?,
        };
        request.sampling.check_stream(request.stream)?;
        fields.finish();
        Ok(request)
    }
}

/// `max_completion_tokens` is the newer name and wins.
fn take_max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let older = fields.take_int("max_tokens", 1..=i64::from(u32::MAX))?;
    let newer = fields.take_int("max_completion_tokens", 1..=i64::from(u32::MAX))?;
    Ok(newer.or(older).map(|n| n as u32))
}

fn take_logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.take_bool("logprobs")?.unwrap_or(false);
    let top = fields.take_int("top_logprobs", 0..=MAX_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(fields.error("top_logprobs", "is only allowed where `logprobs` is true"))
        }
    }
}

/// How a prompt is made of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TemplateRequest {
    /// Whether the prompt ends where an answer begins.
    pub add_generation_prompt: bool,
    /// Whether the answer continues the last message.
    pub continue_final_message: bool,
    /// A template to use instead of the model's own, or the name of one of the model's.
    pub chat_template: Option<String>,
    /// Further variables of the template.
    pub kwargs: Map<String, Value>,
    /// Documents for templates that take them.
    pub documents: Option<Vec<Value>>,
}

impl TemplateRequest {
    /// Takes the members that templates are about.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`].
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let continue_final_message = fields.take_bool("continue_final_message")?.unwrap_or(false);
        let add_generation_prompt = match fields.take_bool("add_generation_prompt")? {
            Some(true) if continue_final_message => {
                return Err(fields.error(
                    "continue_final_message",
                    "and `add_generation_prompt` exclude each other",
                ));
            }
            add => add.unwrap_or(!continue_final_message),
        };
        let mut kwargs = take_kwargs(fields)?;
        if let Some(effort) = fields.take_string("reasoning_effort")? {
            apply_reasoning_effort(&mut kwargs, &effort);
        }
        Ok(Self {
            add_generation_prompt,
            continue_final_message,
            chat_template: fields.take_string("chat_template")?,
            kwargs,
            documents: take_documents(fields)?,
        })
    }
}

/// Some templates read the effort itself, others only whether to think at all; what a request says of either wins.
pub fn apply_reasoning_effort(kwargs: &mut Map<String, Value>, effort: &str) {
    if effort == "none" {
        kwargs.entry("enable_thinking").or_insert(false.into());
    }
    kwargs.entry("reasoning_effort").or_insert(effort.into());
}

fn take_kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    match fields.take("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(kwargs)) => Ok(kwargs),
        Some(_) => Err(fields.error("chat_template_kwargs", "must be an object")),
    }
}

fn take_documents(fields: &mut Fields) -> Result<Option<Vec<Value>>, ApiError> {
    match fields.take("documents") {
        None => Ok(None),
        Some(Value::Array(documents)) if documents.iter().all(Value::is_object) => {
            Ok(Some(documents))
        }
        Some(_) => Err(fields.error("documents", "must be a list of objects")),
    }
}

/// Text in, text out.
fn refuse_other_media(fields: &mut Fields) -> Result<(), ApiError> {
    refuse_unless(
        fields,
        "modalities",
        &[serde_json::json!(["text"])],
        "must be [\"text\"]: this server makes text alone",
    )?;
    refuse_unless(
        fields,
        "audio",
        &[],
        "is not served: this server makes text alone",
    )
}

#[cfg(test)]
mod tests {
    use super::super::SamplingDefaults;
    use super::*;

    fn parse(extra: &str) -> Result<ChatRequest, ApiError> {
        let limits = Limits {
            vocab_size: 100,
            max_model_len: 64,
            max_sequences: 128,
            defaults: SamplingDefaults::default(),
        };
        let body = format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{extra}}}"#);
        ChatRequest::parse(body.as_bytes(), &limits)
    }

    fn refused(extra: &str) -> String {
        match parse(extra) {
            Err(ApiError::InvalidField { param, .. }) => param,
            other => panic!("{extra}: {other:?}"),
        }
    }

    #[test]
    fn newer_name_of_the_token_limit_wins_and_zero_is_refused() {
        assert_eq!(
            parse(r#","max_tokens":5,"max_completion_tokens":7"#)
                .expect("valid")
                .max_tokens,
            Some(7)
        );
        assert_eq!(
            parse(r#","max_tokens":5,"max_completion_tokens":null"#)
                .expect("valid")
                .max_tokens,
            Some(5)
        );
        assert_eq!(refused(r#","max_tokens":0"#), "max_tokens");
        assert_eq!(
            refused(r#","max_completion_tokens":0"#),
            "max_completion_tokens"
        );
    }

    #[test]
    fn logprobs_follow_openais_rules() {
        assert_eq!(
            parse(r#","logprobs":true"#).expect("valid").logprobs,
            Some(0)
        );
        assert_eq!(
            parse(r#","logprobs":true,"top_logprobs":20"#)
                .expect("valid")
                .logprobs,
            Some(20)
        );
        assert_eq!(parse(r#","logprobs":false"#).expect("valid").logprobs, None);
        assert_eq!(
            refused(r#","logprobs":true,"top_logprobs":21"#),
            "top_logprobs"
        );
        assert_eq!(refused(r#","top_logprobs":2"#), "top_logprobs");
        assert_eq!(refused(r#","logprobs":5"#), "logprobs");
    }

    #[test]
    fn continuing_a_message_excludes_a_new_one() {
        let request = parse(r#","continue_final_message":true"#).expect("valid");
        let template = request.template;
        assert!(template.continue_final_message && !template.add_generation_prompt);
        assert_eq!(
            refused(r#","continue_final_message":true,"add_generation_prompt":true"#),
            "continue_final_message"
        );
    }

    #[test]
    fn unknown_fields_are_ignored() {
        assert!(parse(r#","user":"u","metadata":{},"no_such_thing":[1]"#).is_ok());
    }

    #[test]
    fn reasoning_effort_reaches_the_template_and_none_turns_thinking_off() {
        let kwargs = |extra: &str| parse(extra).expect(extra).template.kwargs;
        assert_eq!(
            kwargs(r#","reasoning_effort":"low""#),
            serde_json::json!({"reasoning_effort": "low"})
                .as_object()
                .cloned()
                .expect("an object")
        );
        let none = kwargs(r#","reasoning_effort":"none","chat_template_kwargs":{"x":1}"#);
        assert_eq!(
            (&none["enable_thinking"], &none["x"]),
            (&false.into(), &1.into())
        );
        let both =
            kwargs(r#","reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true}"#);
        assert_eq!(both["enable_thinking"], true);
    }

    #[test]
    fn media_other_than_text_are_refused() {
        assert_eq!(refused(r#","modalities":["text","audio"]"#), "modalities");
        assert_eq!(refused(r#","audio":{"voice":"x"}"#), "audio");
        assert!(parse(r#","modalities":["text"]"#).is_ok());
    }
}
