//! `POST /v1/chat/completions`, and what else is made of a conversation.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use izar_tokenizer::{ChatEncoder, ChatError, ChatOptions, ChatTemplate, EncodedChat, RenderError};
use serde_json::Value;

use super::{prepare, read_body, respond};
use crate::answer::{Order, PromptTokens, compile_format, submit};
use crate::api::{ChatRequest, TemplateRequest, ToolChoice, ToolsRequest};
use crate::app::App;
use crate::constrain::{Format, FormatRequest};
use crate::error::ApiError;
use crate::message::{Begins, ExpectedCalls, MessageFormat, PromptEnd, ToolFormat};
use crate::output::head::Shape;

/// Answers a conversation.
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
    order_of(app, ChatRequest::parse(body, &app.limits)?)
}

/// What is wanted of the engine for a conversation.
pub fn order_of(app: &App, request: ChatRequest) -> Result<Order, ApiError> {
    let model = app.resolve_model(request.model)?;
    let (messages, template) = (&request.messages, &request.template);
    let prompt = encode(app, messages, &request.tools.tools, template)?;
    let last = messages.last().unwrap_or(&Value::Null);
    let end = if template.continue_final_message {
        PromptEnd::of_continued(last["content"].as_str().unwrap_or(""))
    } else {
        PromptEnd::of_prompt(&prompt.text)
    };
    let begins = app.model.reasoning_format.map(|format| format.begins(end));
    let mut sampling = request.sampling;
    if let Some(calls) = demanded_calls(&request.tools) {
        sampling.format = Some(calls);
    }
    sampling.format = sampling.format.map(|format| match begins {
        Some(begins) if end != PromptEnd::Answering => after_reasoning(format, begins),
        _ => format,
    });
    let goes_on = last["role"] == "assistant" || !template.add_generation_prompt;
    let echo = last["content"].as_str().filter(|_| request.echo && goes_on);
    Ok(Order {
        shape: Shape::Chat,
        model,
        prompts: vec![PromptTokens {
            ids: prompt.ids,
            echo: echo.map(str::to_owned),
        }],
        max_tokens: request.max_tokens,
        logprobs: request.logprobs,
        continuation: template.continue_final_message,
        format: MessageFormat {
            reasoning: begins,
            calls: expected_calls(app, &request.tools)?,
        },
        hide_reasoning: !request.include_reasoning,
        sampling,
        stream: request.stream,
        constraint: None,
    })
}

/// What an answer must look like where calls are demanded: any model's, whether or not it was made for tools.
fn demanded_calls(tools: &ToolsRequest) -> Option<FormatRequest> {
    let schema = match &tools.choice {
        ToolChoice::None | ToolChoice::Auto => return None,
        ToolChoice::Required => tools.schema_of_calls(),
        ToolChoice::Named(name) => tools.parameters_of(name),
    };
    Some(FormatRequest {
        format: Format::JsonSchema(schema),
        param: "tools".to_owned(),
    })
}

/// A model that thinks may do so before it answers as it must.
fn after_reasoning(request: FormatRequest, begins: Begins) -> FormatRequest {
    FormatRequest {
        format: Format::AfterReasoning {
            is_optional: begins == Begins::Open,
            answer: Box::new(request.format),
        },
        ..request
    }
}

/// Which calls the answer may hold.
fn expected_calls(app: &App, tools: &ToolsRequest) -> Result<Option<ExpectedCalls>, ApiError> {
    let written = |format| ExpectedCalls::Written {
        format,
        names: tools.names().map(str::to_owned).collect(),
        parallel: tools.parallel,
    };
    Ok(match (&tools.choice, app.model.tool_format) {
        (ToolChoice::None, _) => None,
        (ToolChoice::Auto, Some(format)) => Some(written(format)),
        (ToolChoice::Auto, None) => {
            return Err(ApiError::field(
                "tools",
                "cannot be called by the model's choice: its chat template does not tell how it writes calls; \
                 start the server with --tool-call-parser",
            ));
        }
        (ToolChoice::Required, _) => Some(written(ToolFormat::BareList)),
        (ToolChoice::Named(name), _) => Some(ExpectedCalls::ArgumentsOf(name.clone())),
    })
}

/// Renders and encodes a conversation.
pub fn encode(
    app: &App,
    messages: &[Value],
    tools: &[Value],
    request: &TemplateRequest,
) -> Result<EncodedChat, ApiError> {
    if messages.len() > app.max_messages {
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
        tools: (!tools.is_empty()).then_some(tools),
        documents: request.documents.as_deref(),
        add_generation_prompt: request.add_generation_prompt,
        continue_final_message: request.continue_final_message,
        kwargs: Some(&request.kwargs),
        ..ChatOptions::default()
    };
    let encoded = match request.chat_template.as_deref() {
        None => encoder.encode(messages, &options),
        Some(name) if encoder.template().names().any(|known| known == name) => {
            let template_name = Some(name);
            encoder.encode(
                messages,
                &ChatOptions {
                    template_name,
                    ..options
                },
            )
        }
        Some(source) => {
            encoder.encode_with(&own_template(app, encoder, source)?, messages, &options)
        }
    };
    encoded.map_err(refusal)
}

/// A template that came with the request.
fn own_template(app: &App, encoder: &ChatEncoder, source: &str) -> Result<ChatTemplate, ApiError> {
    if !app.trust_request_chat_template {
        return Err(ApiError::field(
            "chat_template",
            "must be absent or the name of one of the model's templates: \
             this server was started without --trust-request-chat-template",
        ));
    }
    let special_tokens = encoder.template().special_tokens().clone();
    ChatTemplate::new(source, special_tokens)
        .map_err(|_| ApiError::field("chat_template", "is not a valid Jinja template"))
}

fn refusal(error: ChatError) -> ApiError {
    match error {
        ChatError::Render(RenderError::CannotContinue(why)) => {
            ApiError::field("continue_final_message", format!("cannot be used: {why}"))
        }
        ChatError::Render(error) => ApiError::TemplateRefused {
            reason: error.to_string(),
        },
        ChatError::Encode(_) => {
            ApiError::field("messages", "cannot be encoded with this model's vocabulary")
        }
    }
}
