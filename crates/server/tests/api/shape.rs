//! The shape of answers, over the product of everything that changes it: endpoint, `n`, echo, usage, log probabilities, ids, limits and texts.

use std::collections::BTreeSet;

use izar_transport::mock_engine::Reply;
use serde_json::{Value, json};

use crate::common::{Harness, answering, tokens_of};

const TEXTS: [&[u8]; 7] = [
    b"",
    b"Hello!",
    "é日😀".as_bytes(),
    b"cut \xf0\x9f\x98",
    b"\xff\xfe\xe6\x97a",
    b"\"\\\n\0\x1f",
    "data: [DONE]\n\n".as_bytes(),
];

/// A request and how many choices its answer has.
struct Case {
    is_chat: bool,
    body: Value,
    num_choices: usize,
    max_tokens: usize,
}

/// Every combination.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for is_chat in [true, false] {
        for (n, with_logprobs, with_ids) in [
            (1, false, false),
            (1, true, true),
            (3, false, true),
            (3, true, false),
        ] {
            for max_tokens in [1, 2, 64] {
                let mut body =
                    json!({"n": n, "return_token_ids": with_ids, "max_tokens": max_tokens});
                if with_logprobs {
                    body["logprobs"] = if is_chat { true.into() } else { 1.into() };
                }
                if !is_chat {
                    body["prompt"] = json!(["one", "two"]);
                    body["echo"] = (n > 1 && !with_logprobs).into();
                }
                cases.push(Case {
                    is_chat,
                    body,
                    num_choices: if is_chat { n } else { 2 * n },
                    max_tokens,
                });
            }
        }
    }
    cases
}

async fn ask(harness: &Harness, case: &Case, stream: Option<Value>) -> crate::common::Answer {
    let mut body = case.body.clone();
    if let Some(options) = stream {
        body["stream"] = true.into();
        body["stream_options"] = options;
    }
    match case.is_chat {
        true => harness.chat(body).await,
        false => harness.complete(body).await,
    }
}

/// What one choice of a stream said, after checking that its chunks come in order.
fn streamed_choice(case: &Case, chunks: &[&Value]) -> (String, Value) {
    let (last, inner) = chunks.split_last().expect("at least an ending");
    for choice in inner {
        assert_eq!(choice.get("finish_reason"), Some(&Value::Null), "{choice}");
    }
    assert!(last["finish_reason"].is_string(), "{last}");
    if case.is_chat {
        assert_eq!(
            chunks[0]["delta"],
            json!({"role": "assistant", "content": ""})
        );
        assert!(
            chunks[1..]
                .iter()
                .all(|choice| choice["delta"].get("role").is_none())
        );
    }
    let text = |choice: &&Value| match case.is_chat {
        true => choice["delta"]["content"].as_str().map(str::to_owned),
        false => Some(choice["text"].as_str().expect("a text").to_owned()),
    };
    (
        chunks.iter().filter_map(text).collect(),
        last["finish_reason"].clone(),
    )
}

/// Checks a stream against the same answer as a whole.
fn check_stream(case: &Case, mut chunks: Vec<Value>, include_usage: bool, whole: &Value) {
    let head = |chunk: &Value| {
        ["id", "object", "created", "model"].map(|name| chunk[name].clone().to_string())
    };
    let heads: BTreeSet<_> = chunks.iter().map(head).collect();
    assert_eq!(heads.len(), 1, "{heads:?}");
    if include_usage {
        let last = chunks.pop().expect("a chunk of usage");
        assert_eq!(last["choices"], json!([]));
        let without_cache = |usage: &Value| {
            ["prompt_tokens", "completion_tokens", "total_tokens"].map(|n| usage[n].clone())
        };
        assert_eq!(
            without_cache(&last["usage"]),
            without_cache(&whole["usage"])
        );
        assert!(chunks.iter().all(|c| c.get("usage") == Some(&Value::Null)));
    } else {
        assert!(chunks.iter().all(|c| c.get("usage").is_none()));
    }
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["choices"].as_array().map(Vec::len) == Some(1))
    );
    for index in 0..case.num_choices {
        let own: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|choice| choice["index"] == index)
            .collect();
        let (text, reason) = streamed_choice(case, &own);
        let choice = &whole["choices"][index];
        let whole_text = match case.is_chat {
            true => &choice["message"]["content"],
            false => &choice["text"],
        };
        assert_eq!(whole_text, &json!(text), "choice {index}");
        assert_eq!(
            (&choice["index"], &choice["finish_reason"]),
            (&json!(index), &reason)
        );
    }
    let known =
        |chunk: &Value| chunk["choices"][0]["index"].as_u64() < Some(case.num_choices as u64);
    assert!(chunks.iter().all(known));
}

#[tokio::test]
async fn every_stream_has_the_shape_of_its_kind_and_says_what_the_whole_answer_says() {
    for said in TEXTS {
        let harness = Harness::new(answering(move |_| Reply::tokens(tokens_of(said))));
        for case in cases() {
            let whole = ask(&harness, &case, None).await.json();
            assert_eq!(
                whole["choices"].as_array().map(Vec::len),
                Some(case.num_choices)
            );
            for options in [
                Value::Null,
                json!({}),
                json!({"include_usage": null}),
                json!({"include_usage": false}),
                json!({"include_usage": true}),
            ] {
                let include_usage = options["include_usage"] == true;
                let chunks = ask(&harness, &case, Some(options)).await.chunks();
                check_stream(&case, chunks, include_usage, &whole);
            }
        }
    }
}

#[tokio::test]
async fn usage_counts_tokens_however_their_text_is_chunked() {
    for said in TEXTS {
        let harness = Harness::new(answering(move |_| Reply::tokens(tokens_of(said))));
        for case in cases() {
            // A byte is a token, and the end of sequence is one.
            let num_tokens = case.num_choices * case.max_tokens.min(said.len() + 1);
            let usage = ask(&harness, &case, None).await.json()["usage"].clone();
            assert_eq!(
                usage["completion_tokens"], num_tokens,
                "{said:?} {}",
                case.body
            );
            let prompt = usage["prompt_tokens"].as_u64().expect("a count");
            let expected = if case.is_chat { prompt } else { 6 };
            assert_eq!(prompt, expected, "each prompt once, whatever n is");
            assert_eq!(usage["total_tokens"], prompt + num_tokens as u64);
        }
    }
}

#[tokio::test]
async fn continuous_usage_grows_token_by_token_to_the_last() {
    let harness = Harness::new(answering(|_| Reply::tokens(tokens_of("é日x"))));
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let chunks = harness
        .complete(json!({"stream": true, "stream_options": options, "n": 2}))
        .await
        .chunks();
    let counts: Vec<u64> = chunks
        .iter()
        .map(|chunk| {
            chunk["usage"]["completion_tokens"]
                .as_u64()
                .expect("a count")
        })
        .collect();
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(counts.last(), Some(&14));
}
