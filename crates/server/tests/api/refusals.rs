//! What is refused, how it is said, and that the server goes on.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use izar_server::ServerOptions;
use izar_transport::client::EngineError;
use izar_transport::mock_engine::{Reply, ReplyEnd};
use serde_json::{Value, json};

use crate::common::{Harness, MAX_MODEL_LEN, answering, chat_body, saying, tokens_of};

#[tokio::test]
async fn bad_fields_are_named_and_the_next_request_works() {
    let harness = Harness::new(saying("ok"));
    for (extra, param) in [
        (json!({"temperature": 999_999}), "temperature"),
        (json!({"top_p": -1}), "top_p"),
        (json!({"seed": 1e30}), "seed"),
        (json!({"n": 1_000_000}), "n"),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (json!({"messages": []}), "messages"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 5, "min_tokens": 6}), "min_tokens"),
        (json!({"stop_token_ids": [70_000]}), "stop_token_ids"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"stream_options": {"include_usage": true}}),
            "stream_options",
        ),
    ] {
        let answer = harness.chat(extra.clone()).await;
        assert_eq!(
            (answer.status, answer.error("param")),
            (StatusCode::BAD_REQUEST, param.into()),
            "{extra}"
        );
        assert_eq!(harness.chat(json!({})).await.status, StatusCode::OK);
    }
    assert_eq!(
        harness
            .complete(json!({"prompt": [300]}))
            .await
            .error("param"),
        "prompt"
    );
    assert_eq!(
        harness.complete(json!({"prompt": ""})).await.error("param"),
        "prompt"
    );
    assert_eq!(
        harness
            .complete(json!({"prompt": vec!["a"; 100_000]}))
            .await
            .error("param"),
        "prompt"
    );
}

#[tokio::test]
async fn bodies_that_are_not_json_objects_are_malformed() {
    let harness = Harness::new(saying("ok"));
    for body in [
        &b"{"[..],
        b"",
        b"[]",
        b"null",
        b"{\"prompt\": \"\\ud800\"}",
        b"{\"prompt\": \"\xff\"}",
        b"{\"temperature\": NaN}",
        b"{} {}",
    ] {
        let answer = harness.post("/v1/completions", body.to_vec()).await;
        assert_eq!(
            (answer.status, answer.error("code")),
            (StatusCode::BAD_REQUEST, "invalid_json".into()),
            "{body:?}"
        );
    }
}

#[tokio::test]
async fn errors_do_not_echo_the_input() {
    let harness = Harness::new(saying("ok"));
    let secret = "secret".repeat(10_000);
    for extra in [
        json!({"model": secret}),
        json!({"temperature": secret}),
        json!({"messages": secret}),
        json!({"messages": [{"role": secret}]}),
    ] {
        let answer = harness.chat(extra).await;
        assert!(
            answer.status.is_client_error() && !answer.text.contains("secret"),
            "{}",
            answer.text
        );
        assert!(answer.error("message").is_string());
    }
}

#[tokio::test]
async fn unknown_models_paths_and_methods_have_json_errors() {
    let harness = Harness::new(saying("ok"));
    let answer = harness.chat(json!({"model": "nobody"})).await;
    assert_eq!(
        (answer.status, answer.error("code")),
        (StatusCode::NOT_FOUND, "model_not_found".into())
    );
    assert_eq!(
        harness.get("/v1/models/nobody").await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        harness.get("/v1/models/other/name").await.json()["id"],
        "other/name"
    );
    assert_eq!(
        harness.get("/v1/nothing").await.error("code"),
        "unknown_url"
    );
    let answer = harness.get("/v1/chat/completions").await;
    assert_eq!(
        (answer.status, answer.error("code")),
        (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed".into())
    );
}

#[tokio::test]
async fn absent_model_is_the_served_one_and_every_name_is_answered_to() {
    let harness = Harness::new(saying("ok"));
    assert_eq!(
        harness.chat(json!({"model": null})).await.json()["model"],
        "mock"
    );
    assert_eq!(
        harness.chat(json!({"model": "other/name"})).await.json()["model"],
        "other/name"
    );
    let models = harness.get("/v1/models").await.json();
    let names: Vec<&str> = models["data"]
        .as_array()
        .expect("models")
        .iter()
        .map(|m| m["id"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["mock", "other/name"]);
    assert_eq!(models["data"][0]["max_model_len"], MAX_MODEL_LEN);
}

#[tokio::test]
async fn context_is_kept_and_both_lengths_are_named() {
    let harness = Harness::new(answering(|prompt| Reply::counting(prompt[0])));
    let limit = MAX_MODEL_LEN as usize;
    for (prompt, max_tokens) in [(limit, 1), (limit + 100, 1), (limit - 10, 11)] {
        let answer = harness
            .complete(json!({"prompt": vec![1; prompt], "max_tokens": max_tokens}))
            .await;
        assert_eq!(
            (answer.status, answer.error("code")),
            (StatusCode::BAD_REQUEST, "context_length_exceeded".into())
        );
        let message = answer.error("message").as_str().expect("text").to_owned();
        assert!(
            message.contains(&prompt.to_string()) && message.contains("512"),
            "{message}"
        );
    }
    let full = harness
        .complete(json!({"prompt": vec![1; limit - 10], "max_tokens": 10}))
        .await
        .json();
    assert_eq!(
        (
            &full["choices"][0]["finish_reason"],
            &full["usage"]["total_tokens"]
        ),
        (&json!("length"), &json!(limit))
    );
    let chat = harness.chat(json!({"ignore_eos": true})).await.json();
    assert_eq!(
        (
            &chat["choices"][0]["finish_reason"],
            &chat["usage"]["total_tokens"]
        ),
        (&json!("length"), &json!(limit))
    );
}

#[tokio::test]
async fn over_large_bodies_are_413() {
    let harness = Harness::with(
        saying("ok"),
        ServerOptions {
            max_body_bytes: 1000,
            ..ServerOptions::default()
        },
    );
    let answer = harness
        .post(
            "/v1/completions",
            json!({"prompt": "x".repeat(2000)}).to_string(),
        )
        .await;
    assert_eq!(
        (answer.status, answer.error("code")),
        (StatusCode::PAYLOAD_TOO_LARGE, "request_too_large".into())
    );
    assert_eq!(harness.complete(json!({})).await.status, StatusCode::OK);
}

#[tokio::test]
async fn templates_may_refuse_in_their_own_words() {
    let harness = Harness::new(saying("ok"));
    let answer = harness
        .chat(json!({"messages": [{"role": "function", "content": "x"}]}))
        .await;
    assert_eq!(
        (answer.status, answer.error("param")),
        (StatusCode::BAD_REQUEST, "messages".into())
    );
    assert!(
        answer
            .error("message")
            .as_str()
            .is_some_and(|message| message.contains("no functions here"))
    );
}

#[tokio::test]
async fn keys_guard_what_reads_or_makes_tokens() {
    let harness = Harness::with(
        saying("ok"),
        ServerOptions {
            api_keys: vec!["k1".into(), "k2".into()],
            ..ServerOptions::default()
        },
    );
    for path in ["/v1/models", "/v1/models/mock"] {
        let answer = harness.get(path).await;
        assert_eq!(
            (answer.status, answer.error("code")),
            (StatusCode::UNAUTHORIZED, "invalid_api_key".into())
        );
    }
    assert_eq!(
        harness.post("/tokenize", "{}").await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        harness.chat(json!({})).await.status,
        StatusCode::UNAUTHORIZED
    );
    for path in ["/health", "/metrics", "/version"] {
        assert_eq!(harness.get(path).await.status, StatusCode::OK, "{path}");
    }
    let request = Request::post("/v1/chat/completions")
        .header("authorization", "Bearer k2")
        .body(Body::from(chat_body(json!({}))));
    assert_eq!(
        harness.send(request.expect("a request")).await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn failure_before_the_first_token_is_a_plain_error_also_for_streams() {
    for (error, status) in [
        (EngineError::NeverFits, StatusCode::BAD_REQUEST),
        (
            EngineError::NonFiniteLogits,
            StatusCode::INTERNAL_SERVER_ERROR,
        ),
        (EngineError::EngineStopping, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let harness = Harness::new(answering(move |_| Reply::failure(error)));
        for stream in [false, true] {
            let answer = harness.chat(json!({"stream": stream})).await;
            assert_eq!(answer.status, status);
            assert!(answer.error("message").is_string());
        }
        harness.until_idle().await;
    }
}

#[tokio::test]
async fn failure_after_the_first_token_is_an_error_event_and_a_close() {
    let mut mock = answering(|_| Reply {
        end: ReplyEnd::Fail(EngineError::NonFiniteLogits),
        ..Reply::tokens([b'a'.into(), b'b'.into()])
    });
    mock.step_time = std::time::Duration::from_millis(20);
    let harness = Harness::new(mock);
    let answer = harness
        .chat(json!({"stream": true, "stream_options": {"include_usage": true}}))
        .await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(
        !answer.text.contains("[DONE]") && !answer.text.contains("\"stop\""),
        "{}",
        answer.text
    );
    let last = answer
        .text
        .trim_end()
        .rsplit("\n\n")
        .next()
        .and_then(|event| event.strip_prefix("data: "))
        .expect("an event");
    let last: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(last["error"]["type"], "server_error");
    assert_eq!(
        harness.chat(json!({})).await.status,
        StatusCode::INTERNAL_SERVER_ERROR
    );
    assert_eq!(harness.metric("vllm:request_success_total").await, 2.0);
}

#[tokio::test]
async fn tokenize_and_detokenize_are_inverse() {
    let harness = Harness::new(saying("ok"));
    let tokens = harness
        .post(
            "/tokenize",
            json!({"prompt": "né", "return_token_strs": true}).to_string(),
        )
        .await
        .json();
    assert_eq!(
        (&tokens["tokens"], &tokens["count"]),
        (&json!([110, 195, 169]), &json!(3))
    );
    assert_eq!(tokens["token_strs"][0], "n");
    let text = harness
        .post(
            "/detokenize",
            json!({"tokens": tokens["tokens"]}).to_string(),
        )
        .await
        .json();
    assert_eq!(text, json!({"prompt": "né"}));
    let chat = harness.post("/tokenize", chat_body(json!({}))).await.json();
    assert_eq!(
        chat["count"],
        harness.chat(json!({})).await.json()["usage"]["prompt_tokens"]
    );
    assert_eq!(
        harness
            .post("/detokenize", json!({"tokens": [1_000_000]}).to_string())
            .await
            .error("param"),
        "tokens"
    );
    assert_eq!(
        harness.post("/tokenize", "{}").await.error("param"),
        "messages"
    );
}

#[tokio::test]
async fn null_is_absence_in_every_field() {
    let harness = Harness::new(answering(|_| Reply::tokens(tokens_of("ok"))));
    let nulls: serde_json::Map<String, Value> = [
        "model",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "seed",
        "stop",
        "stop_token_ids",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "ignore_eos",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "user",
        "response_format",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "bad_words",
        "allowed_token_ids",
        "priority",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "chat_template_kwargs",
        "echo",
        "skip_special_tokens",
    ]
    .iter()
    .map(|&name| (name.to_owned(), Value::Null))
    .collect();
    let answer = harness.chat(Value::Object(nulls)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
}
