//! A server in front of a mock engine, and its answers read to their end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use izar_server::{Server, ServerOptions};
use izar_transport::client::RingClient;
use izar_transport::mock_engine::{MockEngine, MockOptions, Reply};
use serde_json::{Value, json};
use tower::ServiceExt;
use tower::util::Oneshot;

pub use crate::support::{IM_END, IM_START, MAX_MODEL_LEN, answering, server};

/// A server and its engine.
pub struct Harness {
    pub router: Router,
    pub client: Arc<RingClient>,
    engine: Option<MockEngine>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The error's member `name`, after checking the shape that every error has.
    pub fn error(&self, name: &str) -> Value {
        let body = self.json();
        let error = body["error"]
            .as_object()
            .unwrap_or_else(|| panic!("not an error: {}", self.text));
        let members: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(members.len(), 4, "{members:?}");
        assert!(
            error["message"].is_string() && error["type"].is_string() && self.text.len() < 4096
        );
        assert_eq!(self.headers["content-type"], "application/json");
        error[name].clone()
    }

    /// The chunks of a stream; it must end with `[DONE]`.
    pub fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        assert_eq!(
            self.headers["content-type"],
            "text/event-stream; charset=utf-8"
        );
        let mut events: Vec<&str> = self.text.split("\n\n").collect();
        assert_eq!(
            events.pop(),
            Some(""),
            "the last event ends with a blank line"
        );
        assert_eq!(events.pop(), Some("data: [DONE]"));
        events
            .iter()
            .map(|event| {
                serde_json::from_str(event.strip_prefix("data: ").expect("data")).expect("JSON")
            })
            .collect()
    }
}

/// `text`, a token a byte, and the end of sequence.
pub fn tokens_of(text: impl AsRef<[u8]>) -> Vec<u32> {
    text.as_ref()
        .iter()
        .map(|&byte| byte.into())
        .chain([IM_END])
        .collect()
}

/// A mock that answers every request with `text`.
pub fn saying(text: &'static str) -> MockOptions {
    answering(move |_| Reply::tokens(tokens_of(text)))
}

impl Harness {
    /// A chat that is streamed, its first chunk read.
    pub async fn begin_stream(&self) -> Body {
        let response = self.post_chat(json!({"stream": true})).await;
        let mut body = response.expect("infallible").into_body();
        body.frame().await.expect("a frame").expect("a first chunk");
        body
    }

    /// A chat that is sent once the answer is awaited; `extra` is merged into its body.
    pub fn post_chat(&self, extra: Value) -> Oneshot<Router, Request<Body>> {
        let body = Body::from(chat_body(extra));
        let request = Request::post("/v1/chat/completions").body(body);
        let request = request.expect("a request");
        self.router.clone().oneshot(request)
    }

    pub fn new(mock: MockOptions) -> Self {
        Self::with(mock, ServerOptions::default())
    }

    pub fn with(mock: MockOptions, options: ServerOptions) -> Self {
        let (server, client, engine) = server(mock, options);
        Self::around(&server, client, engine)
    }

    pub fn around(server: &Server, client: Arc<RingClient>, engine: MockEngine) -> Self {
        Self {
            router: server.router(),
            client,
            engine: Some(engine),
        }
    }

    /// Ends the engine as an operator would.
    pub fn stop_engine(&mut self) {
        drop(self.engine.take());
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self
            .router
            .clone()
            .oneshot(request)
            .await
            .expect("infallible");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a whole body").to_bytes();
        let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
        Answer {
            status: parts.status,
            headers: parts.headers,
            text,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).expect("a request"))
            .await
    }

    pub async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.send(
            Request::builder()
                .method(Method::POST)
                .uri(path)
                .body(body.into())
                .expect("a request"),
        )
        .await
    }

    /// One user message with further members in `extra`.
    pub async fn chat(&self, extra: Value) -> Answer {
        self.post("/v1/chat/completions", chat_body(extra)).await
    }

    pub async fn complete(&self, extra: Value) -> Answer {
        let body = merged(json!({"prompt": "Once", "max_tokens": 64}), extra);
        self.post("/v1/completions", body.to_string()).await
    }

    /// A sample of `/metrics`, summed over labels.
    pub async fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").await.text;
        let samples = page
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' '));
        samples
            .map(|(_, value)| value.parse::<f64>().expect("a number"))
            .sum()
    }

    /// Waits until nothing is left in the ring.
    pub async fn until_idle(&self) {
        for _ in 0..1000 {
            if self.client.stats().slots_in_use == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{:?}", self.client.stats());
    }
}

pub fn chat_body(extra: Value) -> String {
    merged(
        json!({"model": "mock", "messages": [{"role": "user", "content": "Hi"}]}),
        extra,
    )
    .to_string()
}

fn merged(mut body: Value, extra: Value) -> Value {
    for (name, value) in extra.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}
