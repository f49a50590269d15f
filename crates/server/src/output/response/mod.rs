//! Answers of `/v1/responses`: the object, and the events of a stream.

mod events;
mod items;

pub use events::ResponseEvents;
pub use items::Items;

use serde_json::{Map, Value, json};

use super::head::{Ending, Head, Usage};
use crate::error::ApiError;

/// A response between its request and its end.
#[derive(Clone)]
pub struct ResponseHead {
    /// Identity, time and model.
    pub head: Head,
    /// What the object repeats of the request: `instructions`, `tools`, `temperature`, ….
    pub echo: Map<String, Value>,
}

/// How a response stands.
#[derive(Debug, Clone, Copy)]
pub enum Status<'a> {
    /// Tokens are to come.
    InProgress,
    /// It ended like this, after so many tokens.
    Ended(&'a Ending, &'a Usage),
    /// It could not be finished.
    Failed(&'a ApiError),
}

impl Status<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Ended(ending, _) if ending.finish_reason == "length" => "incomplete",
            Self::Ended(..) => "completed",
            Self::Failed(_) => "failed",
        }
    }
}

impl ResponseHead {
    /// The object.
    pub fn json(&self, items: &Items, status: Status<'_>) -> Value {
        let name = status.name();
        let last = items.all().len().saturating_sub(1);
        let status_of = |idx: usize| match name {
            "completed" => "completed",
            _ if idx == last => "incomplete",
            _ => "completed",
        };
        let output: Vec<Value> = items
            .all()
            .iter()
            .enumerate()
            .map(|(idx, item)| item.json(&self.head.tokenizer, status_of(idx)))
            .collect();
        let mut response = json!({
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "model": self.head.model,
            "status": name,
            "error": null,
            "incomplete_details": null,
            "output": output,
            "usage": null,
        });
        match status {
            Status::InProgress => {}
            Status::Ended(_, usage) => {
                response["usage"] = usage_json(usage, items.num_reasoning_tokens);
                if name == "incomplete" {
                    response["incomplete_details"] = json!({"reason": "max_output_tokens"});
                }
            }
            Status::Failed(error) => {
                let error = &error.body()["error"];
                // OpenAI knows few codes here.
                response["error"] = json!({"code": "server_error", "message": error["message"]});
            }
        }
        if let Value::Object(members) = &mut response {
            members.extend(self.echo.clone());
        }
        response
    }
}

fn usage_json(usage: &Usage, num_reasoning_tokens: u64) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens.unwrap_or(0)},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}
