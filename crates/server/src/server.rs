//! The server as its owner sees it: made from a model's text side and a ring client, served on a listener, drained on request.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use izar_transport::TransportError;
use izar_transport::client::RingClient;

use crate::admission::Admission;
use crate::answer::unix_seconds;
use crate::api::Limits;
use crate::app::{self, App, ServedModel};
use crate::auth::ApiKeys;
use crate::constrain::{Grammars, MaskWorkers};
use crate::cors::Cors;
use crate::drain::Drain;
use crate::error::ApiError;
use crate::ids::IdSource;
use crate::listener::{Connection, Io, Listener};
use crate::metrics::Metrics;
use crate::stats::{self, Source, Stats};
use crate::trace::{Exporter, TraceOptions, Tracer};

/// A connection that sends no request for so long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// For what is left to do once draining is over: the last bytes, the last traces.
const GOODBYE_TIME: Duration = Duration::from_secs(2);

/// What an operator may choose.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Keys that open the API; none, and it is open to all.
    pub api_keys: Vec<String>,
    /// Largest request body, bytes.
    pub max_body_bytes: usize,
    /// Most messages of a conversation.
    pub max_messages: usize,
    /// Most requests that generate at once; none is no limit. Further ones are refused.
    pub max_concurrent_requests: Option<usize>,
    /// Most sequences that wait for the engine beside those it can run; none: until the ring is full. Further ones are refused.
    pub max_queued_sequences: Option<usize>,
    /// How long a request may take from arrival to its last token; none: as long as it likes.
    pub request_timeout: Option<Duration>,
    /// Pages of other origins that may call the API; none: no page may.
    pub cors: Option<Cors>,
    /// Where traces go; none are made without.
    pub traces: Option<TraceOptions>,
    /// Whether requests may bring chat templates of their own.
    pub trust_request_chat_template: bool,
    /// Whether the page is served at `/`.
    pub page: bool,
    /// Makes the seeds of unseeded requests follow their order of arrival; none, and they are random.
    pub seed: Option<u64>,
    /// How long answers may take to end once the server shuts down.
    pub shutdown_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            max_body_bytes: 16 << 20,
            max_messages: 4096,
            max_concurrent_requests: None,
            max_queued_sequences: None,
            request_timeout: None,
            cors: None,
            traces: None,
            trust_request_chat_template: false,
            page: true,
            seed: None,
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

/// An OpenAI-compatible server in front of one ring.
pub struct Server {
    app: Arc<App>,
    exporter: Option<Exporter>,
    shutdown_timeout: Duration,
}

impl Server {
    /// A server for `model`, whose engine is behind `client`. Limits are read from the ring once.
    ///
    /// # Errors
    /// Where the ring cannot be read.
    ///
    /// # Panics
    /// Where `model` has no name.
    pub fn new(
        model: ServedModel,
        client: Arc<RingClient>,
        options: ServerOptions,
    ) -> Result<Self, TransportError> {
        assert!(!model.names.is_empty(), "a served model has a name");
        let engine = client.engine_status()?;
        let limits = Limits {
            vocab_size: engine.vocab_size,
            max_model_len: engine.max_model_len as usize,
            max_sequences: client.stats().num_slots as usize,
            defaults: model.defaults,
        };
        let grammars = Grammars::new(
            Arc::clone(&model.tokenizer),
            limits.vocab_size,
            model.eos_token_ids.clone(),
        );
        let (tracer, exporter) = options.traces.map(Tracer::new).unzip();
        let keys = ApiKeys::new(options.api_keys);
        let metrics = Arc::new(Metrics::new(engine.max_model_len));
        let drain = Arc::new(Drain::new(options.max_concurrent_requests));
        let stats = Stats::new(Source {
            client: Arc::clone(&client),
            metrics: Arc::clone(&metrics),
            drain: Arc::clone(&drain),
            about: stats::about(&model, &engine, !keys.are_none()),
        });
        let app = App {
            model,
            created: unix_seconds(),
            grammars: Arc::new(grammars),
            mask_workers: MaskWorkers::default(),
            limits,
            client,
            metrics,
            stats: Arc::new(stats),
            ids: IdSource::new(options.seed),
            keys,
            drain,
            admission: Arc::new(Admission::new(
                engine.max_num_seqs as usize,
                options.max_queued_sequences,
            )),
            tracer: tracer.map(Arc::new),
            max_body_bytes: options.max_body_bytes,
            max_messages: options.max_messages,
            request_timeout: options.request_timeout,
            cors: options.cors,
            trust_request_chat_template: options.trust_request_chat_template,
            serves_page: options.page,
        };
        Ok(Self {
            app: Arc::new(app),
            exporter,
            shutdown_timeout: options.shutdown_timeout,
        })
    }

    /// What the handlers share.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    /// All paths, for a caller that serves them itself.
    pub fn router(&self) -> Router {
        app::router(Arc::clone(&self.app))
    }

    /// Serves until `shutdown` resolves, then drains: new requests get 503 while those in flight end, for at most the shutdown timeout;
    /// then those left are told so and cut off.
    pub async fn serve(
        mut self,
        listener: impl Into<Listener>,
        shutdown: impl Future<Output = ()>,
    ) {
        let listener = listener.into();
        let exporting = self.exporter.take().map(|it| tokio::spawn(it.run()));
        let (router, connections) = (self.router(), GracefulShutdown::new());
        let accepting = accept_all(&listener, |connection| {
            serve_connection(connection, router.clone(), connections.watcher())
        });
        let draining = async {
            shutdown.await;
            self.drain().await;
        };
        tokio::select! {
            () = accepting => {}
            () = draining => {}
        }
        drop(listener);
        if tokio::time::timeout(GOODBYE_TIME, connections.shutdown())
            .await
            .is_err()
        {
            tracing::debug!("connections are closed before their clients have read everything");
        }
        if let (Some(tracer), Some(exporting)) = (&self.app.tracer, exporting) {
            // What cannot be exported in time is lost.
            let _ = tokio::time::timeout(GOODBYE_TIME, tracer.flush()).await;
            exporting.abort();
        }
    }

    async fn drain(&self) {
        let drain = &self.app.drain;
        drain.begin();
        // Those who watch do not keep the server from leaving.
        self.app.stats.end();
        tracing::info!(in_flight = drain.in_flight(), "draining");
        let idle = tokio::time::timeout(self.shutdown_timeout, drain.wait_idle());
        if idle.await.is_err() {
            tracing::warn!(
                in_flight = drain.in_flight(),
                "shutdown timeout: answers are cut off"
            );
            // Streams end with an error event, and the rest with a 503.
            self.app.client.close();
            let _ = tokio::time::timeout(GOODBYE_TIME, drain.wait_idle()).await;
        }
    }
}

/// Answers every request on `listener` with 503 until `loaded` resolves: for the time before there is a [`Server`].
///
/// A connection carries one request. Those that were accepted before `loaded` still get their answer afterwards, so that no
/// client is cut off when the listener changes hands.
pub async fn refuse_while_loading(listener: impl Into<Listener>, loaded: impl Future<Output = ()>) {
    let listener = listener.into();
    let router = Router::new().fallback(async || ApiError::EngineUnavailable {
        reason: "it is still loading",
    });
    tokio::select! {
        () = loaded => {}
        () = accept_all(&listener, |connection| refuse_once(connection, router.clone())) => {}
    }
}

/// Accepts connections for ever and spawns `serve` for each.
async fn accept_all<F: Future<Output = ()> + Send + 'static>(
    listener: &Listener,
    serve: impl Fn(Connection) -> F,
) {
    loop {
        match listener.accept().await {
            Ok(connection) => drop(tokio::spawn(serve(connection))),
            Err(error) => {
                // Out of descriptors, say: that passes.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_connection(connection: Connection, router: Router, watcher: Watcher) {
    let Some(io) = open(connection).await else {
        return;
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(served).await {
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn refuse_once(connection: Connection, router: Router) {
    let Some(io) = open(connection).await else {
        return;
    };
    let served = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(10))
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        tracing::debug!(%error, "a client left before its answer");
    }
}

/// Shakes hands, which a client may not take for ever over.
async fn open(connection: Connection) -> Option<Box<dyn Io>> {
    match tokio::time::timeout(Duration::from_secs(10), connection.open()).await {
        Ok(Ok(io)) => Some(io),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a client and this server did not come to terms");
            None
        }
        Err(_) => None,
    }
}
