//! `GET /izar/stats`: the stream that the page watches.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;

use super::events;
use crate::app::App;
use crate::error::ApiError;

/// A snapshot of everything there is to see, then what changes.
pub async fn watch(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    // The first watcher waits for a sample, for which files are read.
    let watching = tokio::task::spawn_blocking(move || app.stats.watch());
    match watching.await {
        Ok(watcher) => Ok(events(Body::new(watcher?))),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
