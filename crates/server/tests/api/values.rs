//! Every field against every value that it may not have: a 400 that names it, at once, and the next request works.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use izar_transport::mock_engine::Reply;
use serde_json::{Value, json};

use crate::common::{Answer, Harness, answering, saying, tokens_of};

/// Longest that a refusal may take on a slow and busy machine, in a build that is not optimised.
const AT_ONCE: Duration = Duration::from_secs(2);

const OVERFLOWING_SEED: &str = "18446744073709551616";

/// Values of a type that no numeric field has.
fn no_numbers() -> Vec<Value> {
    vec![
        json!("1"),
        json!("inf"),
        json!("NaN"),
        json!("-Infinity"),
        json!(""),
        json!(true),
        json!([]),
        json!([1]),
        json!({}),
        json!({"a": 1}),
    ]
}

/// For each field that both endpoints share, values just outside and far outside of what it may hold.
fn shared() -> Vec<(&'static str, Vec<Value>)> {
    let outside = |values: Value| -> Vec<Value> {
        let mut all = values.as_array().expect("a list").clone();
        all.extend(no_numbers());
        all
    };
    let no_bool = || vec![json!(0), json!(1), json!("true"), json!([]), json!({})];
    let no_ids = || {
        vec![
            json!([258]),
            json!([-1]),
            json!([1.5]),
            json!(["1"]),
            json!([[1]]),
            json!([null]),
            json!([4_294_967_296_u64]),
            json!(1),
            json!("1"),
            json!(true),
            json!({"1": 1}),
        ]
    };
    vec![
        (
            "temperature",
            outside(json!([-0.001, 2.001, 999_999, -1e300, 1e300])),
        ),
        ("top_p", outside(json!([-1, -1e-9, 1.000_001, 1e300]))),
        ("min_p", outside(json!([-1, -1e-9, 1.000_001]))),
        ("top_k", outside(json!([-2, 1.5, 2_147_483_648_u64, 1e300]))),
        ("presence_penalty", outside(json!([-2.001, 2.001, 1e300]))),
        ("frequency_penalty", outside(json!([-2.001, 2.001, 1e300]))),
        (
            "repetition_penalty",
            outside(json!([0, -1, 1e-300, 101, 1e300])),
        ),
        ("seed", outside(json!([1.5, 1e30, -1e30]))),
        ("n", outside(json!([0, -1, 129, 1_000_000, 1.5, 1e300]))),
        (
            "max_tokens",
            outside(json!([-1, 1.5, 4_294_967_296_u64, 1e300])),
        ),
        (
            "min_tokens",
            outside(json!([-1, 1.5, 4_294_967_296_u64, 600])),
        ),
        (
            "priority",
            outside(json!([1.5, 2_147_483_648_u64, -2_147_483_649_i64])),
        ),
        (
            "logit_bias",
            vec![
                json!({"258": 1}),
                json!({"-1": 1}),
                json!({"a": 1}),
                json!({"": 1}),
                json!({"1.0": 1}),
                json!({"1": 101}),
                json!({"1": -101}),
                json!({"1": "1"}),
                json!({"1": null}),
                json!({"4294967297": 1}),
                json!([1]),
                json!(1),
                json!("1"),
                json!(true),
            ],
        ),
        ("stop_token_ids", no_ids()),
        ("allowed_token_ids", [no_ids(), vec![json!([])]].concat()),
        (
            "stop",
            vec![
                json!(1),
                json!(true),
                json!({}),
                json!([1]),
                json!(["a", null]),
                json!([["a"]]),
                json!(vec!["a"; 65]),
                json!("a".repeat(4097)),
            ],
        ),
        (
            "bad_words",
            vec![
                json!(1),
                json!([1]),
                json!([""]),
                json!({}),
                json!(vec!["a"; 1025]),
            ],
        ),
        ("ignore_eos", no_bool()),
        ("skip_special_tokens", no_bool()),
        ("include_stop_str_in_output", no_bool()),
        ("return_token_ids", no_bool()),
        ("stream", no_bool()),
        (
            "stream_options",
            vec![
                json!({"include_usage": true}),
                json!({}),
                json!(1),
                json!([]),
            ],
        ),
        ("model", vec![json!(1), json!([]), json!({}), json!(true)]),
    ]
}

fn chats() -> Vec<(&'static str, Vec<Value>)> {
    vec![
        ("max_tokens", vec![json!(0)]),
        (
            "max_completion_tokens",
            vec![json!(0), json!(-1), json!("1"), json!(1.5)],
        ),
        ("logprobs", vec![json!(1), json!("true"), json!([])]),
        (
            "messages",
            vec![json!([]), json!({}), json!("a"), json!(1), json!(true)],
        ),
        (
            "chat_template_kwargs",
            vec![json!([]), json!(1), json!("a")],
        ),
        ("add_generation_prompt", vec![json!(1), json!("a")]),
        ("continue_final_message", vec![json!(1), json!("a")]),
        ("tools", vec![json!(1), json!("a"), json!({}), json!([1])]),
    ]
}

fn completions() -> Vec<(&'static str, Vec<Value>)> {
    vec![
        ("max_tokens", vec![json!(0)]),
        (
            "logprobs",
            vec![json!(21), json!(-1), json!(true), json!("1"), json!(1.5)],
        ),
        (
            "prompt",
            vec![
                json!([]),
                json!([[]]),
                json!([258]),
                json!([[1], [258]]),
                json!([-1]),
                json!([1.5]),
                json!({}),
                json!(1),
                json!(true),
                json!(["a", 1]),
                json!([1, "a"]),
                json!([[1], "a"]),
                json!([null]),
                json!(""),
                json!(["a", ""]),
                json!(vec!["a"; 100_000]),
                json!(vec![[1]; 100_000]),
            ],
        ),
        ("echo", vec![json!(1), json!("true")]),
        ("suffix", vec![json!("a"), json!(1), json!([])]),
        (
            "best_of",
            vec![json!(0), json!(2), json!("1"), json!(1_000_000)],
        ),
    ]
}

async fn ask(harness: &Harness, is_chat: bool, body: Value) -> Answer {
    match is_chat {
        true => harness.chat(body).await,
        false => harness.complete(body).await,
    }
}

async fn check_refused(harness: &Harness, is_chat: bool, name: &str, value: &Value) {
    let begun = Instant::now();
    let answer = ask(harness, is_chat, json!({ name: value })).await;
    let mut shown = value.to_string();
    shown.truncate(80);
    assert_eq!(
        answer.status,
        StatusCode::BAD_REQUEST,
        "{name} = {shown}: {}",
        answer.text
    );
    assert_eq!(
        answer.error("param"),
        name,
        "{name} = {shown}: {}",
        answer.text
    );
    let message = answer.error("message");
    assert!(
        message.as_str().is_some_and(|text| text.contains(name)),
        "{message}"
    );
    assert!(
        begun.elapsed() < AT_ONCE,
        "{name} = {shown}: {:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn every_value_that_a_field_may_not_have_is_a_400_that_names_it() {
    let harness = Harness::new(saying("ok"));
    for (is_chat, own) in [(true, chats()), (false, completions())] {
        for (name, values) in shared().into_iter().chain(own) {
            for value in values {
                check_refused(&harness, is_chat, name, &value).await;
            }
            let next = ask(&harness, is_chat, json!({})).await;
            assert_eq!(next.status, StatusCode::OK, "after {name}");
        }
    }
    harness.until_idle().await;
}

#[tokio::test]
async fn fields_that_need_another_are_refused_by_name() {
    let harness = Harness::new(saying("ok"));
    for (body, param) in [
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (
            json!({"logprobs": true, "top_logprobs": -1}),
            "top_logprobs",
        ),
        (
            json!({"logprobs": true, "top_logprobs": "2"}),
            "top_logprobs",
        ),
        (json!({"max_tokens": 5, "min_tokens": 6}), "min_tokens"),
        (
            json!({"stream": false, "stream_options": {}}),
            "stream_options",
        ),
    ] {
        let answer = harness.chat(body.clone()).await;
        assert_eq!(
            (answer.status, answer.error("param")),
            (StatusCode::BAD_REQUEST, param.into()),
            "{body}"
        );
    }
}

#[tokio::test]
async fn numbers_that_json_has_no_value_for_are_malformed_or_refused() {
    let harness = Harness::new(saying("ok"));
    for field in [
        "temperature",
        "top_p",
        "seed",
        "n",
        "max_tokens",
        "logit_bias",
    ] {
        for literal in [
            "NaN",
            "Infinity",
            "-Infinity",
            "inf",
            "1e400",
            "-1e400",
            "0x10",
            "1.",
            "+1",
            OVERFLOWING_SEED,
        ] {
            let body = format!(r#"{{"prompt":"a","{field}":{literal}}}"#);
            let answer = harness.post("/v1/completions", body).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{field} {literal}");
            assert!(answer.error("message").is_string());
        }
    }
    assert_eq!(harness.complete(json!({})).await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_ends_of_every_range_are_inside_it() {
    let harness = Harness::new(saying("ok"));
    for body in [
        json!({"temperature": 0}),
        json!({"temperature": 2}),
        json!({"temperature": 1e-300}),
        json!({"top_p": 0}),
        json!({"top_p": 1e-300}),
        json!({"top_p": 1}),
        json!({"min_p": 0}),
        json!({"min_p": 1}),
        json!({"top_k": -1}),
        json!({"top_k": 0}),
        json!({"top_k": 2_147_483_647}),
        json!({"presence_penalty": -2}),
        json!({"frequency_penalty": 2.0}),
        json!({"repetition_penalty": 100}),
        json!({"seed": u64::MAX}),
        json!({"seed": i64::MIN}),
        json!({"n": 128}),
        json!({"n": 2.0}),
        json!({"max_tokens": 1}),
        json!({"min_tokens": 0}),
        json!({"logit_bias": {"257": -100, "0": 100}}),
        json!({"logit_bias": {}}),
        json!({"stop_token_ids": []}),
        json!({"stop_token_ids": [0, 257]}),
        json!({"stop": vec!["a"; 64]}),
        json!({"priority": i32::MIN}),
        json!({"bad_words": []}),
    ] {
        for is_chat in [true, false] {
            let answer = ask(&harness, is_chat, body.clone()).await;
            assert_eq!(answer.status, StatusCode::OK, "{body}: {}", answer.text);
        }
    }
}

#[tokio::test]
async fn null_in_any_field_of_any_endpoint_is_absence() {
    let harness = Harness::new(answering(|_| Reply::tokens(tokens_of("ok"))));
    for (is_chat, own) in [(true, chats()), (false, completions())] {
        let plain = ask(&harness, is_chat, json!({})).await.json();
        let names = shared().into_iter().chain(own).map(|(name, _)| name);
        let mut all = json!({});
        for name in names.filter(|name| !matches!(*name, "messages" | "prompt")) {
            all[name] = Value::Null;
            let answer = ask(&harness, is_chat, json!({ name: null })).await;
            assert_eq!(answer.status, StatusCode::OK, "{name}: {}", answer.text);
            assert_eq!(answer.json()["choices"], plain["choices"], "{name}");
        }
        assert_eq!(
            ask(&harness, is_chat, all).await.json()["choices"],
            plain["choices"]
        );
    }
}

#[tokio::test]
async fn no_tokens_are_refused_for_chat_and_for_an_echo_they_are_the_prompt_alone() {
    let harness = Harness::new(saying("never"));
    for stream in [false, true] {
        let refused = harness
            .chat(json!({"max_tokens": 0, "stream": stream}))
            .await;
        assert_eq!(refused.error("param"), "max_tokens");
        for prompt in [json!("Once"), json!([79, 110, 99, 101])] {
            let body = json!({"prompt": prompt, "echo": true, "max_tokens": 0, "stream": stream});
            let answer = harness.complete(body).await;
            let text = match stream {
                true => answer
                    .chunks()
                    .iter()
                    .filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned))
                    .collect(),
                false => answer.json()["choices"][0]["text"]
                    .as_str()
                    .expect("a text")
                    .to_owned(),
            };
            assert_eq!(text, "Once");
        }
    }
    assert_eq!(
        harness.client.stats().num_submitted,
        0,
        "the engine heard nothing"
    );
}
