//! `POST /v1/responses`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;

use super::{chat, events, json, prepare, read_body};
use crate::answer::{Order, compile_format, submit};
use crate::api::ResponsesRequest;
use crate::app::App;
use crate::error::ApiError;
use crate::output::head::Shape;

/// Answers a conversation, in OpenAI's newer form. Nothing is kept: a client that goes on sends all turns again.
pub async fn create(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let arrival = Instant::now();
    let in_flight = app.drain.enter()?;
    let body = read_body(&app, body).await?;
    let (order, echo) = prepare(&app, body, order).await?;
    let order = compile_format(&app, order).await?;
    let stream = order.stream.stream;
    let answer = submit(&app, order, arrival, in_flight)?;
    Ok(if stream {
        events(Body::new(answer.stream_response(echo).await?))
    } else {
        json(Body::from(answer.whole_response(echo).await?))
    })
}

type Echo = serde_json::Map<String, serde_json::Value>;

pub(crate) fn order(app: &App, body: &[u8]) -> Result<(Order, Echo), ApiError> {
    let ResponsesRequest { chat, echo } = ResponsesRequest::parse(body, &app.limits)?;
    let order = chat::order_of(app, chat).map_err(ResponsesRequest::rename)?;
    let shape = Shape::Response;
    Ok((Order { shape, ..order }, echo))
}
