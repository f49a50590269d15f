//! The tokenizer: one vocabulary, its encoder and its byte table.

use std::path::Path;

use serde_json::Value;

use crate::added::{AddedMatch, AddedToken};
use crate::backend::{Added, Backend, Place};
use crate::bytes::TokenBytes;
use crate::definition::Definition;
use crate::detokenizer::{Core, DetokenizerOptions};
use crate::error::{EncodeError, TokenizerError};
use crate::gguf::GgufVocab;

/// How a text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Frame the text with the tokens its vocabulary asks for (usually a BOS in front).
    pub add_special: bool,
    /// Special tokens written in the text are control tokens. If off, they are encoded as the text they are.
    pub parse_special: bool,
}

impl Default for EncodeOptions {
    /// What Hugging Face's `encode` does: both on.
    fn default() -> Self {
        Self {
            add_special: true,
            parse_special: true,
        }
    }
}

/// Text to ids and back. Immutable and shared between threads.
pub struct Tokenizer {
    backend: Backend,
    bytes: TokenBytes,
    added: Vec<AddedToken>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let text = std::fs::read(path).map_err(|source| TokenizerError::Read {
            path: path.into(),
            source,
        })?;
        Self::from_json(serde_json::from_slice(&text)?)
    }

    /// Builds a tokenizer from the parsed contents of a `tokenizer.json`.
    pub fn from_json(json: Value) -> Result<Self, TokenizerError> {
        Self::from_definition(Definition::from_json(json)?)
    }

    /// Builds a tokenizer from a GGUF file's metadata.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self, TokenizerError> {
        Self::from_json(vocab.to_tokenizer_json()?)
    }

    pub(crate) fn from_definition(mut definition: Definition) -> Result<Self, TokenizerError> {
        let vocab = std::mem::take(&mut definition.vocab);
        let bytes = TokenBytes::new(&vocab, &definition.added, &definition.decoder);
        drop(vocab);
        let added = definition.added.clone();
        let (prefix, suffix) = (definition.prefix.clone(), definition.suffix.clone());
        Ok(Self {
            backend: Backend::new(definition)?,
            bytes,
            added,
            prefix,
            suffix,
        })
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, EncodeError> {
        let added = if options.parse_special {
            Added::All
        } else {
            Added::Ordinary
        };
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        if options.add_special {
            ids.extend_from_slice(&self.prefix);
        }
        if !text.is_empty() {
            self.backend.encode(text, added, Place::Start, &mut ids)?;
        }
        if options.add_special {
            ids.extend_from_slice(&self.suffix);
        }
        Ok(ids)
    }

    /// The ids of `text` in which exactly `matches` (in order, not overlapping) are added tokens.
    pub(crate) fn encode_with_matches(
        &self,
        text: &str,
        matches: &[AddedMatch],
    ) -> Result<Vec<u32>, EncodeError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        let mut from = 0;
        let piece = |range: std::ops::Range<usize>, ids: &mut Vec<u32>| {
            let place = if range.start == 0 {
                Place::Start
            } else {
                Place::Later
            };
            match &text[range] {
                "" => Ok(()),
                text => self.backend.encode(text, Added::None, place, ids),
            }
        };
        for added in matches {
            piece(from..added.span.start, &mut ids)?;
            ids.push(added.id);
            from = added.span.end;
        }
        piece(from..text.len(), &mut ids)?;
        Ok(ids)
    }

    /// The text of `ids`, as a new text (not a continuation): see [`crate::Detokenizer`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut core = Core::new(DetokenizerOptions {
            skip_special,
            continuation: false,
        });
        let mut text = String::with_capacity(ids.len() * 4);
        ids.iter()
            .for_each(|&id| core.push(&self.bytes, id, &mut text));
        core.finish(&mut text);
        text
    }

    /// The bytes that `id` stands for, which need not be whole characters; empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id)
    }

    /// Whether `id` is a control token (BOS, end of turn, …).
    pub fn is_special(&self, id: u32) -> bool {
        self.bytes.is_special(id)
    }

    /// The id of a token as the vocabulary spells it (`Ġhello`, `▁hello`, `<|im_end|>`).
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.backend.token_to_id(token)
    }

    /// Number of ids: one more than the largest.
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// The ids that [`EncodeOptions::add_special`] puts before a text; the BOS, if the vocabulary has one in use.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// The crate that encodes: `fastokens` or `tokenizers`.
    pub fn backend(&self) -> &'static str {
        self.backend.name()
    }

    pub(crate) fn bytes(&self) -> &TokenBytes {
        &self.bytes
    }

    pub(crate) fn added(&self) -> &[AddedToken] {
        &self.added
    }
}
