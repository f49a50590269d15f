//! `POST /v1/completions`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use izar_tokenizer::EncodeOptions;

use super::{prepare, read_body, respond};
use crate::answer::{Order, PromptTokens, compile_format, submit};
use crate::api::{CompletionRequest, Prompt};
use crate::app::App;
use crate::error::ApiError;
use crate::message::MessageFormat;
use crate::output::head::Shape;

/// Continues texts.
pub async fn create(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let arrival = Instant::now();
    let in_flight = app.drain.enter()?;
    let body = read_body(&app, body).await?;
    let order = prepare(&app, body, order).await?;
    let order = compile_format(&app, order).await?;
    let stream = order.stream;
    respond(submit(&app, order, arrival, in_flight)?, stream).await
}

pub(crate) fn order(app: &App, body: &[u8]) -> Result<Order, ApiError> {
    let request = CompletionRequest::parse(body, &app.limits)?;
    let model = app.resolve_model(request.model)?;
    let options = EncodeOptions {
        add_special: request.add_special_tokens,
        parse_special: true,
    };
    let prompts = request
        .prompts
        .into_iter()
        .map(|prompt| encode(app, prompt, options, request.echo))
        .collect::<Result<_, _>>()?;
    Ok(Order {
        shape: Shape::Completion,
        model,
        prompts,
        max_tokens: Some(request.max_tokens),
        logprobs: request.logprobs,
        continuation: true,
        format: MessageFormat::default(),
        hide_reasoning: false,
        sampling: request.sampling,
        stream: request.stream,
        constraint: None,
    })
}

fn encode(
    app: &App,
    prompt: Prompt,
    options: EncodeOptions,
    echo: bool,
) -> Result<PromptTokens, ApiError> {
    let tokenizer = &app.model.tokenizer;
    match prompt {
        Prompt::Text(text) => {
            let unencodable =
                |_| ApiError::field("prompt", "cannot be encoded with this model's vocabulary");
            let ids = tokenizer.encode(&text, options).map_err(unencodable)?;
            Ok(PromptTokens {
                ids,
                echo: echo.then_some(text),
            })
        }
        Prompt::Ids(ids) => {
            let echo = echo.then(|| tokenizer.decode(&ids, true));
            Ok(PromptTokens { ids, echo })
        }
    }
}
