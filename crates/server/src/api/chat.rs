//! `/v1/chat/completions`, the request.

use serde_json::{Map, Value};

use super::messages::take_messages;
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
    /// Tools for the template to list.
    pub tools: Vec<Value>,
    /// Whether the prompt ends where an answer begins.
    pub add_generation_prompt: bool,
    /// Whether the answer continues the last message.
    pub continue_final_message: bool,
    /// Further variables of the template.
    pub template_kwargs: Map<String, Value>,
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
        let mut fields = Fields::parse(body)?;
        let f = &mut fields;
        let messages = take_messages(f)?;
        let (add_generation_prompt, continue_final_message) = take_prompt_end(f)?;
        refuse_unless(f, "echo", &[Value::Bool(false)], "is not served for chat")?;
        refuse_unless(
            f,
            "chat_template",
            &[],
            "is not served: the server's own template is used",
        )?;
        let request = Self {
            model: f.take_string("model")?,
            messages,
            tools: take_tools(f)?,
            add_generation_prompt,
            continue_final_message,
            template_kwargs: take_kwargs(f)?,
            max_tokens: take_max_tokens(f)?,
            logprobs: take_logprobs(f)?,
            sampling: SamplingRequest::take(f, limits)?,
            stream: StreamRequest::take(f)?,
        };
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

fn take_prompt_end(fields: &mut Fields) -> Result<(bool, bool), ApiError> {
    let resume = fields.take_bool("continue_final_message")?.unwrap_or(false);
    match fields.take_bool("add_generation_prompt")? {
        Some(true) if resume => Err(fields.error(
            "continue_final_message",
            "and `add_generation_prompt` exclude each other",
        )),
        add => Ok((add.unwrap_or(!resume), resume)),
    }
}

fn take_kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    match fields.take("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(kwargs)) => Ok(kwargs),
        Some(_) => Err(fields.error("chat_template_kwargs", "must be an object")),
    }
}

/// Tools may be listed to the model, but calls are not parsed out of its answers: where the client expects that, say no.
fn take_tools(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let choice = fields.take("tool_choice");
    match fields.take("tools") {
        None => Ok(Vec::new()),
        Some(Value::Array(tools)) if tools.iter().all(Value::is_object) => {
            if tools.is_empty() || choice == Some(Value::from("none")) {
                Ok(tools)
            } else {
                Err(fields.error(
                    "tools",
                    "is only served with `tool_choice` \"none\": tool calls are not available",
                ))
            }
        }
        Some(_) => Err(fields.error("tools", "must be a list of objects")),
    }
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
        assert!(request.continue_final_message && !request.add_generation_prompt);
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
    fn tools_that_would_need_parsing_are_refused() {
        let tools = r#","tools":[{"type":"function"}]"#;
        assert_eq!(refused(tools), "tools");
        assert_eq!(
            parse(&format!(r#"{tools},"tool_choice":"none""#))
                .expect("valid")
                .tools
                .len(),
            1
        );
        assert!(parse(r#","tools":[],"tool_choice":null"#).is_ok());
    }
}
