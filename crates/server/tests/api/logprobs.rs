//! Log probabilities: an entry for each token, real bytes, right offsets, the same in a stream and as a whole.

use serde_json::{Value, json};

use crate::common::{Harness, saying};

#[tokio::test]
async fn chat_has_an_entry_for_each_token_with_its_bytes() {
    let harness = Harness::new(saying("né"));
    let answer = harness.chat(json!({"logprobs": true})).await.json();
    let entries = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("entries")
        .clone();
    assert_eq!(
        entries.len() as u64,
        answer["usage"]["completion_tokens"]
            .as_u64()
            .expect("a count")
    );
    assert!(entries.iter().all(
        |e| e["top_logprobs"] == json!([]) && e["logprob"].as_f64().is_some_and(f64::is_finite)
    ));
    let bytes: Vec<&Value> = entries.iter().map(|e| &e["bytes"]).collect();
    assert_eq!(bytes[..3], [&json!([110]), &json!([195]), &json!([169])]);
    assert_eq!(entries[0]["token"], "n");
    let top = harness
        .chat(json!({"logprobs": true, "top_logprobs": 2}))
        .await
        .json();
    assert_eq!(
        top["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert_eq!(
        harness.chat(json!({"logprobs": false})).await.json()["choices"][0]["logprobs"],
        Value::Null
    );
}

#[tokio::test]
async fn stream_carries_the_same_entries() {
    let harness = Harness::new(saying("né, so"));
    let request = json!({"logprobs": true, "top_logprobs": 3, "stop": "zz"});
    let whole = harness.chat(request.clone()).await.json();
    let mut streaming = request;
    streaming["stream"] = true.into();
    let chunks = harness.chat(streaming).await.chunks();
    let entries: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(
        Some(&entries),
        whole["choices"][0]["logprobs"]["content"].as_array()
    );
}

#[tokio::test]
async fn completions_have_parallel_lists_with_offsets_in_characters() {
    let harness = Harness::new(saying("né!"));
    let answer = harness.complete(json!({"logprobs": 2})).await.json();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 2, 3]));
    assert_eq!(
        logprobs["tokens"],
        json!(["n", "bytes:\\xc3", "bytes:\\xa9", "!", "<|im_end|>"])
    );
    assert_eq!(logprobs["token_logprobs"].as_array().map(Vec::len), Some(5));
    let alternatives = logprobs["top_logprobs"].as_array().expect("a list");
    assert!(
        alternatives
            .iter()
            .all(|a| a.as_object().is_some_and(|a| (2..=3).contains(&a.len()))),
        "{alternatives:?}"
    );
    let only_sampled = harness.complete(json!({"logprobs": 0})).await.json();
    assert_eq!(
        only_sampled["choices"][0]["logprobs"]["top_logprobs"][0]
            .as_object()
            .map(serde_json::Map::len),
        Some(1)
    );
    assert_eq!(
        harness.complete(json!({"logprobs": null})).await.json()["choices"][0]["logprobs"],
        Value::Null
    );
}
