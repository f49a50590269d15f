//! One HTTP exchange as operators see it: its id, and the log line written when its last byte has left.
//!
//! [`observe`] wraps every path. The id is the client's `X-Request-Id` where that is fit to be logged, else drawn; it comes back as a header
//! and is part of the answer's own id. While the handler runs, the exchange is a task-local, so that what it becomes (an answer
//! of so many tokens) can be noted without passing it through every call. The body takes the exchange along: a stream is
//! logged when it ends, whole or cut off.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::app::App;
use crate::error::Shortage;
use crate::trace::{RequestSpan, Tracer};

/// Carries the id of an exchange, both ways.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID_BYTES: usize = 128;
const MAX_PATH_BYTES: usize = 128;
/// Paths that probes and scrapers ask for all the time, and the page's own: logged at level debug.
const ROUTINE: [&str; 7] = [
    "/",
    "/izar/stats",
    "/health",
    "/ready",
    "/metrics",
    "/version",
    "/openapi.json",
];

tokio::task_local! {
    static CURRENT: Arc<Exchange>;
}

/// What is known of one exchange. Shared by the handler, the answer it makes and the body.
#[derive(Debug)]
pub struct Exchange {
    id: String,
    method: Method,
    path: String,
    began: Instant,
    span: Option<RequestSpan>,
    // Relaxed: written by whoever polls the body, read when it is gone; the task orders them.
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    first_token_us: AtomicU64,
}

impl Exchange {
    fn begin(
        request: &Request,
        drawn_id: impl FnOnce() -> String,
        tracer: Option<&Tracer>,
    ) -> Self {
        let path = request.uri().path();
        let end = (0..=path.len().min(MAX_PATH_BYTES))
            .rev()
            .find(|&at| path.is_char_boundary(at));
        Self {
            id: client_id(request.headers()).map_or_else(drawn_id, str::to_owned),
            method: request.method().clone(),
            path: path[..end.unwrap_or(0)].to_owned(),
            began: Instant::now(),
            span: tracer
                .filter(|_| !is_routine(path))
                .and_then(|tracer| tracer.begin(request.headers())),
            prompt_tokens: AtomicU64::new(0),
            completion_tokens: AtomicU64::new(0),
            first_token_us: AtomicU64::new(0),
        }
    }

    /// The exchange that the running task handles, if it handles one.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Its id: 1 to 128 letters, digits and `-_.:/+=@`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Notes how long the prompts of its answer are.
    pub fn note_prompt_tokens(&self, num_tokens: u64) {
        self.prompt_tokens.store(num_tokens, Relaxed);
    }

    /// Notes that the first token of a sequence of its answer has come.
    pub fn note_first_token(&self) {
        // At least 1: 0 is none yet.
        let now_us = micros(self.began.elapsed()).max(1);
        let _ = self
            .first_token_us
            .compare_exchange(0, now_us, Relaxed, Relaxed);
    }

    /// Notes that a sequence of its answer has ended after so many tokens.
    pub fn note_completion_tokens(&self, num_tokens: u64) {
        self.completion_tokens.fetch_add(num_tokens, Relaxed);
    }

    fn end(&self, status: StatusCode, num_bytes: u64, whole: bool) {
        let duration_us = micros(self.began.elapsed());
        let (prompt, completion, first_us) = (
            self.prompt_tokens.load(Relaxed),
            self.completion_tokens.load(Relaxed),
            self.first_token_us.load(Relaxed),
        );
        if let Some(span) = &self.span {
            span.end(&crate::trace::Ended {
                id: &self.id,
                method: self.method.as_str(),
                path: &self.path,
                status: status.as_u16(),
                whole,
                prompt_tokens: prompt,
                completion_tokens: completion,
                first_token_us: (first_us > 0).then_some(first_us),
            });
        }
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: "izar_server::access",
                    id = self.id,
                    method = %self.method,
                    path = self.path,
                    status = status.as_u16(),
                    duration_ms = duration_us as f64 / 1e3,
                    bytes = num_bytes,
                    whole,
                    prompt_tokens = prompt,
                    completion_tokens = completion,
                    ttft_ms = first_us as f64 / 1e3,
                    "request"
                )
            };
        }
        if is_routine(&self.path) {
            line!(debug);
        } else {
            line!(info);
        }
    }
}

/// Gives a request its id, counts what it came to, and logs it when its answer has been sent.
pub async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let exchange = Arc::new(Exchange::begin(
        &request,
        || app.ids.draw_id(),
        app.tracer.as_deref(),
    ));
    let mut response = CURRENT
        .scope(Arc::clone(&exchange), next.run(request))
        .await;
    if let Ok(id) = HeaderValue::from_str(exchange.id()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    if let Some(&shortage) = response.extensions().get::<Shortage>() {
        app.metrics.admission_rejections[shortage as usize].add(1);
    }
    let status = response.status();
    let class = usize::from(status.as_u16() / 100).clamp(1, 5) - 1;
    app.metrics.http_responses[class].add(1);
    response.map(|inner| {
        Body::new(Observed {
            inner,
            exchange,
            status,
            num_bytes: 0,
            ended: false,
        })
    })
}

/// A body that tells its exchange how it ended.
struct Observed {
    inner: Body,
    exchange: Arc<Exchange>,
    status: StatusCode,
    num_bytes: u64,
    ended: bool,
}

impl HttpBody for Observed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                this.num_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            Poll::Ready(None) => this.ended = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let whole = self.ended || self.inner.is_end_stream();
        // What is left of the answer notes what came of it while it goes.
        drop(std::mem::take(&mut self.inner));
        self.exchange.end(self.status, self.num_bytes, whole);
    }
}

fn is_routine(path: &str) -> bool {
    ROUTINE.contains(&path) || path.starts_with("/ui/")
}

/// The client's id, where it is short and holds nothing that could confuse a log, a header or JSON.
fn client_id(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte);
    (!id.is_empty() && id.len() <= MAX_ID_BYTES && id.bytes().all(fit)).then_some(id)
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(id: &[u8]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_bytes(id).expect("a header"));
        client_id(&headers).is_some()
    }

    #[test]
    fn ids_that_could_confuse_a_log_are_not_taken_over() {
        for fit in ["a", "req_1234-abc.5:6/7+8=@", &"x".repeat(128)] {
            assert!(accepted(fit.as_bytes()), "{fit}");
        }
        for unfit in ["", "a b", "a\"b", "a\\n", &"x".repeat(129)] {
            assert!(!accepted(unfit.as_bytes()), "{unfit}");
        }
        assert!(!accepted(b"\xe9"));
    }
}
