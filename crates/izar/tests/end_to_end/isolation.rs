//! A request's tokens are its own: they do not depend on what runs beside it, and its parameters mean what they say.

use std::time::Duration;

use serde_json::{Value, json};

use crate::load::send_raw;
use crate::server::{Completion, Server};

fn start() -> Server {
    Server::start(&["--max-model-len", "512", "--max-num-seqs", "16"])
}

/// End-of-sequence tokens of the model: `<|endoftext|>` and `<|im_end|>`.
const EOS: [u32; 2] = [0, 2];

fn with(mut body: Value, extra: &Value) -> Value {
    for (name, value) in extra.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// Requests whose tokens are determined: greedy or seeded, under every kind of parameter.
fn determined() -> Vec<Value> {
    let base = json!({"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0});
    [
        json!({}),
        json!({"temperature": 1.0, "seed": 7}),
        json!({"temperature": 1.5, "seed": 7, "top_p": 0.9, "top_k": 50}),
        json!({"repetition_penalty": 1.5}),
        json!({"presence_penalty": 2, "frequency_penalty": 1, "temperature": 0.8, "seed": 3}),
        json!({"logit_bias": {"28": 100}}),
        json!({"allowed_token_ids": [28, 30, 260, 282]}),
        json!({"bad_words": ["there", "was"]}),
        json!({"min_tokens": 16, "logit_bias": {"2": 50}}),
        json!({"logprobs": 5}),
    ]
    .iter()
    .map(|extra| with(base.clone(), extra))
    .collect()
}

/// What runs beside: hot, cold, biased, penalised, forbidden, with log probabilities, and some that are given up in the middle.
fn neighbours() -> Vec<Value> {
    let base = json!({"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": true});
    [
        json!({"temperature": 2.0}),
        json!({"temperature": 0}),
        json!({"temperature": 1.0, "seed": 8}),
        json!({"logit_bias": {"30": 100}, "temperature": 0}),
        json!({"allowed_token_ids": [40, 41], "temperature": 1}),
        json!({"repetition_penalty": 2.0, "temperature": 1}),
        json!({"presence_penalty": -2, "frequency_penalty": -2, "temperature": 0}),
        json!({"bad_words": [" a", "the"], "logprobs": 20}),
        json!({"n": 3, "temperature": 1}),
    ]
    .iter()
    .map(|extra| with(base.clone(), extra))
    .collect()
}

#[test]
fn tokens_do_not_depend_on_neighbours_of_any_kind_nor_on_their_leaving() {
    let server = start();
    let determined = determined();
    let alone: Vec<Completion> = determined
        .iter()
        .map(|body| server.complete(body))
        .collect();
    std::thread::scope(|scope| {
        for body in neighbours() {
            let server = &server;
            scope.spawn(move || assert_eq!(server.try_complete(&body).status, 200));
        }
        let leaving: Vec<_> = neighbours()
            .iter()
            .map(|body| send_raw(&server, body))
            .collect();
        let together: Vec<_> = determined
            .iter()
            .map(|body| scope.spawn(|| server.complete(body)))
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        drop(leaving);
        for ((request, alone), body) in together.into_iter().zip(&alone).zip(&determined) {
            let together = request.join().expect("no panic");
            assert_eq!(
                (&together.ids, &together.text),
                (&alone.ids, &alone.text),
                "{body}"
            );
        }
    });
    server.until_idle();
}

#[test]
fn tiny_temperature_and_tiny_nuclei_are_greedy() {
    let server = start();
    let ask = |extra: Value| {
        let body = json!({"prompt": "The capital of France is", "max_tokens": 12});
        server.complete(&with(body, &extra)).ids
    };
    let greedy = ask(json!({"temperature": 0}));
    for extra in [
        json!({"temperature": 1e-300}),
        json!({"temperature": 1e-30}),
        json!({"temperature": 1e-6}),
        json!({"temperature": 1e-4}),
        json!({"temperature": 1e-3}),
        json!({"top_p": 0}),
        json!({"top_p": 1e-300}),
        json!({"top_p": 1e-9}),
        json!({"top_k": 1}),
        json!({"min_p": 1}),
        json!({"temperature": 2, "top_k": 1}),
        json!({"temperature": 2, "top_p": 1e-9}),
    ] {
        assert_eq!(ask(extra.clone()), greedy, "{extra}");
    }
}

#[test]
fn unseeded_requests_differ_and_seeded_ones_repeat() {
    let server = start();
    let ask = |extra: Value| {
        let body = json!({"prompt": "Once upon a time", "max_tokens": 16, "temperature": 1.2});
        server.complete(&with(body, &extra)).ids
    };
    assert_ne!(ask(json!({})), ask(json!({})));
    assert_ne!(ask(json!({"seed": null})), ask(json!({"seed": null})));
    assert_eq!(ask(json!({"seed": 0})), ask(json!({"seed": 0})));
    assert_eq!(ask(json!({"seed": u64::MAX})), ask(json!({"seed": -1})));
    let several = json!({"prompt": "Once upon a time", "max_tokens": 16, "temperature": 1.2, "n": 4, "seed": 5});
    let texts = |answer: Value| -> Vec<String> {
        let choices = answer["choices"].as_array().expect("choices");
        let text = |choice: &Value| choice["text"].as_str().expect("a text").to_owned();
        choices.iter().map(text).collect()
    };
    let first = texts(server.try_complete(&several).json());
    assert_eq!(first, texts(server.try_complete(&several).json()));
    let distinct: std::collections::HashSet<_> = first.iter().collect();
    assert_eq!(distinct.len(), 4, "{first:?}");
}

#[test]
fn several_choices_count_and_compute_their_prompt_once() {
    let server = start();
    let before = server.metric("vllm:prompt_tokens_total");
    let answer = server
        .try_complete(&json!({"prompt": vec![28; 64], "max_tokens": 2, "n": 4}))
        .json();
    assert_eq!(answer["usage"]["prompt_tokens"], 64);
    assert_eq!(server.metric("vllm:prompt_tokens_total") - before, 64.0);
    assert_eq!(
        answer["usage"]["total_tokens"],
        64 + answer["usage"]["completion_tokens"]
            .as_u64()
            .expect("a count")
    );
}

#[test]
fn every_end_of_sequence_waits_for_min_tokens_of_output_whatever_the_prompt() {
    let server = start();
    for eos in EOS {
        for num_prompt_tokens in [1, 40] {
            for min_tokens in [0, 1, 5, 17] {
                // The model wants nothing but to end.
                let answer = server.complete(&json!({
                    "prompt": vec![28; num_prompt_tokens], "temperature": 0, "max_tokens": 64,
                    "min_tokens": min_tokens, "logit_bias": {eos.to_string(): 100},
                }));
                assert_eq!(answer.ids.len(), min_tokens + 1, "{eos}: {answer:?}");
                assert_eq!(answer.ids.last(), Some(&eos));
                assert!(
                    !answer.ids[..min_tokens].iter().any(|id| EOS.contains(id)),
                    "{answer:?}"
                );
                assert_eq!(answer.finish_reason, "stop");
            }
        }
    }
}

#[test]
fn ignored_ends_of_sequence_leave_exactly_max_tokens() {
    let server = start();
    for eos in EOS {
        for max_tokens in [1, 2, 33] {
            let answer = server.complete(&json!({
                "prompt": "Hi", "temperature": 0, "max_tokens": max_tokens, "ignore_eos": true,
                "logit_bias": {eos.to_string(): 100},
            }));
            assert_eq!(answer.ids, vec![eos; max_tokens]);
            assert_eq!(answer.finish_reason, "length");
        }
    }
}

#[test]
fn stop_tokens_of_the_client_end_an_answer_as_the_models_own_do() {
    let server = start();
    let free = server.complete(
        &json!({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}),
    );
    for at in 0..free.ids.len().min(4) {
        let body = json!({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0,
            "stop_token_ids": [free.ids[at]]});
        let first = free
            .ids
            .iter()
            .position(|id| *id == free.ids[at])
            .expect("itself");
        let stopped = server.complete(&body);
        assert_eq!(stopped.ids, free.ids[..=first]);
        assert_eq!(stopped.finish_reason, "stop");
    }
}
