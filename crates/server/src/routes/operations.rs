//! For operators: `GET /health`, `GET /metrics`, `GET /version`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use izar_transport::client::EngineHealth;
use serde_json::json;

use super::json;
use crate::answer::of_health;
use crate::app::App;
use crate::error::ApiError;
use crate::metrics::{EngineSnapshot, Gauges, render};

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
    let stats = app.client.stats();
    let mut gauges = Gauges {
        ring_slots_in_use: stats.slots_in_use.into(),
        ring_slots: stats.num_slots.into(),
        requests_in_flight: app.drain.in_flight() as u64,
        ..Gauges::default()
    };
    if let Ok(status) = app.client.engine_status() {
        let engine = &status.stats;
        gauges.engine_up = status.health == EngineHealth::Ready;
        gauges.engine = EngineSnapshot {
            num_running: engine.num_running,
            num_waiting: engine.num_waiting,
            kv_cache_usage: engine.kv_blocks_owned as f64 / f64::from(status.num_kv_blocks.max(1)),
            prefix_cache_queries: engine.prefix_query_tokens,
            prefix_cache_hits: engine.prefix_hit_tokens,
            num_preemptions: engine.num_preemptions,
            num_kv_blocks: status.num_kv_blocks.into(),
            block_size: status.block_size.into(),
        };
    }
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

/// The server's version.
pub async fn version() -> Response {
    json(
        json!({"version": env!("CARGO_PKG_VERSION")})
            .to_string()
            .into(),
    )
}
