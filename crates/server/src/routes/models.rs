//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::json;
use crate::app::App;
use crate::error::ApiError;

/// Lists every name of the served model.
pub async fn list(State(app): State<Arc<App>>) -> Response {
    let data: Vec<Value> = app
        .model
        .names
        .iter()
        .map(|name| describe(&app, name))
        .collect();
    json(json!({"object": "list", "data": data}).to_string().into())
}

/// Describes one name. A name may hold slashes.
pub async fn retrieve(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    // What is no text is no name.
    let id = id.map_or_else(|_| String::new(), |Path(id)| id);
    let name = app.resolve_model(Some(id))?;
    Ok(json(describe(&app, &name).to_string().into()))
}

fn describe(app: &App, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "izar",
        "root": app.model.root,
        "parent": null,
        "max_model_len": app.limits.max_model_len,
    })
}
