//! For operators: `GET /health` and `/ready`, `GET /metrics`, `GET /version`, `GET /openapi.json`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use izar_transport::client::{EngineHealth, EngineStatus};
use serde_json::json;

use super::json;
use crate::answer::of_health;
use crate::app::App;
use crate::error::ApiError;
use crate::metrics::{EngineSnapshot, Gauges, render};
use crate::process::ProcessStats;

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
    let mut gauges = Gauges {
        ring: app.client.stats(),
        requests_in_flight: app.drain.in_flight() as u64,
        process: ProcessStats::read(),
        ..Gauges::default()
    };
    if let Ok(status) = app.client.engine_status() {
        gauges.engine_up = status.health == EngineHealth::Ready;
        gauges.heartbeat_age_s = status.heartbeat_age.as_secs_f64();
        gauges.engine = snapshot(&status);
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

fn snapshot(status: &EngineStatus) -> EngineSnapshot {
    let engine = &status.stats;
    // An engine that has ended runs nothing, whatever it was doing when it last said so.
    let ended = matches!(
        status.health,
        EngineHealth::Stopped | EngineHealth::Failed(_)
    );
    let now = |gauge: u64| if ended { 0 } else { gauge };
    EngineSnapshot {
        num_running: now(engine.num_running),
        num_waiting: now(engine.num_waiting),
        num_kv_blocks_owned: now(engine.kv_blocks_owned),
        num_kv_blocks_cached: now(engine.kv_blocks_cached),
        prefix_cache_queries: engine.prefix_query_tokens,
        prefix_cache_hits: engine.prefix_hit_tokens,
        num_preemptions: engine.num_preemptions,
        num_kv_blocks: status.num_kv_blocks.into(),
        block_size: status.block_size.into(),
        max_num_seqs: status.max_num_seqs.into(),
        steps: status.steps,
    }
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
