//! The assembler of server-sent events: any tokens, cut anyhow, under any stopping rules, streamed and whole.
//!
//! The events must have the shape that the API promises, concatenate to the whole answer byte for byte, and both must be what the
//! definition says (`definition.rs`): text, reason, and a count of tokens that does not depend on how text was cut.
#![no_main]

mod definition;
#[path = "../fixture.rs"]
mod fixture;
mod input;

use fixture::server;
use input::Input;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|input: Input| {
    let body = input.body().to_string();
    let replayed = if input.is_chat {
        server().replay_chat(body.as_bytes(), &input.tokens)
    } else {
        server().replay(body.as_bytes(), &input.tokens)
    };
    let replayed = replayed.unwrap_or_else(|refusal| panic!("{body}: {refusal:?}"));
    let expected = definition::answer(&input);
    let whole: Value = serde_json::from_slice(&replayed.whole).expect("JSON");
    check_whole(&input, &whole, &expected);
    check_events(&input, &replayed.events, &whole);
});

fn check_whole(input: &Input, whole: &Value, expected: &definition::Answer) {
    let choice = &whole["choices"][0];
    let text = if input.is_chat {
        &choice["message"]["content"]
    } else {
        &choice["text"]
    };
    assert_eq!(text, &json!(expected.text));
    assert_eq!(choice["finish_reason"], expected.finish_reason);
    assert_eq!(choice["stop_reason"], expected.stop_reason);
    assert_eq!(whole["usage"]["completion_tokens"], expected.num_tokens);
    if input.return_token_ids {
        let ids: Vec<u32> = input.tokens[..expected.num_tokens].iter().map(|token| token.id).collect();
        assert_eq!(choice["token_ids"], json!(ids));
    }
    if input.logprobs.is_some() && expected.num_tokens > 0 {
        assert_eq!(entries(input, choice).len(), expected.num_tokens);
    }
}

/// The log probabilities of a choice, an item a token.
fn entries(input: &Input, choice: &Value) -> Vec<Value> {
    let logprobs = &choice["logprobs"];
    if input.is_chat {
        return logprobs["content"].as_array().cloned().unwrap_or_default();
    }
    let list = |name: &str| logprobs[name].as_array().cloned().unwrap_or_default();
    let (tokens, offsets, tops) = (list("tokens"), list("text_offset"), list("top_logprobs"));
    let numbers = list("token_logprobs");
    assert!([offsets.len(), tops.len(), numbers.len()] == [tokens.len(); 3], "parallel lists");
    let items = tokens.into_iter().zip(offsets).zip(tops);
    items.map(|((token, offset), top)| json!([token, offset, top])).collect()
}

fn check_events(input: &Input, events: &[u8], whole: &Value) {
    let events = std::str::from_utf8(events).expect("UTF-8");
    let mut events: Vec<&str> = events.split("\n\n").collect();
    assert_eq!((events.pop(), events.pop()), (Some(""), Some("data: [DONE]")));
    let mut chunks: Vec<Value> = events
        .iter()
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").expect("data")).expect("JSON"))
        .collect();
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    if input.include_usage {
        let last = chunks.pop().expect("a chunk of usage");
        assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]));
        let is_null = |chunk: &Value| chunk.get("usage") == Some(&Value::Null);
        assert!(input.continuous_usage || chunks.iter().all(is_null));
    } else {
        assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    }
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    check_choices(input, &choices, &whole["choices"][0]);
}

fn check_choices(input: &Input, choices: &[&Value], whole: &Value) {
    assert!(choices.iter().all(|choice| choice["index"] == 0));
    let (last, inner) = choices.split_last().expect("an ending");
    let is_null = |choice: &&Value| choice.get("finish_reason") == Some(&Value::Null);
    assert!(inner.iter().all(is_null));
    assert_eq!(last["finish_reason"], whole["finish_reason"]);
    assert_eq!(last["stop_reason"], whole["stop_reason"]);
    let text = |choice: &&Value| match input.is_chat {
        true => choice["delta"]["content"].as_str().map(str::to_owned),
        false => choice["text"].as_str().map(str::to_owned),
    };
    let streamed: String = choices.iter().filter_map(text).collect();
    if input.is_chat {
        let roles = choices.iter().filter(|choice| choice["delta"]["role"].is_string());
        assert!(roles.count() == 1 && choices[0]["delta"]["role"] == "assistant");
        assert_eq!(whole["message"]["content"], streamed);
    } else {
        assert_eq!(whole["text"], streamed);
    }
    let all: Vec<Value> = choices.iter().flat_map(|choice| entries(input, choice)).collect();
    assert_eq!(all, entries(input, whole));
    if input.return_token_ids {
        let ids = |choice: &&Value| choice["token_ids"].as_array().cloned().unwrap_or_default();
        let all: Vec<Value> = choices.iter().flat_map(ids).collect();
        assert_eq!(Some(&all), whole["token_ids"].as_array());
    }
}
