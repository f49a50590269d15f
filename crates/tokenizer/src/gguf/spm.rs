//! `llama` vocabularies: SentencePiece BPE, kept as tokens with scores.
//!
//! SentencePiece joins the neighbouring pair whose *result* has the highest score. The equivalent merge list has a
//! merge for every way to split a token into two tokens, ordered by the score of the whole.

use serde_json::{Map, Value, json};

use super::{GgufVocab, TokenType, bad};
use crate::error::TokenizerError;

/// SentencePiece's mark for a space.
const SPACE: &str = "\u{2581}";

pub(super) fn definition(vocab: &GgufVocab) -> Result<Value, TokenizerError> {
    if vocab.scores.is_empty() {
        return Err(bad("tokenizer.ggml.scores is missing", "a score per token"));
    }
    let mut tokens = Map::new();
    for (id, token, kind) in vocab.entries() {
        let belongs = !matches!(kind, TokenType::Unused | TokenType::UserDefined);
        if belongs && tokens.insert(token.to_owned(), id.into()).is_some() {
            return Err(bad(
                format!("token {token:?} occurs twice"),
                "every token once",
            ));
        }
    }
    let byte_fallback = vocab.entries().any(|(_, _, kind)| kind == TokenType::Byte);
    let unknown = vocab.unknown.or_else(|| {
        tokens
            .get("<unk>")
            .and_then(Value::as_u64)
            .map(|id| id as u32)
    });
    let merges = merges(vocab, &tokens);
    let prefix = vocab.add_space_prefix.unwrap_or(true);
    let mut normalizers =
        vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})];
    let mut decoders =
        vec![json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "})];
    decoders.extend([json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]);
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "added_tokens": vocab.added_tokens(),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": vocab.token(unknown), "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": byte_fallback,
            "ignore_merges": false, "vocab": tokens, "merges": merges,
        },
    }))
}

fn merges(vocab: &GgufVocab, tokens: &Map<String, Value>) -> Vec<Value> {
    let id_of = |part: &str| tokens.get(part).and_then(Value::as_u64);
    let mut merges: Vec<(f32, u64, u64, &str, &str)> = Vec::new();
    for (id, token, kind) in vocab.entries() {
        if kind != TokenType::Normal {
            continue;
        }
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(l), Some(r)) = (id_of(left), id_of(right)) {
                merges.push((vocab.scores[id as usize], l, r, left, right));
            }
        }
    }
    // Ties go to the earlier left part, then the earlier right part.
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    merges
        .into_iter()
        .map(|(_, _, _, left, right)| json!([left, right]))
        .collect()
}
