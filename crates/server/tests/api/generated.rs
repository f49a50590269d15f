//! Generated texts, cuts and stop strings: streamed and whole answers agree with each other and with the definition.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{Harness, IM_END, answering};
use izar_transport::mock_engine::Reply;

/// What the answer must be: the bytes as text, up to the stop string that completes first (the longest of several).
fn definition(bytes: &[u8], stops: &[String]) -> (String, &'static str) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
    for end in ends {
        let longest = stops
            .iter()
            .filter(|stop| !stop.is_empty() && text[..end].ends_with(stop.as_str()));
        if let Some(len) = longest.map(String::len).max() {
            return (text[..end - len].to_owned(), "stop");
        }
    }
    (text, "length")
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => "[ab]{1,4}".prop_map(String::into_bytes),
        2 => "[é日😀]".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 1..3),
    ];
    proptest::collection::vec(piece, 1..12).prop_map(|pieces| pieces.concat())
}

#[test]
fn any_answer_is_the_same_streamed_and_whole_and_ends_where_the_definition_says() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // The mock repeats the prompt.
    let harness = Harness::new(answering(|prompt| {
        Reply::tokens([prompt, &[IM_END]].concat())
    }));
    let stops = proptest::collection::vec("[abé日\u{fffd}]{0,3}", 0..4);
    let config = ProptestConfig::with_cases(400);
    proptest!(config, |(said in bytes(), stops in stops, max_tokens in 1_usize..40)| {
        let request = json!({"prompt": said, "stop": stops, "max_tokens": max_tokens});
        let (text, reason) = definition(&said[..said.len().min(max_tokens)], &stops);
        // Where all was said, the end of sequence is what came last.
        let reason = if max_tokens > said.len() { "stop" } else { reason };
        let whole = runtime.block_on(harness.complete(request.clone())).json();
        prop_assert_eq!(whole["choices"][0]["text"].as_str(), Some(text.as_str()));
        prop_assert_eq!(whole["choices"][0]["finish_reason"].as_str(), Some(reason));
        let mut streaming = request;
        streaming["stream"] = true.into();
        let chunks = runtime.block_on(harness.complete(streaming)).chunks();
        let streamed: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        prop_assert_eq!(streamed, text);
        let reasons: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
        prop_assert_eq!(reasons.iter().filter(|reason| !reason.is_null()).count(), 1);
        prop_assert_eq!(reasons.last().and_then(|reason| reason.as_str()), Some(reason));
    });
}
