//! Requests as clients may send them: parsed, checked and named after their fields. Nothing here knows the engine or the tokenizer.

mod chat;
mod completion;
mod format;
mod messages;
mod responses;
mod sampling;
mod tools;

pub use chat::{ChatRequest, TemplateRequest};
pub use completion::{CompletionRequest, Prompt};
pub use messages::take_messages;
pub use responses::ResponsesRequest;
pub use sampling::{SamplingDefaults, SamplingRequest, StreamRequest};
pub use tools::{ToolChoice, ToolsRequest};

use crate::error::ApiError;
use crate::fields::Fields;

/// What requests are checked against.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Most tokens a sequence may have, prompt and output.
    pub max_model_len: usize,
    /// Most sequences one request may start: prompts times `n`.
    pub max_sequences: usize,
    /// What parameters are where a request says nothing.
    pub defaults: SamplingDefaults,
}

/// Most `logprobs` / `top_logprobs`, as OpenAI's chat API has it.
pub const MAX_LOGPROBS: i64 = 20;

/// Refuses `name` where it is set to anything but what changes nothing.
fn refuse_unless(
    fields: &mut Fields,
    name: &str,
    harmless: &[serde_json::Value],
    problem: &str,
) -> Result<(), ApiError> {
    match fields.take(name) {
        Some(value) if !harmless.contains(&value) => Err(fields.error(name, problem)),
        _ => Ok(()),
    }
}
