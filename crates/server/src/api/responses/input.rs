//! `input` and `instructions`: items to messages.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;

/// Takes both and returns the messages of a chat, still to be checked as such.
pub fn take_messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(text) = fields.take_string("instructions")? {
        messages.push(json!({"role": "system", "content": text}));
    }
    match fields.take("input") {
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) if !items.is_empty() => {
            for (idx, item) in items.into_iter().enumerate() {
                add_item(&mut messages, item, format!("input[{idx}]"))?;
            }
        }
        _ => {
            return Err(fields.error("input", "must be a string or a list of at least one item"));
        }
    }
    Ok(messages)
}

fn add_item(messages: &mut Vec<Value>, item: Value, path: String) -> Result<(), ApiError> {
    let mut fields = Fields::nested(item, path)?;
    match fields.take_string("type")?.as_deref() {
        None | Some("message") => add_message(messages, &mut fields)?,
        Some("function_call") => add_call(messages, &mut fields)?,
        Some("function_call_output") => {
            let id = take_required(&mut fields, "call_id")?;
            let content = take_content(&mut fields, "output")?;
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
        Some("reasoning") => {
            let parts = [fields.take("content"), fields.take("summary")];
            let texts = parts.iter().flatten().map(texts_of);
            if let Some(text) = texts.into_iter().find(|text| !text.is_empty()) {
                messages
                    .push(json!({"role": "assistant", "content": null, "reasoning_content": text}));
            }
        }
        Some(_) => {
            return Err(fields.error(
                "type",
                "must be `message`, `function_call`, `function_call_output` or `reasoning`",
            ));
        }
    }
    for name in ["id", "status"] {
        fields.take(name);
    }
    fields.finish();
    Ok(())
}

/// A message; one of the assistant goes on with the reasoning before it.
fn add_message(messages: &mut Vec<Value>, fields: &mut Fields) -> Result<(), ApiError> {
    let role = take_required(fields, "role")?;
    if !matches!(role.as_str(), "system" | "developer" | "user" | "assistant") {
        return Err(fields.error("role", "must be one of system, developer, user, assistant"));
    }
    let content = take_content(fields, "content")?;
    match messages.last_mut() {
        Some(last) if role == "assistant" && is_bare_reasoning(last) => last["content"] = content,
        _ => messages.push(json!({"role": role, "content": content})),
    }
    Ok(())
}

/// A call belongs to the assistant's message before it.
fn add_call(messages: &mut Vec<Value>, fields: &mut Fields) -> Result<(), ApiError> {
    let (id, name) = (
        take_required(fields, "call_id")?,
        take_required(fields, "name")?,
    );
    let arguments = fields.take_string("arguments")?.unwrap_or_default();
    let call =
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    if messages
        .last()
        .is_none_or(|last| last["role"] != "assistant")
    {
        messages.push(json!({"role": "assistant", "content": null}));
    }
    if let Some(last) = messages.last_mut() {
        match &mut last["tool_calls"] {
            Value::Array(calls) => calls.push(call),
            calls => *calls = json!([call]),
        }
    }
    Ok(())
}

fn is_bare_reasoning(message: &Value) -> bool {
    message["content"].is_null()
        && message["reasoning_content"].is_string()
        && message["tool_calls"].is_null()
}

fn take_required(fields: &mut Fields, name: &str) -> Result<String, ApiError> {
    fields
        .take_string(name)?
        .ok_or_else(|| fields.error(name, "must be a string"))
}

/// A string, or parts of text, which become a chat's.
fn take_content(fields: &mut Fields, name: &str) -> Result<Value, ApiError> {
    let path = fields.path_of(name);
    match fields.take(name) {
        Some(Value::String(text)) => Ok(text.into()),
        Some(Value::Array(parts)) => parts
            .into_iter()
            .enumerate()
            .map(|(idx, part)| text_part(part, format!("{path}[{idx}]")))
            .collect::<Result<Vec<_>, _>>()
            .map(Value::Array),
        _ => Err(fields.error(name, "must be a string or a list of text parts")),
    }
}

fn text_part(part: Value, path: String) -> Result<Value, ApiError> {
    let mut fields = Fields::nested(part, path)?;
    let name = match fields.take_string("type")?.as_deref() {
        Some("input_text" | "output_text" | "text") => "text",
        Some("refusal") => "refusal",
        _ => {
            return Err(fields.error(
                "type",
                "must be `input_text` or `output_text`: this server takes text alone",
            ));
        }
    };
    let text = take_required(&mut fields, name)?;
    Ok(json!({"type": "text", "text": text}))
}

/// The texts of a list of parts, a line each.
fn texts_of(parts: &Value) -> String {
    let parts = parts.as_array().into_iter().flatten();
    let texts: Vec<&str> = parts.filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(input: Value) -> Vec<Value> {
        let body = json!({"input": input}).to_string();
        take_messages(&mut Fields::parse(body.as_bytes()).expect("JSON")).expect("valid")
    }

    #[test]
    fn turns_given_inline_become_the_messages_they_were() {
        let got = messages(json!([
            {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "look"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"a\":1}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sun"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
            {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
        ]));
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let text = |text: &str| json!([{"type": "text", "text": text}]);
        assert_eq!(
            got,
            [
                json!({"role": "user", "content": text("weather?")}),
                json!({"role": "assistant", "content": text("I look."), "reasoning_content": "look",
                    "tool_calls": [call("c1", "f", "{}"), call("c2", "g", "{\"a\":1}")]}),
                json!({"role": "tool", "tool_call_id": "c1", "content": "sun"}),
                json!({"role": "tool", "tool_call_id": "c2", "content": text("rain")}),
                json!({"role": "assistant", "content": null, "tool_calls": [call("c3", "f", "{}")]}),
            ]
        );
    }

    #[test]
    fn summary_stands_in_for_reasoning_that_is_not_there() {
        let got = messages(json!([
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "looked"}]},
            {"role": "assistant", "content": "Sun."},
        ]));
        assert_eq!(
            got,
            [json!({"role": "assistant", "content": "Sun.", "reasoning_content": "looked"})]
        );
    }
}
