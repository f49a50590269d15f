//! For operators: `GET /health` and `/ready`, `GET /metrics`, `GET /version`, `GET /openapi.json`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use izar_transport::client::EngineHealth;
use serde_json::json;

use super::json;
use crate::answer::of_health;
use crate::app::App;
use crate::error::ApiError;
use crate::metrics::{Gauges, render};

/// 200 while a request would be taken; 503 while the engine loads, after it failed or fell silent, and while draining.
pub async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    if app.drain.is_draining() {
        return Err(ApiError::Draining);
    }
    match app
        .client
        .engine_status()
        .map_err(|error| crate::answer::of_request(&error.into()))?
        .health
    {
        EngineHealth::Ready => Ok(json(json!({"status": "ok"}).to_string().into())),
        health => Err(of_health(health)),
    }
}

/// Everything that is counted, for Prometheus.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    let gauges = Gauges::read(&app.client, app.drain.in_flight());
    let page = render(&app.metrics, &gauges, &app.model.names[0]);
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        page,
    )
        .into_response()
}

/// What every endpoint takes and gives, as an OpenAPI document.
pub async fn openapi() -> Response {
    json(Body::from(include_str!("../../openapi.json")))
}

/// The server's version.
pub async fn version() -> Response {
    json(
        json!({"version": env!("CARGO_PKG_VERSION")})
            .to_string()
            .into(),
    )
}
