//! The model's vocabulary as `llguidance` reads it: the bytes of every token, in a trie.
//!
//! Tokens come from the tokenizer's byte table, so byte-level and byte-fallback vocabularies are the same here. Control
//! tokens stand behind a marker byte that no text holds, so no grammar of text ever allows one. Ids that stand for no bytes, the
//! padding of the embedding matrix among them, are never allowed.

use std::sync::Arc;

use izar_tokenizer::Tokenizer;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::ConstraintError;

/// Builds the trie: `vocab_size` ids as the engine counts them, of which `eos_token_ids` end a sequence.
pub fn token_env(
    tokenizer: &Tokenizer,
    vocab_size: u32,
    eos_token_ids: &[u32],
) -> Result<TokEnv, ConstraintError> {
    let mut eos: Vec<u32> = eos_token_ids
        .iter()
        .copied()
        .filter(|&id| id < vocab_size)
        .collect();
    eos.sort_unstable();
    eos.dedup();
    let Some(&first) = eos.first() else {
        return Err(ConstraintError::NoEos);
    };
    let words: Vec<Vec<u8>> = (0..vocab_size)
        .map(|id| word(tokenizer, id, eos.binary_search(&id).is_ok()))
        .collect();
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size, first), &words).with_eos_tokens(&eos);
    // Every way to write a text in tokens is allowed, not the tokenizer's own alone: nothing is forced on the model.
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

fn word(tokenizer: &Tokenizer, id: u32, is_eos: bool) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    if is_eos || tokenizer.is_special(id) {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat();
    }
    // No UTF-8 text has the marker's byte.
    if bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER) {
        return Vec::new();
    }
    bytes.to_vec()
}
