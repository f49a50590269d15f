//! What operators rely on: ids, limits that refuse, time limits, health, cross-origin rules.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use izar_server::{Cors, ServerOptions};
use izar_tokenizer::{ChatEncoder, ChatTemplate, SpecialTokens};
use izar_transport::client::{ClientOptions, RingClient};
use izar_transport::mock_engine::{MockEngine, MockOptions, Reply, ReplyEnd};
use serde_json::json;
use tower::ServiceExt;

use crate::common::{Answer, Harness, IM_END, answering, chat_body, saying, tokens_of};
use crate::support::{server_over, tokenizer};

/// Answers with `text` and then nothing more.
pub fn hanging(text: &'static str) -> MockOptions {
    answering(move |_| Reply {
        end: ReplyEnd::Hang,
        ..Reply::tokens(text.bytes().map(u32::from).collect::<Vec<_>>())
    })
}

fn chat_with(headers: &[(&str, &str)], extra: serde_json::Value) -> Request<Body> {
    let mut request = Request::post("/v1/chat/completions");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(chat_body(extra).into()).expect("a request")
}

#[tokio::test]
async fn request_id_is_taken_over_returned_and_part_of_the_answers_id() {
    let harness = Harness::new(saying("ok"));
    for stream in [false, true] {
        let request = chat_with(&[("X-Request-Id", "trace-7")], json!({"stream": stream}));
        let answer = harness.send(request).await;
        assert_eq!(answer.headers["x-request-id"], "trace-7");
        assert!(
            answer.text.contains(r#""id":"chatcmpl-trace-7""#),
            "{}",
            answer.text
        );
    }
    let refused = harness
        .send(chat_with(&[("X-Request-Id", "r")], json!({"messages": []})))
        .await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.headers["x-request-id"], "r");
}

#[tokio::test]
async fn request_id_is_drawn_where_the_client_has_none_that_is_fit() {
    let harness = Harness::new(saying("ok"));
    let mut seen = std::collections::HashSet::new();
    for headers in [
        &[][..],
        &[("x-request-id", "two words")],
        &[("x-request-id", "a\"b")],
        &[("x-request-id", "")],
    ] {
        let answer = harness.send(chat_with(headers, json!({}))).await;
        let id = answer.headers["x-request-id"].to_str().expect("ASCII");
        assert!(
            id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()),
            "{id}"
        );
        assert!(seen.insert(id.to_owned()));
    }
}

/// Sends requests that hang until `expected` sequences are in the ring; they last as long as what is returned.
async fn hold(
    harness: &Harness,
    num_requests: usize,
    n: usize,
) -> Vec<axum::response::Response<Body>> {
    let mut held = Vec::new();
    for _ in 0..num_requests {
        let request = chat_with(&[], json!({"stream": true, "n": n}));
        let response = harness.router.clone().oneshot(request).await;
        held.push(response.expect("infallible"));
    }
    assert!(held.iter().all(|r| r.status() == StatusCode::OK));
    held
}

fn rejected(answer: &Answer, why: &str) {
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    let message = answer.error("message");
    assert!(message.as_str().expect("text").contains(why), "{message}");
    let retry_after = answer.headers["retry-after"].to_str().expect("ASCII");
    assert!((1..=60).contains(&retry_after.parse::<u32>().expect("seconds")));
}

#[tokio::test]
async fn queue_is_as_long_as_the_operator_says_and_no_longer() {
    let mut mock = hanging("x");
    mock.max_num_seqs = 4;
    let options = ServerOptions {
        max_queued_sequences: Some(2),
        ..ServerOptions::default()
    };
    let harness = Harness::with(mock, options);
    let held = hold(&harness, 2, 2).await;
    // Four run and hang, two more may wait: three do not fit, two do, then none.
    rejected(&harness.chat(json!({"n": 3})).await, "queue");
    let router = harness.router.clone();
    let waiting = tokio::spawn(router.oneshot(chat_with(&[], json!({"n": 2}))));
    while harness.client.stats().slots_in_use < 6 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for stream in [false, true] {
        rejected(&harness.chat(json!({"stream": stream})).await, "queue");
    }
    let sample =
        "izar:admission_rejections_total{model_name=\"mock\",engine=\"0\",reason=\"queue_full\"} 3";
    assert!(harness.get("/metrics").await.text.contains(sample));
    waiting.abort();
    drop((held, waiting));
    harness.until_idle().await;
    hold(&harness, 1, 6).await;
}

#[tokio::test]
async fn more_requests_at_once_than_allowed_are_429() {
    let options = ServerOptions {
        max_concurrent_requests: Some(2),
        ..ServerOptions::default()
    };
    let harness = Harness::with(hanging("x"), options);
    let held = hold(&harness, 2, 1).await;
    rejected(&harness.chat(json!({})).await, "too many requests at once");
    // Looking is free.
    assert_eq!(harness.get("/health").await.status, StatusCode::OK);
    assert_eq!(harness.get("/v1/models").await.status, StatusCode::OK);
    drop(held);
    harness.until_idle().await;
    hold(&harness, 2, 1).await;
}

#[tokio::test]
async fn conversation_of_too_many_messages_is_refused_by_name() {
    let options = ServerOptions {
        max_messages: 2,
        ..ServerOptions::default()
    };
    let harness = Harness::with(saying("ok"), options);
    let messages = |n: usize| json!({"messages": vec![json!({"role": "user", "content": "a"}); n]});
    assert_eq!(harness.chat(messages(2)).await.status, StatusCode::OK);
    let refused = harness.chat(messages(3)).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.error("param"), "messages");
    let body = messages(3).to_string();
    let refused = harness.post("/tokenize", body).await;
    assert_eq!(refused.error("param"), "messages");
}

#[tokio::test]
async fn request_that_takes_too_long_is_504_before_the_first_token_and_an_error_event_after_it() {
    let within = |ms| ServerOptions {
        request_timeout: Some(Duration::from_millis(ms)),
        ..ServerOptions::default()
    };
    let silent = Harness::with(hanging(""), within(50));
    for stream in [false, true] {
        let answer = silent.chat(json!({"stream": stream})).await;
        assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(answer.error("code"), "request_timeout");
    }
    silent.until_idle().await;
    // Long enough for the first token on a busy machine.
    let slow = Harness::with(hanging("abc"), within(1000));
    assert_eq!(
        slow.chat(json!({})).await.status,
        StatusCode::GATEWAY_TIMEOUT
    );
    let answer = slow.chat(json!({"stream": true})).await;
    assert_eq!(answer.status, StatusCode::OK);
    let last = answer.text.trim_end().rsplit("\n\n").next();
    assert!(
        last.is_some_and(|event| event.contains("request_timeout")),
        "{}",
        answer.text
    );
    assert!(!answer.text.contains("[DONE]"));
    assert!(!answer.text.contains(r#""finish_reason":"stop""#));
    slow.until_idle().await;
    assert_eq!(slow.metric("vllm:request_success_total").await, 2.0);
}

#[tokio::test]
async fn engine_whose_heart_stops_is_unhealthy_until_it_beats_again() {
    let (transport, engine) =
        MockEngine::in_process(&Default::default(), saying("ok")).expect("a ring");
    let options = ClientOptions {
        engine_timeout: Duration::from_millis(100),
        heartbeat_interval: Duration::from_millis(10),
        ..ClientOptions::default()
    };
    let client = Arc::new(RingClient::connect(transport, options).expect("a lease"));
    let template = ChatTemplate::new("{{ messages[0].content }}", SpecialTokens::default());
    let encoder = ChatEncoder::new(tokenizer(), template.expect("a template"));
    let server = server_over(client, encoder, vec![IM_END], ServerOptions::default());
    let router = server.router();
    let status = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = router.clone().oneshot(request).await;
        response.expect("infallible").status()
    };
    let until = async |wanted: StatusCode| {
        for _ in 0..2000 {
            if status("/health").await == wanted && status("/ready").await == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never {wanted}");
    };
    until(StatusCode::OK).await;
    engine.freeze();
    until(StatusCode::SERVICE_UNAVAILABLE).await;
    engine.thaw();
    until(StatusCode::OK).await;
    engine.drain();
    until(StatusCode::SERVICE_UNAVAILABLE).await;
}

#[tokio::test]
async fn pages_of_other_origins_are_let_in_by_name_only() {
    let from = |origin: &str| chat_with(&[("origin", origin)], json!({}));
    let closed = Harness::new(saying("ok"));
    let answer = closed.send(from("http://a")).await;
    assert!(!answer.headers.contains_key("access-control-allow-origin"));

    let any = ["*".to_owned()];
    let cors = Cors::new(&["http://a".to_owned()], &any, &any, false).expect("valid");
    let options = ServerOptions {
        api_keys: vec!["key".to_owned()],
        cors: Some(cors),
        ..ServerOptions::default()
    };
    let open = Harness::with(saying("ok"), options);
    // A preflight has no key.
    let preflight = Request::builder()
        .method(Method::OPTIONS)
        .uri("/v1/chat/completions")
        .header("origin", "http://a")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization")
        .body(Body::empty())
        .expect("a request");
    let answer = open.send(preflight).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.headers["access-control-allow-origin"], "http://a");
    let refused = open.send(from("http://a")).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert_eq!(refused.headers["access-control-allow-origin"], "http://a");
    let other = open.send(from("http://b")).await;
    assert_ne!(
        other.headers.get("access-control-allow-origin"),
        Some(&"http://b".parse().expect("a value"))
    );
}

#[tokio::test]
async fn every_origin_with_credentials_is_answered_by_its_name() {
    let any = ["*".to_owned()];
    let options = ServerOptions {
        cors: Some(Cors::new(&any, &any, &any, true).expect("valid")),
        ..ServerOptions::default()
    };
    let harness = Harness::with(saying("ok"), options);
    let answer = harness
        .send(chat_with(&[("origin", "http://a")], json!({})))
        .await;
    assert_eq!(answer.headers["access-control-allow-origin"], "http://a");
    assert_eq!(answer.headers["access-control-allow-credentials"], "true");
    assert!(Cors::new(&["\n".to_owned()], &any, &any, false).is_err());
    assert!(Cors::new(&any, &["a b".to_owned()], &any, false).is_err());
}

#[tokio::test]
async fn any_of_several_keys_opens_the_api_and_operators_need_none() {
    let options = ServerOptions {
        api_keys: vec!["first".to_owned(), "second".to_owned()],
        ..ServerOptions::default()
    };
    let harness = Harness::with(saying("ok"), options);
    for (key, status) in [
        ("Bearer first", 200),
        ("Bearer second", 200),
        ("Bearer third", 401),
        ("Bearer ", 401),
    ] {
        let answer = harness
            .send(chat_with(&[("authorization", key)], json!({})))
            .await;
        assert_eq!(answer.status.as_u16(), status, "{key}");
    }
    for path in ["/health", "/ready", "/metrics", "/version", "/openapi.json"] {
        assert_eq!(harness.get(path).await.status, StatusCode::OK, "{path}");
    }
    assert_eq!(
        harness.get("/v1/models").await.status,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn tokens_of_a_finished_answer_are_not_held_back_by_a_time_limit() {
    let options = ServerOptions {
        request_timeout: Some(Duration::from_secs(60)),
        ..ServerOptions::default()
    };
    let harness = Harness::with(
        answering(|_| Reply::tokens(tokens_of("all of it"))),
        options,
    );
    let whole = harness.chat(json!({})).await.json();
    assert_eq!(whole["choices"][0]["message"]["content"], "all of it");
    assert!(
        !harness
            .chat(json!({"stream": true}))
            .await
            .chunks()
            .is_empty()
    );
}

/// A body whose end does not come.
struct Unfinished;

impl http_body::Body for Unfinished {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

#[tokio::test]
async fn client_that_never_finishes_its_body_is_told_after_the_time_limit() {
    let options = ServerOptions {
        request_timeout: Some(Duration::from_millis(50)),
        ..ServerOptions::default()
    };
    let harness = Harness::with(saying("ok"), options);
    let answer = harness
        .post("/v1/chat/completions", Body::new(Unfinished))
        .await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(answer.error("code"), "request_timeout");
    assert_eq!(harness.metric("izar:http_requests_in_flight").await, 0.0);
}
