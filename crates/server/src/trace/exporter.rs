//! Sends ended spans to the collector, in batches, from a task of its own.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::http::{Request, Uri, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::otlp::{Span, body};
use super::{Message, TraceOptions};

/// A batch is sent when it has this many spans, …
const BATCH_SPANS: usize = 512;
/// … or this long after its first.
const BATCH_TIME: Duration = Duration::from_secs(1);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Failures are reported at most so often.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Where a collector takes traces over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorUrl {
    host: String,
    port: u16,
    path: String,
}

/// Not a URL of a collector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectorUrlError {
    /// It cannot be read.
    #[error("it must be a URL such as http://localhost:4318/v1/traces")]
    Malformed,
    /// TLS or gRPC is asked for.
    #[error(
        "only http:// is spoken, to a collector near by (OTLP over HTTP, port 4318 by convention)"
    )]
    Scheme,
}

impl FromStr for CollectorUrl {
    type Err = CollectorUrlError;

    /// `http://HOST[:PORT][/PATH]`; 4318 and `/v1/traces` where they are left out.
    fn from_str(url: &str) -> Result<Self, CollectorUrlError> {
        let uri: Uri = url.parse().map_err(|_| CollectorUrlError::Malformed)?;
        match uri.scheme_str() {
            Some("http") => {}
            Some(_) => return Err(CollectorUrlError::Scheme),
            None => return Err(CollectorUrlError::Malformed),
        }
        let host = uri.host().ok_or(CollectorUrlError::Malformed)?;
        let path = match uri.path() {
            "" | "/" => "/v1/traces",
            path => path,
        };
        Ok(Self {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(4318),
            path: path.to_owned(),
        })
    }
}

/// Why a batch was lost.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("the collector answered {0}")]
    Refused(u16),
    #[error("no answer in {EXPORT_TIMEOUT:?}")]
    TimedOut,
}

/// The task that exports spans; run it.
pub struct Exporter {
    options: TraceOptions,
    spans: mpsc::Receiver<Message>,
    num_dropped: Arc<AtomicU64>,
    reported: Option<Instant>,
}

impl Exporter {
    pub(super) fn new(
        options: TraceOptions,
        spans: mpsc::Receiver<Message>,
        num_dropped: Arc<AtomicU64>,
    ) -> Self {
        Self {
            options,
            spans,
            num_dropped,
            reported: None,
        }
    }

    /// Exports until nobody makes spans any more.
    pub async fn run(mut self) {
        while let Some(first) = self.spans.recv().await {
            let (batch, flushed) = self.collect(first).await;
            if !batch.is_empty() {
                self.export(batch).await;
            }
            if let Some(flushed) = flushed {
                // Whoever asked may have given up.
                let _ = flushed.send(());
            }
        }
    }

    /// `first` and what comes soon after it; a flush ends the batch.
    async fn collect(&mut self, first: Message) -> (Vec<Span>, Option<oneshot::Sender<()>>) {
        let until = Instant::now() + BATCH_TIME;
        let mut batch = Vec::new();
        let mut next = Some(first);
        loop {
            match next {
                Some(Message::Span(span)) => batch.push(*span),
                Some(Message::Flush(flushed)) => return (batch, Some(flushed)),
                None => return (batch, None),
            }
            if batch.len() == BATCH_SPANS {
                return (batch, None);
            }
            next = timeout_at(until, self.spans.recv()).await.ok().flatten();
        }
    }

    async fn export(&mut self, batch: Vec<Span>) {
        let num_spans = batch.len() as u64;
        let sent = timeout(EXPORT_TIMEOUT, self.post(batch)).await;
        let Err(error) = sent.unwrap_or(Err(ExportError::TimedOut)) else {
            return;
        };
        // Relaxed: a count for the log.
        let num_dropped = self.num_dropped.fetch_add(num_spans, Relaxed) + num_spans;
        if self
            .reported
            .is_none_or(|at| at.elapsed() > REPORT_INTERVAL)
        {
            self.reported = Some(Instant::now());
            tracing::warn!(%error, num_dropped, "traces are lost: the collector does not take them");
        }
    }

    async fn post(&self, batch: Vec<Span>) -> Result<(), ExportError> {
        let CollectorUrl { host, port, path } = &self.options.collector;
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), *port)).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the sender; its errors are the request's.
        let connection = tokio::spawn(connection);
        let request = Request::post(path.as_str())
            .header(header::HOST, format!("{host}:{port}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::<Bytes>::from(body(&self.options.service_name, batch)));
        let Ok(request) = request else {
            unreachable!("host and path are parts of a URL that was parsed")
        };
        let response = sender.send_request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        drop(sender);
        connection.abort();
        if status.is_success() {
            Ok(())
        } else {
            Err(ExportError::Refused(status.as_u16()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectors_are_http_urls_with_the_usual_port_and_path() {
        let url = |host: &str, port, path: &str| CollectorUrl {
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        };
        assert_eq!("http://c".parse(), Ok(url("c", 4318, "/v1/traces")));
        assert_eq!("http://c:9/t".parse(), Ok(url("c", 9, "/t")));
        assert_eq!(
            "https://c".parse::<CollectorUrl>(),
            Err(CollectorUrlError::Scheme)
        );
        assert_eq!(
            "collector".parse::<CollectorUrl>(),
            Err(CollectorUrlError::Malformed)
        );
    }
}
