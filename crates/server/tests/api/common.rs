//! A server in front of a mock engine: a real ring, scripted tokens, and a vocabulary of the 256 bytes, so that a token is a byte
//! and every text can be written token by token.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use izar_server::{SamplingDefaults, ServedModel, Server, ServerOptions};
use izar_tokenizer::{ChatEncoder, ChatTemplate, SpecialTokens, Tokenizer};
use izar_transport::client::{ClientOptions, RingClient};
use izar_transport::mock_engine::{MockEngine, MockOptions, Reply};
use serde_json::{Map, Value, json};
use tower::ServiceExt;

/// Starts a message.
pub const IM_START: u32 = 256;
/// Ends a message: the end of sequence.
pub const IM_END: u32 = 257;
/// Token ids are below this.
pub const VOCAB_SIZE: u32 = 258;
/// The context of the mock model.
pub const MAX_MODEL_LEN: u32 = 512;

const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'function' %}{{ raise_exception('no functions here') }}{% endif %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

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

/// A mock that answers a prompt by `script`.
pub fn answering(script: impl Fn(&[u32]) -> Reply + Send + Sync + 'static) -> MockOptions {
    let mut options = MockOptions::scripted(move |_, prompt| script(prompt));
    options.vocab_size = VOCAB_SIZE;
    options.max_model_len = MAX_MODEL_LEN;
    options
}

/// The 256 bytes and two control tokens.
pub fn tokenizer() -> Arc<Tokenizer> {
    let vocab: Map<String, Value> = (0..=255_u8)
        .map(|byte| (char_of(byte).to_string(), byte.into()))
        .collect();
    let added = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let definition = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(IM_START, "<|im_start|>"), added(IM_END, "<|im_end|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    Arc::new(Tokenizer::from_json(definition).expect("a valid definition"))
}

/// GPT-2's printable stand-in for a byte.
fn char_of(byte: u8) -> char {
    let stands_for_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if stands_for_itself(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|&other| !stands_for_itself(other)).count() as u32;
    char::from_u32(256 + before).expect("a letter of Latin Extended-A")
}

impl Harness {
    pub fn new(mock: MockOptions) -> Self {
        Self::with(mock, ServerOptions::default())
    }

    pub fn with(mock: MockOptions, options: ServerOptions) -> Self {
        let (server, client, engine) = server(mock, options);
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

/// A server named `mock`, not yet serving.
pub fn server(mock: MockOptions, options: ServerOptions) -> (Server, Arc<RingClient>, MockEngine) {
    let (transport, engine) = MockEngine::in_process(&Default::default(), mock).expect("a ring");
    let client =
        Arc::new(RingClient::connect(transport, ClientOptions::default()).expect("a lease"));
    let tokenizer = tokenizer();
    let template = ChatTemplate::new(TEMPLATE, SpecialTokens::default()).expect("a template");
    let model = ServedModel {
        names: vec!["mock".to_owned(), "other/name".to_owned()],
        root: "mock".to_owned(),
        tokenizer: Arc::clone(&tokenizer),
        chat: Some(ChatEncoder::new(tokenizer, template)),
        eos_token_ids: vec![IM_END],
        defaults: SamplingDefaults::default(),
    };
    (
        Server::new(model, Arc::clone(&client), options).expect("a server"),
        client,
        engine,
    )
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
