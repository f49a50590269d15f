//! Errors: plain before the first token, an event after it, always in one form, short, and silent about what was sent.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use izar_transport::client::EngineError;
use izar_transport::mock_engine::{Reply, ReplyEnd};
use serde_json::{Value, json};

use crate::common::{Answer, Harness, answering, chat_body, saying};

/// All ways in which an engine fails a sequence, and what the client is told.
const ENGINE_ERRORS: [(EngineError, u16); 8] = [
    (EngineError::NeverFits, 400),
    (EngineError::TooLong, 400),
    (EngineError::NothingAllowed, 400),
    (EngineError::NonFiniteLogits, 500),
    (EngineError::RequestChanged, 500),
    (EngineError::EngineStopping, 503),
    (EngineError::EngineFailed, 503),
    (EngineError::EngineRestarted, 503),
];

async fn ask(harness: &Harness, is_chat: bool, body: Value) -> Answer {
    match is_chat {
        true => harness.chat(body).await,
        false => harness.complete(body).await,
    }
}

#[tokio::test]
async fn every_failure_before_the_first_token_has_a_status_of_its_own_streamed_or_not() {
    for (error, status) in ENGINE_ERRORS {
        let harness = Harness::new(answering(move |_| Reply::failure(error)));
        for (is_chat, stream, n) in [
            (true, false, 1),
            (true, true, 1),
            (false, true, 3),
            (false, false, 3),
        ] {
            let answer = ask(&harness, is_chat, json!({"stream": stream, "n": n})).await;
            assert_eq!(answer.status.as_u16(), status, "{error:?}");
            assert!(answer.error("code").is_string());
        }
        harness.until_idle().await;
        assert_eq!(harness.metric("izar:http_requests_in_flight").await, 0.0);
    }
}

#[tokio::test]
async fn every_failure_after_the_first_token_ends_the_stream_with_an_error_event() {
    for (error, status) in ENGINE_ERRORS {
        let mut mock = answering(move |_| Reply {
            end: ReplyEnd::Fail(error),
            ..Reply::tokens([b'a'.into(), b'b'.into()])
        });
        mock.step_time = std::time::Duration::from_millis(5);
        let harness = Harness::new(mock);
        for (is_chat, n) in [(true, 1), (false, 1), (true, 3), (false, 3)] {
            let body = json!({"stream": true, "stream_options": {"include_usage": true}, "n": n});
            let answer = ask(&harness, is_chat, body).await;
            assert_eq!(answer.status, StatusCode::OK);
            let events: Vec<&str> = answer.text.split_terminator("\n\n").collect();
            let (last, before) = events.split_last().expect("an event");
            let last: Value =
                serde_json::from_str(last.strip_prefix("data: ").expect("data")).expect("JSON");
            assert_eq!(
                last.as_object().map(serde_json::Map::len),
                Some(1),
                "{last}"
            );
            assert!(last["error"]["message"].is_string(), "{last}");
            assert!(
                before.iter().all(|event| !event.contains("\"error\"")
                    && !event.contains("[DONE]")
                    && !event.contains("\"finish_reason\":\"")),
                "{before:?}"
            );
            let whole = ask(&harness, is_chat, json!({"n": n})).await;
            assert_eq!(whole.status.as_u16(), status, "no pretended stop");
        }
        harness.until_idle().await;
    }
}

/// A text that no answer has a reason to hold.
const MARKER: &str = "zqxj";

const FIELDS: [&str; 40] = [
    "model",
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "best_of",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stream",
    "stream_options",
    "echo",
    "suffix",
    "priority",
    "response_format",
    "structured_outputs",
    "guided_json",
    "tools",
    "tool_choice",
    "chat_template",
    "chat_template_kwargs",
    "return_token_ids",
    "skip_special_tokens",
    "truncate_prompt_tokens",
];

/// The marker, long, in every place that a value has.
fn marked() -> Vec<Value> {
    let long = MARKER.repeat(5_000);
    vec![
        json!(long),
        json!([long]),
        json!([[long]]),
        json!({ long.as_str(): 1 }),
        json!([{ long.as_str(): long }]),
        json!({"type": long, "role": long, "content": long}),
        json!([{"role": "user", "content": [{"type": long}]}]),
        json!([{"role": "user", "content": "a", "tool_calls": long}]),
        json!([{"role": long, "type": long}]),
    ]
}

#[tokio::test]
async fn no_error_repeats_what_was_sent_whatever_the_field() {
    let harness = Harness::new(saying("ok"));
    for field in FIELDS {
        for value in marked() {
            for path in ["/v1/chat/completions", "/v1/completions", "/tokenize"] {
                let mut body = json!({"max_tokens": 1});
                match path {
                    "/v1/completions" => body["prompt"] = "a".into(),
                    _ => body["messages"] = json!([{"role": "user", "content": "a"}]),
                }
                body[field] = value.clone();
                let answer = harness.post(path, body.to_string()).await;
                assert!(!answer.status.is_server_error(), "{field}: {}", answer.text);
                if answer.status != StatusCode::OK {
                    assert!(answer.error("message").is_string());
                    assert!(!answer.text.contains(MARKER), "{field}: {}", answer.text);
                }
            }
        }
    }
    let answer = harness.get(&format!("/v1/models/{MARKER}")).await;
    assert!(!answer.text.contains(MARKER), "{}", answer.text);
    assert_eq!(harness.chat(json!({})).await.status, StatusCode::OK);
}

#[tokio::test]
async fn every_refusal_of_the_http_layer_is_an_error_object_too() {
    let harness = Harness::new(saying("ok"));
    for (method, path, status) in [
        (Method::GET, "/", 404),
        (Method::GET, "/v1", 404),
        (Method::POST, "/v1/chat/completions/", 404),
        (Method::GET, "/v1/models/%FF", 404),
        (Method::GET, "/v1/models/a%00b", 404),
        (Method::GET, "/v1/models/..%2f..%2fetc", 404),
        (Method::DELETE, "/v1/models", 405),
        (Method::PUT, "/v1/completions", 405),
        (Method::GET, "/tokenize", 405),
        (Method::POST, "/health", 405),
        (Method::PATCH, "/metrics", 405),
    ] {
        let request = Request::builder().method(method.clone()).uri(path);
        let answer = harness
            .send(request.body(Body::empty()).expect("a request"))
            .await;
        if path == "/" && answer.status == StatusCode::OK {
            // A page may live there.
            continue;
        }
        assert_eq!(answer.status.as_u16(), status, "{method} {path}");
        assert!(answer.error("code").is_string(), "{method} {path}");
    }
}

#[tokio::test]
async fn a_body_of_any_content_type_is_read_as_json() {
    let harness = Harness::new(saying("ok"));
    for content_type in [
        "application/json",
        "application/json; charset=utf-8",
        "text/plain",
    ] {
        let request = Request::post("/v1/chat/completions")
            .header("content-type", content_type)
            .body(Body::from(chat_body(json!({}))));
        let answer = harness.send(request.expect("a request")).await;
        assert_eq!(answer.status, StatusCode::OK, "{content_type}");
    }
}
