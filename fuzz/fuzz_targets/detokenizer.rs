//! The incremental detokenizer against decoding the whole, and both against the bytes of the tokens.
//!
//! Over real (shortened) vocabularies of the three kinds: byte-level, byte-level with added tokens, SentencePiece with byte fallback.
//! What is streamed, with what the end releases, is the lossy text of the concatenated bytes; a piece never ends inside a
//! character; at most three bytes wait, and they can still become one.
#![no_main]

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use izar_tokenizer::{Detokenizer, DetokenizerOptions, Tokenizer};
use libfuzzer_sys::fuzz_target;

const VOCABULARIES: [&str; 3] = [
    include_str!("../../crates/tokenizer/tests/data/qwen3-small.tokenizer.json"),
    include_str!("../../crates/tokenizer/tests/data/smollm2-small.tokenizer.json"),
    include_str!("../../crates/tokenizer/tests/data/sentencepiece-small.tokenizer.json"),
];

fn tokenizers() -> &'static [Arc<Tokenizer>] {
    static TOKENIZERS: OnceLock<Vec<Arc<Tokenizer>>> = OnceLock::new();
    TOKENIZERS.get_or_init(|| {
        let load = |text: &&str| {
            let json = serde_json::from_str(text).expect("JSON");
            Arc::new(Tokenizer::from_json(json).expect("a tokenizer"))
        };
        VOCABULARIES.iter().map(load).collect()
    })
}

#[derive(Arbitrary, Debug)]
struct Input {
    vocabulary: u8,
    skip_special: bool,
    continuation: bool,
    ids: Vec<u16>,
}

fuzz_target!(|input: Input| {
    let all = tokenizers();
    let tokenizer = &all[usize::from(input.vocabulary) % all.len()];
    // Two ids beyond the vocabulary: an unknown id is no text.
    let bound = tokenizer.vocab_size() as u32 + 2;
    let ids: Vec<u32> = input.ids.iter().map(|&id| u32::from(id) % bound).collect();
    let options = DetokenizerOptions {
        skip_special: input.skip_special,
        continuation: input.continuation,
    };
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), options);
    let mut streamed = String::new();
    for &id in &ids {
        detokenizer.push(id, &mut streamed);
        let pending = detokenizer.pending();
        assert!(pending.len() <= 3);
        let unfinished = std::str::from_utf8(pending).map_or_else(|error| error.error_len().is_none(), str::is_empty);
        assert!(unfinished, "{pending:?} can not become a character");
    }
    detokenizer.finish(&mut streamed);
    assert!(detokenizer.pending().is_empty());
    if !input.continuation {
        assert_eq!(streamed, tokenizer.decode(&ids, input.skip_special));
    }
    let said: Vec<&[u8]> = ids
        .iter()
        .filter(|&&id| !(input.skip_special && tokenizer.is_special(id)))
        .map(|&id| tokenizer.token_bytes(id))
        .filter(|bytes| !bytes.is_empty())
        .collect();
    let candidates = definitions(&said, input.continuation);
    assert!(candidates.contains(&streamed), "{streamed:?} is none of {candidates:?}");
});

/// The text of the bytes: as they are for a continuation; at the start of a text a vocabulary may keep all of it, take one space off
/// its front, or take all spaces out of its first token.
fn definitions(said: &[&[u8]], continuation: bool) -> Vec<String> {
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let whole = said.concat();
    let mut candidates = vec![lossy(&whole)];
    if !continuation && let Some((first, rest)) = said.split_first() {
        candidates.push(lossy(whole.strip_prefix(b" ").unwrap_or(&whole)));
        let bare: Vec<u8> = first.iter().copied().filter(|&byte| byte != b' ').collect();
        candidates.push(lossy(&[&bare[..], &rest.concat()].concat()));
    }
    candidates
}
