//! `gpt2` vocabularies: byte-level BPE with explicit merges.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{GgufVocab, TokenType, bad, pre};
use crate::error::TokenizerError;

pub(super) fn definition(vocab: &GgufVocab) -> Result<Value, TokenizerError> {
    let rules = pre::rules(vocab.pre.as_deref().unwrap_or("default"))?;
    if vocab.merges.is_empty() {
        return Err(bad(
            "tokenizer.ggml.merges is empty",
            "the merges of a byte-level BPE",
        ));
    }
    let mut tokens = Map::new();
    for (id, token, kind) in vocab.entries() {
        if kind == TokenType::Normal && tokens.insert(token.to_owned(), id.into()).is_some() {
            return Err(bad(
                format!("token {token:?} occurs twice"),
                "every token once",
            ));
        }
    }
    let merges = merges(vocab, &mut tokens)?;
    Ok(json!({
        "added_tokens": vocab.added_tokens(),
        "normalizer": if rules.nfc { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": rules.pre_tokenizer(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": rules.ignore_merges, "vocab": tokens, "merges": merges,
        },
    }))
}

/// The merges as pairs. A merge may be built from or give a token that is not `Normal` in the file (some converters
/// mark merged tokens as user-defined); such a token belongs to the model's vocabulary too.
fn merges(
    vocab: &GgufVocab,
    tokens: &mut Map<String, Value>,
) -> Result<Vec<Value>, TokenizerError> {
    let mut others: HashSet<&str> = HashSet::new();
    let mut pairs = Vec::with_capacity(vocab.merges.len());
    for merge in &vocab.merges {
        let Some((left, right)) = merge
            .split_once(' ')
            .filter(|(l, r)| !l.is_empty() && !r.is_empty())
        else {
            return Err(bad(
                format!("merge {merge:?}"),
                "two tokens with a space between",
            ));
        };
        for part in [left, right] {
            if !tokens.contains_key(part) {
                others.insert(part);
            }
        }
        let merged = format!("{left}{right}");
        if !tokens.contains_key(&merged) && vocab.tokens.iter().all(|t| *t != merged) {
            return Err(bad(
                format!("merge {merge:?} gives {merged:?}"),
                "a token of the vocabulary",
            ));
        }
        pairs.push((left, right, merged));
    }
    for (id, token, _) in vocab.entries() {
        let is_merged = || pairs.iter().any(|(_, _, merged)| merged == token);
        if !tokens.contains_key(token) && (others.contains(token) || is_merged()) {
            tokens.insert(token.to_owned(), id.into());
        }
    }
    if let Some(part) = others.iter().find(|part| !tokens.contains_key(**part)) {
        return Err(bad(
            format!("a merge uses {part:?}"),
            "a token of the vocabulary",
        ));
    }
    Ok(pairs
        .into_iter()
        .map(|(left, right, _)| json!([left, right]))
        .collect())
}
