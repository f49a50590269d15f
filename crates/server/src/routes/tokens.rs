//! `POST /tokenize` and `POST /detokenize`, in vLLM's form.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use izar_tokenizer::EncodeOptions;
use serde_json::{Value, json};

use super::{chat, json, prepare, read_body};
use crate::api::{TemplateRequest, ToolsRequest, take_messages};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;

/// Encodes a text (`prompt`) or a conversation (`messages`).
pub async fn tokenize(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let body = read_body(&app, body).await?;
    prepare(&app, body, encoded).await
}

pub(crate) fn encoded(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    app.resolve_model(fields.take_string("model")?)?;
    let add_special = fields.take_bool("add_special_tokens")?.unwrap_or(true);
    let with_strings = fields.take_bool("return_token_strs")?.unwrap_or(false);
    let ids = match fields.take_string("prompt")? {
        Some(text) => {
            let options = EncodeOptions {
                add_special,
                parse_special: true,
            };
            let unencodable =
                |_| ApiError::field("prompt", "cannot be encoded with this model's vocabulary");
            app.model
                .tokenizer
                .encode(&text, options)
                .map_err(unencodable)?
        }
        None => encode_chat(app, &mut fields)?,
    };
    fields.finish();
    let strings = with_strings.then(|| {
        ids.iter()
            .map(|&id| String::from_utf8_lossy(app.model.tokenizer.token_bytes(id)))
            .collect::<Vec<_>>()
    });
    let answer = json!({"count": ids.len(), "max_model_len": app.limits.max_model_len, "tokens": ids, "token_strs": strings});
    Ok(json(answer.to_string().into()))
}

fn encode_chat(app: &App, fields: &mut Fields) -> Result<Vec<u32>, ApiError> {
    let messages = take_messages(fields)?;
    let tools = ToolsRequest::take(fields)?;
    let template = TemplateRequest::take(fields)?;
    Ok(chat::encode(app, &messages, &tools.tools, &template)?.ids)
}

/// Decodes ids (`tokens`), special tokens included.
pub async fn detokenize(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let body = read_body(&app, body).await?;
    prepare(&app, body, decoded).await
}

pub(crate) fn decoded(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    app.resolve_model(fields.take_string("model")?)?;
    let Some(ids) = fields.take_token_ids("tokens", app.limits.vocab_size)? else {
        return Err(fields.error("tokens", "must be a list of token ids"));
    };
    fields.finish();
    let text: Value = app.model.tokenizer.decode(&ids, false).into();
    Ok(json(json!({"prompt": text}).to_string().into()))
}
