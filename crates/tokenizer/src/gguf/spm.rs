//! `llama` vocabularies: SentencePiece BPE, kept as tokens with scores.
//!
//! SentencePiece joins the neighbouring pair whose *result* has the highest score. The equivalent merge list has a
//! merge for every way to split a token into two tokens, ordered by the score of the whole.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::{GgufVocab, TokenType, bad};
use crate::error::TokenizerError;

/// SentencePiece's mark for a space.
const SPACE: &str = "\u{2581}";

pub(super) fn definition(vocab: &GgufVocab) -> Result<Value, TokenizerError> {
    if vocab.scores.is_empty() {
        return Err(bad("tokenizer.ggml.scores is missing", "a score per token"));
    }
    let tokens = vocab.model_vocab()?;
    let byte_fallback = vocab.entries().any(|(_, _, kind)| kind == TokenType::Byte);
    let unknown = vocab
        .token(vocab.unknown)
        .or_else(|| tokens.get_key_value("<unk>").map(|(t, _)| t.as_str()));
    let merges = merges(vocab);
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
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": byte_fallback,
            "ignore_merges": false, "vocab": tokens, "merges": merges,
        },
    }))
}

fn merges(vocab: &GgufVocab) -> Vec<Value> {
    let normal = || {
        vocab
            .entries()
            .filter(|(_, _, kind)| *kind == TokenType::Normal)
    };
    let ids: HashMap<&str, u32> = normal().map(|(id, token, _)| (token, id)).collect();
    let mut merges: Vec<(f32, u32, u32)> = Vec::new();
    for (id, token, _) in normal() {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&left), Some(&right)) = (ids.get(left), ids.get(right)) {
                merges.push((vocab.scores[id as usize], left, right));
            }
        }
    }
    // Ties go to the earlier left part, then the earlier right part.
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let text = |id: u32| vocab.tokens[id as usize].as_str();
    merges
        .into_iter()
        .map(|(_, left, right)| json!([text(left), text(right)]))
        .collect()
}
