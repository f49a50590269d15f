//! The server as its owner sees it: made from a model's text side and a ring client, served on a listener, drained on request.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use izar_transport::TransportError;
use izar_transport::client::RingClient;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::answer::unix_seconds;
use crate::api::Limits;
use crate::app::{self, App, ServedModel};
use crate::auth::ApiKeys;
use crate::drain::Drain;
use crate::error::ApiError;
use crate::ids::IdSource;
use crate::metrics::Metrics;

/// What an operator may choose.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Keys that open the API; none, and it is open to all.
    pub api_keys: Vec<String>,
    /// Largest request body, bytes.
    pub max_body_bytes: usize,
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
            seed: None,
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

/// An OpenAI-compatible server in front of one ring.
pub struct Server {
    app: Arc<App>,
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
        let app = App {
            model,
            created: unix_seconds(),
            limits,
            client,
            metrics: Arc::new(Metrics::default()),
            ids: IdSource::new(options.seed),
            keys: ApiKeys::new(options.api_keys),
            drain: Arc::new(Drain::default()),
            max_body_bytes: options.max_body_bytes,
        };
        Ok(Self {
            app: Arc::new(app),
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

    /// Serves until `shutdown` resolves, then drains: new requests get 503 while those in flight end, for at most the shutdown timeout.
    ///
    /// # Errors
    /// Where the listener fails.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> std::io::Result<()> {
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "a connection keeps Nagle's algorithm: its tokens may come late");
            }
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = axum::serve(listener, self.router()).with_graceful_shutdown(async {
            let _ = stopped.await;
        });
        let draining = async {
            shutdown.await;
            self.drain().await;
            // Where the receiver is gone, the server has ended by itself.
            let _ = stop.send(());
            tokio::time::sleep(self.shutdown_timeout.min(Duration::from_secs(2))).await;
        };
        tokio::select! {
            result = serving => result,
            () = draining => Ok(()),
        }
    }

    async fn drain(&self) {
        let drain = &self.app.drain;
        drain.begin();
        tracing::info!(in_flight = drain.in_flight(), "draining");
        if tokio::time::timeout(self.shutdown_timeout, drain.wait_idle())
            .await
            .is_err()
        {
            tracing::warn!(
                in_flight = drain.in_flight(),
                "shutdown timeout: answers are cut off"
            );
        }
    }
}

/// Answers every request on `listener` with 503 until `loaded` resolves: for the time before there is a [`Server`].
///
/// A connection carries one request. Those that were accepted before `loaded` still get their answer afterwards, so that no
/// client is cut off when the listener changes hands.
pub async fn refuse_while_loading(listener: TcpListener, loaded: impl Future<Output = ()>) {
    let router = Router::new().fallback(async || ApiError::EngineUnavailable {
        reason: "it is still loading",
    });
    tokio::pin!(loaded);
    loop {
        let accepted = tokio::select! {
            () = &mut loaded => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((connection, _)) => drop(tokio::spawn(answer_one(connection, router.clone()))),
            Err(error) => {
                // Out of descriptors, say: that passes.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer_one(connection: TcpStream, router: Router) {
    let served = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(10))
        .serve_connection(TokioIo::new(connection), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        tracing::debug!(%error, "a client left before its answer");
    }
}
