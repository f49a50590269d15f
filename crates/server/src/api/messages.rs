//! The `messages` of a chat request, brought to the form that chat templates read.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;

/// Checks the conversation and returns one object per message with its `content` as one string, empty where there is none: many templates
/// join it to other strings without asking.
pub fn take_messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let problem = "must be a list of at least one message";
    match fields.take("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages
            .into_iter()
            .enumerate()
            .map(|(idx, message)| normalise(message, format!("messages[{idx}]")))
            .collect(),
        _ => Err(fields.error("messages", problem)),
    }
}

fn normalise(message: Value, path: String) -> Result<Value, ApiError> {
    let mut fields = Fields::nested(message, path)?;
    let role = take_role(&mut fields)?;
    let tool_calls = take_tool_calls(&mut fields)?;
    let content = take_content(&mut fields)?;
    if content.is_none() && tool_calls.is_none() && role != "assistant" {
        return Err(fields.error("content", "must be a string or a list of text parts"));
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), Value::String(role.to_owned()));
    message.insert("content".to_owned(), content.unwrap_or_default().into());
    if let Some(calls) = tool_calls {
        message.insert("tool_calls".to_owned(), calls);
    }
    for name in ["name", "tool_call_id", "reasoning_content"] {
        if let Some(text) = fields.take_string(name)? {
            message.insert(name.to_owned(), Value::String(text));
        }
    }
    fields.finish();
    Ok(Value::Object(message))
}

/// `developer` is OpenAI's newer word for `system`; templates know the older one.
fn take_role(fields: &mut Fields) -> Result<&'static str, ApiError> {
    Ok(match fields.take_string("role")?.as_deref() {
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool") => "tool",
        Some("function") => "function",
        _ => {
            return Err(fields.error(
                "role",
                "must be one of system, developer, user, assistant, tool, function",
            ));
        }
    })
}

/// A string, or parts of type `text` in their order, a line each.
fn take_content(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    match fields.take("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let path = fields.path_of("content");
            let texts: Vec<String> = parts
                .into_iter()
                .enumerate()
                .map(|(idx, part)| text_of_part(part, format!("{path}[{idx}]")))
                .collect::<Result<_, _>>()?;
            Ok(Some(texts.join("\n")))
        }
        Some(_) => Err(fields.error("content", "must be a string or a list of text parts")),
    }
}

fn text_of_part(part: Value, path: String) -> Result<String, ApiError> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let mut fields = Fields::nested(part, path)?;
    match fields.take_string("type")?.as_deref() {
        Some("text") => fields
            .take_string("text")?
            .ok_or_else(|| fields.error("text", "must be a string")),
        Some("refusal") => fields
            .take_string("refusal")?
            .ok_or_else(|| fields.error("refusal", "must be a string")),
        _ => Err(fields.error("type", "must be `text`: this server takes text alone")),
    }
}

/// Past calls of the assistant. Templates want `arguments` as an object where OpenAI sends it as a string of JSON.
fn take_tool_calls(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    match fields.take("tool_calls") {
        None => Ok(None),
        Some(Value::Array(mut calls)) if calls.iter().all(Value::is_object) => {
            for call in &mut calls {
                if let Some(arguments) = call.pointer_mut("/function/arguments")
                    && let Some(object) = arguments
                        .as_str()
                        .and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok())
                {
                    *arguments = Value::Object(object);
                }
            }
            Ok((!calls.is_empty()).then_some(Value::Array(calls)))
        }
        Some(_) => Err(fields.error("tool_calls", "must be a list of objects")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn take(messages: Value) -> Result<Vec<Value>, ApiError> {
        let body = json!({"messages": messages}).to_string();
        take_messages(&mut Fields::parse(body.as_bytes()).expect("JSON"))
    }

    #[test]
    fn parts_are_joined_in_order() {
        let messages = take(
            json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
        );
        assert_eq!(
            messages,
            Ok(vec![json!({"role": "user", "content": "a\nb"})])
        );
    }

    #[test]
    fn refusals_point_at_the_member() {
        for (messages, param) in [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!(null), "messages"),
            (json!([3]), "messages[0]"),
            (
                json!([{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]),
                "messages[1].role",
            ),
            (json!([{"role": "user"}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": 3}]),
                "messages[0].content",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "messages[0].content[0].type",
            ),
            (json!([{"content": "a"}]), "messages[0].role"),
        ] {
            match take(messages) {
                Err(ApiError::InvalidField { param: got, .. }) => assert_eq!(got, param),
                other => panic!("{param}: {other:?}"),
            }
        }
    }

    #[test]
    fn arguments_of_past_calls_become_objects() {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}});
        let messages = take(json!([{"role": "assistant", "content": null, "tool_calls": [call]}]))
            .expect("valid");
        assert_eq!(
            messages[0]["tool_calls"][0]["function"]["arguments"],
            json!({"x": 1})
        );
        assert_eq!(messages[0]["content"], "");
    }

    #[test]
    fn developer_is_system() {
        let messages = take(json!([{"role": "developer", "content": "a"}])).expect("valid");
        assert_eq!(messages[0]["role"], "system");
    }
}
