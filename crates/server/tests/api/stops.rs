//! Stop strings and stop tokens as a client sees them: nothing of a match leaks, nothing but the beginning of one is held back.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use izar_transport::mock_engine::{MockOptions, Reply, ReplyEnd};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::common::{Harness, IM_END, answering, tokens_of};

/// Says `text` and then neither goes on nor ends.
fn hanging(text: &'static str) -> MockOptions {
    answering(move |_| Reply {
        end: ReplyEnd::Hang,
        ..Reply::tokens(text.bytes().map(u32::from).collect::<Vec<_>>())
    })
}

/// What a stream says before it falls silent.
async fn said_before_silence(harness: &Harness, stop: &Value) -> String {
    let body = json!({"prompt": "a", "max_tokens": 64, "stream": true, "stop": stop});
    let request = Request::post("/v1/completions")
        .body(Body::from(body.to_string()))
        .expect("a request");
    // Where all is held back, not even the head comes.
    let silence = Duration::from_millis(150);
    let sent = tokio::time::timeout(silence, harness.router.clone().oneshot(request)).await;
    let Ok(response) = sent else {
        return String::new();
    };
    let mut body = response.expect("infallible").into_body();
    let mut events = Vec::new();
    while let Ok(Some(frame)) = tokio::time::timeout(silence, body.frame()).await {
        events.extend(frame.expect("infallible").into_data().expect("data"));
    }
    let events = String::from_utf8(events).expect("UTF-8");
    let chunks = events
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("data"))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
    chunks
        .map(|chunk| {
            chunk["choices"][0]["text"]
                .as_str()
                .unwrap_or("")
                .to_owned()
        })
        .collect()
}

#[tokio::test]
async fn only_what_could_become_a_stop_string_is_held_back_and_only_as_long_as_it_could() {
    for (text, stop, visible) in [
        ("one ST", json!("STOP"), "one "),
        ("one STO", json!(["STOP", "TOX"]), "one "),
        ("one STx", json!("STOP"), "one STx"),
        ("one S", json!(["STOP", "xx"]), "one "),
        ("one", json!("STOP"), "one"),
        ("aab", json!("aabaac"), ""),
        ("aabaab", json!("aabaac"), "aab"),
        ("日", json!("日本"), ""),
        ("日x", json!("日本"), "日x"),
        ("one\n", json!("\n\n"), "one"),
        ("one\n", json!([]), "one\n"),
        ("one\n", json!(""), "one\n"),
        ("one\n", json!(null), "one\n"),
        ("a\u{e9}", json!("\u{e8}"), "a\u{e9}"),
    ] {
        let harness = Harness::new(hanging(text));
        assert_eq!(
            said_before_silence(&harness, &stop).await,
            visible,
            "{text:?} with {stop}"
        );
    }
}

#[tokio::test]
async fn every_form_of_no_stop_string_leaves_the_text_alone() {
    let harness = Harness::new(answering(|_| Reply::tokens(tokens_of("some text\n\n"))));
    for stop in [
        json!(null),
        json!(""),
        json!([]),
        json!([""]),
        json!(["", ""]),
    ] {
        for is_chat in [true, false] {
            let request = json!({"stop": stop});
            let text = match is_chat {
                true => {
                    harness.chat(request).await.json()["choices"][0]["message"]["content"].clone()
                }
                false => harness.complete(request).await.json()["choices"][0]["text"].clone(),
            };
            assert_eq!(text, "some text\n\n", "{stop}");
        }
    }
    let answer = harness.complete(json!({"stop": ["", "text"]})).await.json();
    assert_eq!(answer["choices"][0]["text"], "some ");
}

#[tokio::test]
async fn the_match_that_completes_first_ends_the_answer_whatever_the_order_of_the_list() {
    let harness = Harness::new(answering(|_| Reply::tokens(tokens_of("xabcabd"))));
    for (stops, text, reason) in [
        (json!(["abd", "abc"]), "x", "abc"),
        (json!(["abc", "abd"]), "x", "abc"),
        (json!(["bcabd", "ca"]), "xab", "ca"),
        (json!(["b", "ab"]), "x", "ab"),
        (json!(["ab", "b"]), "x", "ab"),
        (json!(["d", "nothing"]), "xabcab", "d"),
    ] {
        for include in [false, true] {
            let request = json!({"stop": stops, "include_stop_str_in_output": include});
            let choice = harness.complete(request).await.json()["choices"][0].clone();
            let expected = if include {
                format!("{text}{reason}")
            } else {
                text.to_owned()
            };
            assert_eq!(
                (
                    &choice["text"],
                    &choice["stop_reason"],
                    &choice["finish_reason"]
                ),
                (&json!(expected), &json!(reason), &json!("stop")),
                "{stops}"
            );
        }
    }
}

#[tokio::test]
async fn nothing_stops_an_answer_before_min_tokens_and_anything_may_after_it() {
    let harness = Harness::new(answering(|_| Reply {
        end: ReplyEnd::Length,
        ..Reply::tokens("abababababab".bytes().map(u32::from).collect::<Vec<_>>())
    }));
    for stopping in [json!({"stop": "b"}), json!({"stop_token_ids": [98]})] {
        for min_tokens in 0..8 {
            let mut request = stopping.clone();
            request["min_tokens"] = min_tokens.into();
            request["max_tokens"] = 12.into();
            // A prompt of many tokens does not count.
            for prompt in ["a", "many tokens before the answer"] {
                request["prompt"] = prompt.into();
                let answer = harness.complete(request.clone()).await.json();
                // The first `b` at a position after the minimum: every second token is one.
                let num_tokens = min_tokens / 2 * 2 + 2;
                assert_eq!(
                    answer["usage"]["completion_tokens"], num_tokens,
                    "{request}"
                );
                assert_eq!(
                    answer["choices"][0]["text"],
                    "abababababab"[..num_tokens - 1]
                );
                assert_eq!(answer["choices"][0]["finish_reason"], "stop");
            }
        }
    }
}

#[tokio::test]
async fn ignored_ends_of_sequence_are_tokens_like_others_up_to_exactly_the_limit() {
    let said = [IM_END, 97, IM_END, IM_END, 98, IM_END, 99, IM_END];
    let harness = Harness::new(answering(move |_| Reply {
        end: ReplyEnd::Length,
        ..Reply::tokens(said)
    }));
    for max_tokens in 1..=said.len() {
        for min_tokens in [0, max_tokens] {
            let request = json!({"ignore_eos": true, "max_tokens": max_tokens,
                "min_tokens": min_tokens, "return_token_ids": true});
            let answer = harness.complete(request).await.json();
            let choice = &answer["choices"][0];
            assert_eq!(choice["token_ids"], json!(said[..max_tokens]));
            assert_eq!(choice["finish_reason"], "length");
            assert_eq!(answer["usage"]["completion_tokens"], max_tokens);
        }
    }
    let stopped = harness
        .complete(json!({"max_tokens": 8, "min_tokens": 2}))
        .await;
    assert_eq!(stopped.json()["usage"]["completion_tokens"], 3);
}
