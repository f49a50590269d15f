//! `gpt2` vocabularies: byte-level BPE with explicit merges.

use serde_json::{Map, Value, json};

use super::{GgufVocab, bad, pre};
use crate::error::TokenizerError;

pub(super) fn definition(vocab: &GgufVocab) -> Result<Value, TokenizerError> {
    let rules = pre::rules(vocab.pre.as_deref().unwrap_or("default"))?;
    if vocab.merges.is_empty() {
        return Err(bad(
            "tokenizer.ggml.merges is empty",
            "the merges of a byte-level BPE",
        ));
    }
    let tokens = vocab.model_vocab()?;
    let merges = merges(vocab, &tokens)?;
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

fn merges(vocab: &GgufVocab, tokens: &Map<String, Value>) -> Result<Vec<Value>, TokenizerError> {
    let pairs = vocab.merges.iter().map(|merge| {
        let Some((left, right)) = merge.split_once(' ') else {
            return Err(bad(
                format!("merge {merge:?}"),
                "two tokens with a space between",
            ));
        };
        for part in [left, right, &format!("{left}{right}")] {
            if !tokens.contains_key(part) {
                return Err(bad(
                    format!("{part:?}, of the merge {merge:?}"),
                    "a token of the vocabulary",
                ));
            }
        }
        Ok(json!([left, right]))
    });
    pairs.collect()
}
