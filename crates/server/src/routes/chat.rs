//! `POST /v1/chat/completions`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use izar_tokenizer::{ChatError, ChatOptions, RenderError};
use serde_json::{Map, Value};

use super::{prepare, read_body, respond};
use crate::answer::{Order, PromptTokens, submit};
use crate::api::ChatRequest;
use crate::app::App;
use crate::error::ApiError;
use crate::output::head::Shape;

/// Answers a conversation.
pub async fn create(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let arrival = Instant::now();
    let in_flight = app.drain.enter()?;
    let body = read_body(&app, body).await?;
    let order = prepare(&app, body, order).await?;
    let stream = order.stream;
    respond(submit(&app, order, arrival, in_flight)?, stream).await
}

pub(crate) fn order(app: &App, body: &[u8]) -> Result<Order, ApiError> {
    let request = ChatRequest::parse(body, &app.limits)?;
    let model = app.resolve_model(request.model)?;
    let chat = Conversation {
        messages: &request.messages,
        tools: &request.tools,
        add_generation_prompt: request.add_generation_prompt,
        continue_final_message: request.continue_final_message,
        template_kwargs: &request.template_kwargs,
    };
    let ids = encode(app, &chat)?;
    Ok(Order {
        shape: Shape::Chat,
        model,
        prompts: vec![PromptTokens { ids, echo: None }],
        max_tokens: request.max_tokens,
        logprobs: request.logprobs,
        continuation: request.continue_final_message,
        sampling: request.sampling,
        stream: request.stream,
    })
}

/// What a chat template is given.
pub struct Conversation<'a> {
    /// The messages.
    pub messages: &'a [Value],
    /// Tools to list; may be empty.
    pub tools: &'a [Value],
    /// Whether the prompt ends where an answer begins.
    pub add_generation_prompt: bool,
    /// Whether the answer continues the last message.
    pub continue_final_message: bool,
    /// Further variables.
    pub template_kwargs: &'a Map<String, Value>,
}

/// Renders and encodes a conversation.
pub fn encode(app: &App, chat: &Conversation<'_>) -> Result<Vec<u32>, ApiError> {
    if chat.messages.len() > app.max_messages {
        return Err(ApiError::field(
            "messages",
            format!("must hold at most {} messages", app.max_messages),
        ));
    }
    let Some(encoder) = &app.model.chat else {
        return Err(ApiError::TemplateRefused {
            reason: "this model has no chat template; use /v1/completions, or start the server with --chat-template".to_owned(),
        });
    };
    let options = ChatOptions {
        tools: (!chat.tools.is_empty()).then_some(chat.tools),
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        kwargs: Some(chat.template_kwargs),
        ..ChatOptions::default()
    };
    match encoder.encode(chat.messages, &options) {
        Ok(encoded) => Ok(encoded.ids),
        Err(ChatError::Render(RenderError::CannotContinue(why))) => Err(ApiError::field(
            "continue_final_message",
            format!("cannot be used: {why}"),
        )),
        Err(ChatError::Render(error)) => Err(ApiError::TemplateRefused {
            reason: error.to_string(),
        }),
        Err(ChatError::Encode(_)) => Err(ApiError::field(
            "messages",
            "cannot be encoded with this model's vocabulary",
        )),
    }
}
