//! What all handlers share, and which path leads to which of them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use izar_tokenizer::{ChatEncoder, Tokenizer};
use izar_transport::client::RingClient;

use crate::admission::Admission;
use crate::api::{Limits, SamplingDefaults};
use crate::auth::ApiKeys;
use crate::constrain::{Grammars, MaskWorkers};
use crate::cors::Cors;
use crate::drain::Drain;
use crate::error::ApiError;
use crate::exchange;
use crate::ids::IdSource;
use crate::message::{ReasoningFormat, ToolFormat};
use crate::metrics::Metrics;
use crate::routes::{chat, completions, models, operations, page, responses, stats, tokens};
use crate::stats::Stats;
use crate::trace::Tracer;

/// The model as the front end knows it: its names and its text side. Never its weights.
pub struct ServedModel {
    /// Names clients may use; the first is the one that is told. At least one.
    pub names: Vec<String>,
    /// Where it was loaded from, for `/v1/models`.
    pub root: String,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Chats to prompts; without one, chat is refused.
    pub chat: Option<ChatEncoder>,
    /// How the model writes tool calls; none, and they are not found in its text.
    pub tool_format: Option<ToolFormat>,
    /// How the model writes its reasoning; none, and it is not split off.
    pub reasoning_format: Option<ReasoningFormat>,
    /// Every token that ends a sequence: of the configuration, the generation configuration and the tokenizer.
    pub eos_token_ids: Vec<u32>,
    /// Sampling where a request says nothing.
    pub defaults: SamplingDefaults,
}

/// The state of the server.
pub struct App {
    pub(crate) model: ServedModel,
    pub(crate) created: u64,
    pub(crate) limits: Limits,
    pub(crate) grammars: Arc<Grammars>,
    pub(crate) mask_workers: MaskWorkers,
    pub(crate) client: Arc<RingClient>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) ids: IdSource,
    pub(crate) keys: ApiKeys,
    pub(crate) drain: Arc<Drain>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) tracer: Option<Arc<Tracer>>,
    pub(crate) max_body_bytes: usize,
    pub(crate) max_messages: usize,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) cors: Option<Cors>,
    pub(crate) trust_request_chat_template: bool,
    pub(crate) serves_page: bool,
}

impl App {
    /// The name an answer carries.
    ///
    /// # Errors
    /// [`ApiError::UnknownModel`] where the client asked for another model.
    pub(crate) fn resolve_model(&self, asked: Option<String>) -> Result<String, ApiError> {
        match asked {
            None => Ok(self.model.names[0].clone()),
            Some(name) if self.model.names.contains(&name) => Ok(name),
            Some(_) => Err(ApiError::UnknownModel {
                served: self.model.names.join(", "),
            }),
        }
    }
}

/// All paths. What reads or makes tokens needs a key where there are keys, and so does watching; health, metrics, the version and the page's files do
/// not.
pub(crate) fn router(app: Arc<App>) -> Router {
    let keyed = Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::retrieve))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/izar/stats", get(stats::watch))
        .route_layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            require_key,
        ));
    let router = Router::new()
        .merge(keyed)
        .route("/health", get(operations::health))
        .route("/ready", get(operations::health))
        .route("/metrics", get(operations::metrics))
        .route("/version", get(operations::version))
        .route("/openapi.json", get(operations::openapi))
        .fallback(async || ApiError::NoSuchEndpoint)
        .method_not_allowed_fallback(async || ApiError::MethodNotAllowed);
    let router = if app.serves_page {
        router
            .route("/", get(page::index))
            .route("/ui/{*path}", get(page::file))
    } else {
        router
    };
    // Outside of the keys: a browser's preflight carries none.
    let router = match &app.cors {
        Some(cors) => router.layer(cors.layer()),
        None => router,
    };
    router
        .layer(middleware::from_fn_with_state(
            Arc::clone(&app),
            exchange::observe,
        ))
        .with_state(app)
}

async fn require_key(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if app.keys.admit(request.headers()) {
        Ok(next.run(request).await)
    } else {
        Err(ApiError::Unauthorized)
    }
}
