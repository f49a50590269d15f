//! Traces of requests, exported over OTLP (HTTP with JSON bodies) to a collector. Off unless the operator names one.
//!
//! One span for each request, under the span that the client's `traceparent` header names. A request whose caller decided not to sample is
//! not traced. Spans wait in a bounded queue for the exporter; where it is full they are dropped and counted, never waited for.
//! A collector next door is the normal case, so plain HTTP is spoken and nothing else.

mod exporter;
mod otlp;
mod parent;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use tokio::sync::{mpsc, oneshot};

use crate::ids::IdSource;
pub use exporter::{CollectorUrl, CollectorUrlError, Exporter};
use otlp::Span;
use parent::Parent;

/// Spans that may wait for the exporter.
const QUEUE_SPANS: usize = 4096;

/// Where traces go and what they are called.
#[derive(Debug, Clone)]
pub struct TraceOptions {
    /// The collector.
    pub collector: CollectorUrl,
    /// `service.name` of all spans.
    pub service_name: String,
}

enum Message {
    Span(Box<Span>),
    /// Export what there is, then answer.
    Flush(oneshot::Sender<()>),
}

/// Starts spans.
#[derive(Debug)]
pub struct Tracer {
    ids: IdSource,
    queue: mpsc::Sender<Message>,
    num_dropped: Arc<AtomicU64>,
}

impl Tracer {
    /// A tracer, and the exporter that has to be run for it.
    pub fn new(options: TraceOptions) -> (Self, Exporter) {
        let (queue, spans) = mpsc::channel(QUEUE_SPANS);
        let tracer = Self {
            ids: IdSource::new(None),
            queue,
            num_dropped: Arc::default(),
        };
        let exporter = Exporter::new(options, spans, Arc::clone(&tracer.num_dropped));
        (tracer, exporter)
    }

    /// Starts the span of a request, unless its caller decided against it.
    pub fn begin(&self, headers: &HeaderMap) -> Option<RequestSpan> {
        let parent = Parent::of(headers);
        if parent.is_some_and(|parent| !parent.sampled) {
            return None;
        }
        let [high, low] = self.ids.draw_words();
        let drawn = (u128::from(high) << 64) | u128::from(low);
        Some(RequestSpan {
            trace_id: parent.map_or(drawn, |parent| parent.trace_id),
            span_id: self.ids.draw_words()[0].max(1),
            parent_id: parent.map(|parent| parent.span_id),
            began_ns: unix_nanos(),
            queue: self.queue.clone(),
            num_dropped: Arc::clone(&self.num_dropped),
        })
    }

    /// Waits until what was ended so far is exported or given up.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.queue.send(Message::Flush(done)).await.is_ok() {
            // An exporter that is gone has nothing left to export.
            let _ = flushed.await;
        }
    }
}

/// The span of a request that is being answered.
#[derive(Debug)]
pub struct RequestSpan {
    trace_id: u128,
    span_id: u64,
    parent_id: Option<u64>,
    began_ns: u64,
    queue: mpsc::Sender<Message>,
    num_dropped: Arc<AtomicU64>,
}

/// What a request came to.
#[derive(Debug)]
pub struct Ended<'a> {
    /// The exchange's id.
    pub id: &'a str,
    /// HTTP method.
    pub method: &'a str,
    /// Path without the query.
    pub path: &'a str,
    /// HTTP status.
    pub status: u16,
    /// Whether the answer was sent to its end.
    pub whole: bool,
    /// Tokens of the prompts; 0 where nothing was generated.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// From arrival to the first token, µs.
    pub first_token_us: Option<u64>,
}

impl RequestSpan {
    /// Ends the span now and passes it to the exporter.
    pub fn end(&self, ended: &Ended<'_>) {
        let span = Span::new(self, ended, unix_nanos());
        if self.queue.try_send(Message::Span(Box::new(span))).is_err() {
            // Relaxed: a count for the log.
            self.num_dropped.fetch_add(1, Relaxed);
        }
    }
}

fn unix_nanos() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        })
}
