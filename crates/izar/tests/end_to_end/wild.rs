//! What a hot model says: bytes that are no text, control tokens, anything. Streamed and whole agree, and all numbers are numbers.

use serde_json::{Value, json};

use crate::server::Server;

/// Random tokens: as hot as the API allows, and only bytes of several-byte characters and a few letters.
fn wild(seed: u64, only_bytes: bool) -> Value {
    let mut body = json!({"prompt": "\u{1f600}", "max_tokens": 24, "temperature": 2, "seed": seed, "min_tokens": 24});
    if only_bytes {
        // Single bytes stand first in a byte-level vocabulary, after the control tokens: 0x21 to 0x7E, 0xA1 to 0xFF, then
        // what is left. These are the bytes of several-byte characters, and a few letters.
        let bytes = (111..205).chain(238..273).chain(80..90);
        body["allowed_token_ids"] = bytes.collect::<Vec<u32>>().into();
    }
    body
}

fn stream_text(server: &Server, body: &Value) -> (String, Vec<u32>) {
    let mut stream = server.stream(body);
    let text = stream
        .by_ref()
        .filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned))
        .collect();
    (text, stream.finish().ids)
}

#[test]
fn random_tokens_stream_to_the_whole_answer_byte_for_byte() {
    let server = Server::start(&["--max-model-len", "512", "--max-num-seqs", "16"]);
    let mut num_broken = 0;
    let extras = [
        json!({}),
        json!({"stop": ["e", "\u{fffd}\u{fffd}\u{fffd}"], "min_tokens": 0}),
        json!({"skip_special_tokens": false}),
    ];
    for seed in 0..9 {
        let mut body = wild(seed, seed % 3 != 2);
        for (name, value) in extras[seed as usize / 3].as_object().expect("an object") {
            body[name] = value.clone();
        }
        let (text, ids) = stream_text(&server, &body);
        body["return_token_ids"] = true.into();
        let whole = &server.try_complete(&body).json()["choices"][0];
        assert_eq!(
            (&whole["text"], &whole["token_ids"]),
            (&json!(text), &json!(ids)),
            "{body}"
        );
        num_broken += usize::from(text.contains('\u{fffd}'));
    }
    assert!(num_broken > 3, "{num_broken} answers had broken characters");
}

#[test]
fn log_probabilities_are_finite_also_of_what_was_made_impossible() {
    let server = Server::start(&["--max-model-len", "512", "--max-num-seqs", "16"]);
    for extra in [
        json!({"allowed_token_ids": [28]}),
        json!({"allowed_token_ids": [28, 30], "temperature": 0}),
        json!({"logit_bias": {"28": 100, "30": -100}, "temperature": 0}),
        json!({"min_tokens": 8, "temperature": 0}),
        json!({"bad_words": ["the"], "temperature": 0}),
        json!({"top_k": 1}),
        json!({"temperature": 1e-9}),
    ] {
        let mut body = json!({"prompt": "Once upon", "max_tokens": 8, "logprobs": 20});
        for (name, value) in extra.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let answer = server.try_complete(&body);
        assert_eq!(answer.status, 200, "{}", answer.text);
        let logprobs = &answer.json()["choices"][0]["logprobs"];
        let finite = |value: &Value| value.as_f64().is_some_and(|x| x.is_finite() && x <= 0.0);
        let numbers = logprobs["token_logprobs"].as_array().expect("a list");
        assert!(
            !numbers.is_empty() && numbers.iter().all(finite),
            "{extra}: {numbers:?}"
        );
        for alternatives in logprobs["top_logprobs"].as_array().expect("a list") {
            let alternatives = alternatives.as_object().expect("an object");
            assert!(alternatives.len() >= 20, "{alternatives:?}");
            assert!(
                alternatives.values().all(finite),
                "{extra}: {alternatives:?}"
            );
        }
    }
}
