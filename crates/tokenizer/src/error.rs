//! Errors of building a tokenizer and of encoding with it.

use std::path::PathBuf;

/// Why a [`crate::Tokenizer`] could not be built.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The definition is not JSON.
    #[error("tokenizer.json is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The definition is JSON but not a tokenizer.
    #[error("tokenizer.json: {what}: expected {expected}")]
    Malformed {
        /// The part at fault.
        what: String,
        /// What it should have been.
        expected: &'static str,
    },
    /// The decoder section uses a step that Izar's detokenizer does not reproduce.
    #[error("tokenizer.json: the decoder step {0:?} is not supported")]
    UnsupportedDecoder(String),
    /// `tokenizers` refuses the definition.
    #[error("the tokenizer definition is refused: {0}")]
    Refused(String),
    /// The GGUF file names a tokenizer model that Izar does not know.
    #[error(
        "GGUF tokenizer.ggml.model is {0:?}: expected \"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece)"
    )]
    UnknownGgufModel(String),
    /// The GGUF file names a pre-tokenizer that Izar does not know; guessing would give wrong ids.
    #[error("GGUF tokenizer.ggml.pre is {name:?}, which is not known: expected one of {known}")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// The names Izar knows, comma separated.
        known: String,
    },
    /// The GGUF vocabulary contradicts itself.
    #[error("GGUF vocabulary: {what}: expected {expected}")]
    BadGgufVocab {
        /// The part at fault.
        what: String,
        /// What it should have been.
        expected: String,
    },
}

/// Why a text could not be encoded. Both back ends accept any UTF-8, so this is rare: a pattern that ran over its
/// matching limits, or a vocabulary without an unknown token meeting a character it lacks.
#[derive(Debug, thiserror::Error)]
#[error("the text cannot be encoded: {0}")]
pub struct EncodeError(pub(crate) String);
