//! `/v1/responses`, the request: brought to the form of a chat, which has all that this server can do.

mod input;

use serde_json::{Map, Value, json};

use super::{ChatRequest, Limits, MAX_LOGPROBS, refuse_unless};
use crate::error::ApiError;
use crate::fields::Fields;

/// A request for a response, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesRequest {
    /// The chat that it is.
    pub chat: ChatRequest,
    /// What the response repeats of the request.
    pub echo: Map<String, Value>,
}

impl ResponsesRequest {
    /// Parses and checks a body.
    ///
    /// # Errors
    /// [`ApiError::MalformedJson`], [`ApiError::NotAnObject`], [`ApiError::InvalidField`].
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        refuse_what_is_not_served(&mut fields)?;
        let mut echo = echo_of(&mut fields, limits)?;
        translate(&mut fields)?;
        let chat = ChatRequest::take(fields, limits).map_err(Self::rename)?;
        if chat.sampling.n > 1 {
            return Err(ApiError::field("n", "must be 1: a response has one output"));
        }
        echo.insert("parallel_tool_calls".to_owned(), chat.tools.parallel.into());
        Ok(Self { chat, echo })
    }

    /// An error about a chat, in the words of this endpoint.
    pub fn rename(error: ApiError) -> ApiError {
        let ApiError::InvalidField { param, problem } = error else {
            return error;
        };
        let param = match param.as_str() {
            "max_tokens" => "max_output_tokens".to_owned(),
            "reasoning_effort" => "reasoning.effort".to_owned(),
            param if param.starts_with("messages") => "input".to_owned(),
            param if param.starts_with("response_format") => param
                .replacen("response_format.json_schema", "text.format", 1)
                .replacen("response_format", "text.format", 1),
            param if param.starts_with("tools[") => param.replacen(".function", "", 1),
            _ => param,
        };
        ApiError::InvalidField { param, problem }
    }
}

/// Refuses what needs a memory of earlier responses, or would change the answer.
fn refuse_what_is_not_served(fields: &mut Fields) -> Result<(), ApiError> {
    let no = [Value::Bool(false)];
    let not_kept = "is not served: this server keeps no responses; send all turns in `input`";
    refuse_unless(fields, "store", &no, not_kept)?;
    refuse_unless(fields, "previous_response_id", &[], not_kept)?;
    refuse_unless(fields, "conversation", &[], not_kept)?;
    refuse_unless(
        fields,
        "background",
        &no,
        "is not served: wait for the response, or stream it",
    )?;
    refuse_unless(
        fields,
        "prompt",
        &[],
        "is not served: send `instructions` and `input`",
    )?;
    refuse_unless(
        fields,
        "truncation",
        &["disabled".into()],
        "must be `disabled`: shorten the input before sending it",
    )
}

/// What the response repeats, taken before it is translated. Members that are absent are null, as OpenAI has it.
fn echo_of(fields: &mut Fields, limits: &Limits) -> Result<Map<String, Value>, ApiError> {
    let metadata = match fields.take("metadata") {
        None => json!({}),
        Some(Value::Object(members)) if members.values().all(Value::is_string) => members.into(),
        Some(_) => return Err(fields.error("metadata", "must be an object of strings")),
    };
    let value = |name: &str| fields.get(name).cloned();
    let defaults = &limits.defaults;
    let effort = value("reasoning").map_or(Value::Null, |reasoning| reasoning["effort"].clone());
    let choice = if fields.get("tools").is_some() {
        "auto"
    } else {
        "none"
    };
    let echo = json!({
        "background": false,
        "instructions": value("instructions"),
        "max_output_tokens": value("max_output_tokens"),
        "max_tool_calls": null,
        "metadata": metadata,
        "previous_response_id": null,
        "reasoning": {"effort": effort, "summary": null},
        "store": false,
        "temperature": value("temperature").unwrap_or_else(|| defaults.temperature.into()),
        "text": value("text").unwrap_or_else(|| json!({"format": {"type": "text"}})),
        "tool_choice": value("tool_choice").unwrap_or_else(|| choice.into()),
        "tools": value("tools").unwrap_or_else(|| json!([])),
        "top_logprobs": value("top_logprobs").unwrap_or_else(|| 0.into()),
        "top_p": value("top_p").unwrap_or_else(|| defaults.top_p.into()),
        "truncation": "disabled",
        "user": value("user"),
    });
    match echo {
        Value::Object(echo) => Ok(echo),
        _ => Ok(Map::new()),
    }
}

/// Replaces the members of a response's request by those of a chat's.
fn translate(fields: &mut Fields) -> Result<(), ApiError> {
    // Names that mean something to a chat and nothing here.
    for name in [
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "response_format",
        "logprobs",
        "functions",
        "function_call",
        "reasoning_effort",
        "echo",
    ] {
        drop(fields.take(name));
    }
    let messages = input::take_messages(fields)?;
    fields.put("messages", messages);
    if let Some(max) = fields.take("max_output_tokens") {
        fields.put("max_tokens", max);
    }
    translate_tools(fields)?;
    translate_text(fields)?;
    translate_reasoning(fields)?;
    translate_logprobs(fields)
}

/// `{"type":"function","name",…}` is `{"type":"function","function":{"name",…}}` to a chat.
fn translate_tools(fields: &mut Fields) -> Result<(), ApiError> {
    let tools = match fields.take("tools") {
        None => return Ok(()),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(fields.error("tools", "must be a list of objects")),
    };
    let tools: Vec<Value> = tools
        .into_iter()
        .enumerate()
        .map(|(idx, tool)| match tool {
            Value::Object(mut members) if members.get("type") == Some(&"function".into()) => {
                members.remove("type");
                Ok(json!({"type": "function", "function": members}))
            }
            _ => Err(ApiError::field(
                format!("tools[{idx}].type"),
                "must be `function`: this server has no tools of its own",
            )),
        })
        .collect::<Result<_, _>>()?;
    fields.put("tools", tools);
    Ok(())
}

/// `text.format` is `response_format`, with a schema's members one level up.
fn translate_text(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(text) = fields.take("text") else {
        return Ok(());
    };
    let mut text = Fields::nested(text, "text".to_owned())?;
    let format = text.take("format");
    text.take("verbosity");
    text.finish();
    match format {
        None => {}
        Some(Value::Object(mut members)) if members.get("type") == Some(&"json_schema".into()) => {
            members.remove("type");
            let format = json!({"type": "json_schema", "json_schema": members});
            fields.put("response_format", format);
        }
        Some(format) => fields.put("response_format", format),
    }
    Ok(())
}

fn translate_reasoning(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(reasoning) = fields.take("reasoning") else {
        return Ok(());
    };
    let mut reasoning = Fields::nested(reasoning, "reasoning".to_owned())?;
    if let Some(effort) = reasoning.take_string("effort")? {
        fields.put("reasoning_effort", effort);
    }
    // There is only the reasoning itself.
    reasoning.take("summary");
    reasoning.take("generate_summary");
    reasoning.finish();
    Ok(())
}

/// Log probabilities come where `include` asks for them.
fn translate_logprobs(fields: &mut Fields) -> Result<(), ApiError> {
    let include = fields.take_strings("include")?.unwrap_or_default();
    let top = fields.take_int("top_logprobs", 0..=MAX_LOGPROBS)?;
    if include
        .iter()
        .any(|name| name == "message.output_text.logprobs")
    {
        fields.put("logprobs", true);
        fields.put("top_logprobs", top);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{SamplingDefaults, ToolChoice};
    use super::*;

    fn parse(body: Value) -> Result<ResponsesRequest, ApiError> {
        let limits = Limits {
            vocab_size: 100,
            max_model_len: 64,
            max_sequences: 128,
            defaults: SamplingDefaults::default(),
        };
        ResponsesRequest::parse(body.to_string().as_bytes(), &limits)
    }

    #[test]
    fn members_are_those_of_a_chat() {
        let request = parse(json!({
            "input": "hi", "instructions": "be brief", "max_output_tokens": 9, "reasoning": {"effort": "low"},
            "tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": {"type": "function", "name": "f"},
            "include": ["message.output_text.logprobs"], "top_logprobs": 2, "metadata": {"a": "b"}, "store": false,
        }))
        .expect("valid");
        let chat = &request.chat;
        assert_eq!(
            chat.messages,
            [
                json!({"role": "system", "content": "be brief"}),
                json!({"role": "user", "content": "hi"})
            ]
        );
        assert_eq!((chat.max_tokens, chat.logprobs), (Some(9), Some(2)));
        assert_eq!(chat.tools.choice, ToolChoice::Named("f".to_owned()));
        assert_eq!(chat.template.kwargs["reasoning_effort"], "low");
        assert_eq!(
            (
                &request.echo["metadata"]["a"],
                &request.echo["tools"][0]["name"]
            ),
            (&json!("b"), &json!("f"))
        );
    }

    #[test]
    fn refusals_name_the_members_of_this_endpoint() {
        for (body, param) in [
            (json!({}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": "a", "store": true}), "store"),
            (
                json!({"input": "a", "previous_response_id": "resp_1"}),
                "previous_response_id",
            ),
            (json!({"input": "a", "background": true}), "background"),
            (json!({"input": "a", "truncation": "auto"}), "truncation"),
            (
                json!({"input": "a", "max_output_tokens": 0}),
                "max_output_tokens",
            ),
            (json!({"input": "a", "metadata": {"a": 1}}), "metadata"),
            (json!({"input": "a", "n": 2}), "n"),
            (
                json!({"input": "a", "tools": [{"type": "web_search"}]}),
                "tools[0].type",
            ),
            (
                json!({"input": "a", "tools": [{"type": "function"}]}),
                "tools[0].name",
            ),
            (
                json!({"input": [{"type": "item_reference", "id": "x"}]}),
                "input[0].type",
            ),
            (json!({"input": "a", "temperature": 9}), "temperature"),
        ] {
            match parse(body.clone()) {
                Err(ApiError::InvalidField { param: got, .. }) => assert_eq!(got, param, "{body}"),
                other => panic!("{body}: {other:?}"),
            }
        }
    }
}
