//! The endpoints, a file each, and what they share: reading a body and answering.

pub mod chat;
pub mod completions;
pub mod models;
pub mod operations;
pub mod page;
pub mod responses;
pub mod stats;
pub mod tokens;

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use crate::answer::Answer;
use crate::api::StreamRequest;
use crate::app::App;
use crate::deadline::Deadline;
use crate::error::ApiError;

/// Bodies from here on are parsed and encoded away from the threads that stream.
const LARGE_BODY_BYTES: usize = 8 * 1024;

/// Reads a body up to the server's limit. Of one that is larger, some more is read and dropped: a client that is still writing
/// would not see the answer.
async fn read_body(app: &App, body: Body) -> Result<Bytes, ApiError> {
    let deadline = app
        .request_timeout
        .map(|allowed| Deadline::new(Instant::now(), allowed));
    Deadline::bound(deadline, read_up_to(app.max_body_bytes, body)).await
}

async fn read_up_to(limit_bytes: usize, body: Body) -> Result<Bytes, ApiError> {
    let mut body = body;
    let mut read = BytesMut::new();
    let mut num_bytes = 0_usize;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| ApiError::BodyUnreadable)?.into_data() else {
            continue;
        };
        num_bytes += data.len();
        if num_bytes <= limit_bytes {
            read.extend_from_slice(&data);
        } else if num_bytes > limit_bytes.saturating_mul(4) {
            break;
        }
    }
    if num_bytes > limit_bytes {
        Err(ApiError::BodyTooLarge { limit_bytes })
    } else {
        Ok(read.freeze())
    }
}

/// Runs `f` here where the body is small, and on a thread for blocking work where it is large.
async fn prepare<T: Send + 'static>(
    app: &Arc<App>,
    body: Bytes,
    f: impl FnOnce(&App, &[u8]) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if body.len() < LARGE_BODY_BYTES {
        return f(app, &body);
    }
    let app = Arc::clone(app);
    match tokio::task::spawn_blocking(move || f(&app, &body)).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Sends an answer the way the client asked for it.
async fn respond(answer: Answer, stream: StreamRequest) -> Result<Response, ApiError> {
    Ok(if stream.stream {
        events(Body::new(answer.stream(stream).await?))
    } else {
        json(Body::from(answer.whole().await?))
    })
}

fn events(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Asks nginx not to collect events.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

fn json(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
