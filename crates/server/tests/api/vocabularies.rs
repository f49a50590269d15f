//! Text over real (shortened) vocabularies: byte-level, byte-level with many added tokens, SentencePiece with byte fallback.
//!
//! The mock repeats its prompt, so any ids can be an answer: split characters, byte-fallback tokens, bytes that are no text at all,
//! control tokens, the space that SentencePiece puts before a word.

use std::sync::Arc;

use izar_ring::RingOptions;
use izar_server::ServerOptions;
use izar_tokenizer::{ChatEncoder, ChatTemplate, SpecialTokens, Tokenizer};
use izar_transport::client::RingClient;
use izar_transport::mock_engine::{MockEngine, Reply, ReplyEnd};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{Harness, answering};
use crate::support::server_with;

const VOCABULARIES: [&str; 3] = [
    include_str!("../../../tokenizer/tests/data/qwen3-small.tokenizer.json"),
    include_str!("../../../tokenizer/tests/data/smollm2-small.tokenizer.json"),
    include_str!("../../../tokenizer/tests/data/sentencepiece-small.tokenizer.json"),
];

fn tokenizer(text: &str) -> Arc<Tokenizer> {
    let json = serde_json::from_str(text).expect("JSON");
    Arc::new(Tokenizer::from_json(json).expect("a tokenizer"))
}

/// A server of `tokenizer` whose engine says the prompt of a completion, and `said` to every chat.
fn harness(tokenizer: &Arc<Tokenizer>) -> Harness {
    let template = ChatTemplate::new("{{ messages[0].content }}", SpecialTokens::default());
    let encoder = ChatEncoder::new(Arc::clone(tokenizer), template.expect("a template"));
    let mut mock = answering(|prompt| Reply {
        end: ReplyEnd::Length,
        ..Reply::tokens(prompt)
    });
    mock.vocab_size = tokenizer.vocab_size() as u32;
    let (server, client, engine): (_, Arc<RingClient>, MockEngine) = server_with(
        encoder,
        Vec::new(),
        &RingOptions::default(),
        mock,
        ServerOptions::default(),
    );
    Harness::around(&server, client, engine)
}

/// Ids below `vocab_size`, the low ones (bytes, control tokens, byte fallback) more often than their number.
fn ids(vocab_size: u32) -> impl Strategy<Value = Vec<u32>> {
    let low = 300.min(vocab_size);
    proptest::collection::vec(prop_oneof![0..low, 0..vocab_size], 1..24)
}

/// The text of the ids that go on after other text: their bytes as UTF-8, with U+FFFD for what is not.
fn continued(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let bytes: Vec<u8> = ids
        .iter()
        .filter(|&&id| !(skip_special && tokenizer.is_special(id)))
        .flat_map(|&id| tokenizer.token_bytes(id))
        .copied()
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn text_of(chunks: &[Value]) -> String {
    let texts = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["text"].as_str());
    texts.collect()
}

/// Runs `check` for generated ids over every vocabulary.
fn for_any_ids(
    num_cases: u32,
    check: impl Fn(
        &tokio::runtime::Runtime,
        &Harness,
        &Tokenizer,
        Vec<u32>,
    ) -> Result<(), TestCaseError>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    for text in VOCABULARIES {
        let tokenizer = tokenizer(text);
        let harness = harness(&tokenizer);
        let config = ProptestConfig::with_cases(num_cases);
        proptest!(config, |(ids in ids(tokenizer.vocab_size() as u32))| {
            check(&runtime, &harness, &tokenizer, ids)?;
        });
    }
}

#[test]
fn any_ids_of_any_vocabulary_stream_to_the_text_of_their_bytes() {
    for_any_ids(150, |runtime, harness, tokenizer, ids| {
        for skip_special in [true, false] {
            let request = json!({"prompt": ids, "max_tokens": ids.len(), "skip_special_tokens": skip_special});
            let whole = runtime.block_on(harness.complete(request.clone())).json();
            let expected = continued(tokenizer, &ids, skip_special);
            prop_assert_eq!(&whole["choices"][0]["text"], &json!(expected));
            let mut streaming = request;
            streaming["stream"] = true.into();
            let chunks = runtime.block_on(harness.complete(streaming)).chunks();
            prop_assert_eq!(text_of(&chunks), expected);
        }
        Ok(())
    });
}

#[test]
fn any_limit_cuts_the_answer_of_any_vocabulary_at_a_token_and_releases_what_was_held() {
    for_any_ids(60, |runtime, harness, tokenizer, ids| {
        for max_tokens in 1..=ids.len().min(6) {
            let request = json!({"prompt": ids, "max_tokens": max_tokens, "stream": true,
                "stream_options": {"include_usage": true}});
            let chunks = runtime.block_on(harness.complete(request)).chunks();
            let expected = continued(tokenizer, &ids[..max_tokens], true);
            prop_assert_eq!(text_of(&chunks), expected);
            let usage = &chunks.last().expect("chunks")["usage"];
            prop_assert_eq!(&usage["completion_tokens"], &json!(max_tokens));
        }
        Ok(())
    });
}

#[test]
fn chats_of_any_vocabulary_say_the_same_streamed_and_whole() {
    for_any_ids(100, |runtime, harness, tokenizer, ids| {
        // The prompt is what the content encodes to, and the answer is the prompt.
        let content = tokenizer.decode(&ids, true);
        prop_assume!(!content.is_empty());
        let request = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 64,
            "return_token_ids": true});
        let whole = runtime.block_on(harness.chat(request.clone())).json();
        let said: Vec<u32> =
            serde_json::from_value(whole["choices"][0]["token_ids"].clone()).expect("ids");
        let text = tokenizer.decode(&said, true);
        prop_assert_eq!(&whole["choices"][0]["message"]["content"], &json!(text));
        let mut streaming = request;
        streaming["stream"] = true.into();
        let chunks = runtime.block_on(harness.chat(streaming)).chunks();
        let texts = chunks
            .iter()
            .filter_map(|c| c["choices"][0]["delta"]["content"].as_str());
        prop_assert_eq!(texts.collect::<String>(), text);
        Ok(())
    });
}

#[test]
fn log_probabilities_of_any_vocabulary_carry_real_bytes_finite_numbers_and_offsets_of_the_text() {
    for_any_ids(80, |runtime, harness, tokenizer, ids| {
        let request = json!({"prompt": ids, "max_tokens": ids.len(), "logprobs": 2,
            "skip_special_tokens": false});
        let whole = runtime.block_on(harness.complete(request.clone())).json();
        let logprobs = &whole["choices"][0]["logprobs"];
        let offsets: Vec<usize> =
            serde_json::from_value(logprobs["text_offset"].clone()).expect("offsets");
        prop_assert_eq!(offsets.len(), ids.len());
        for (at, &offset) in offsets.iter().enumerate() {
            // Characters that the tokens before have completed.
            let before = continued(tokenizer, &ids[..at], false).chars().count();
            prop_assert!(
                offset == before || offset + 1 == before,
                "{} {}",
                offset,
                before
            );
        }
        let finite = |value: &Value| value.as_f64().is_some_and(f64::is_finite);
        let numbers = logprobs["token_logprobs"].as_array().expect("numbers");
        prop_assert!(numbers.len() == ids.len() && numbers.iter().all(finite));
        let mut streaming = request;
        streaming["stream"] = true.into();
        let chunks = runtime.block_on(harness.complete(streaming)).chunks();
        for name in ["text_offset", "tokens", "token_logprobs", "top_logprobs"] {
            let streamed: Vec<Value> = chunks
                .iter()
                .filter_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array())
                .flatten()
                .cloned()
                .collect();
            prop_assert_eq!(&json!(streamed), &logprobs[name], "{}", name);
        }
        Ok(())
    });
}
