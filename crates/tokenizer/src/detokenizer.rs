//! Incremental detokenizing: one id in, the text it completes out.
//!
//! A token is bytes, not characters: an emoji may take four tokens. A [`Detokenizer`] holds back the bytes of an
//! unfinished character (at most three) and emits everything else at once. Bytes that can never become a character
//! turn into U+FFFD, one for each maximal invalid part, as `String::from_utf8_lossy` does; so the pieces of a stream,
//! with what [`Detokenizer::finish`] releases, concatenate to exactly [`crate::Tokenizer::decode`] of the whole.
//!
//! For `ByteFallback` vocabularies this differs from Hugging Face's decoder in one case: it replaces a whole run of
//! byte tokens by U+FFFD if any of them is invalid, which no stream can do.

use std::sync::Arc;

use crate::bytes::TokenBytes;
use crate::definition::StartRule;
use crate::tokenizer::Tokenizer;

/// How a stream is turned into text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetokenizerOptions {
    /// Drop control tokens instead of writing them out.
    pub skip_special: bool,
    /// The text goes on after other text, as a completion after its prompt does: the space that SentencePiece
    /// vocabularies put before a first word is then a real one and stays.
    pub continuation: bool,
}

/// The state of one stream. Holds no more than an unfinished character; allocates nothing.
#[derive(Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    core: Core,
}

/// The state without the vocabulary, shared with the one-shot decoder.
#[derive(Clone)]
pub(crate) struct Core {
    skip_special: bool,
    at_start: bool,
    pending: [u8; 4],
    num_pending: usize,
}

impl Detokenizer {
    /// A detokenizer at the start of a stream.
    pub fn new(tokenizer: Arc<Tokenizer>, options: DetokenizerOptions) -> Self {
        Self {
            tokenizer,
            core: Core::new(options),
        }
    }

    /// Appends to `out` the text that `id` completes; nothing if it ends inside a character, is an unknown id, or is
    /// a control token that is to be skipped.
    pub fn push(&mut self, id: u32, out: &mut String) {
        self.core.push(self.tokenizer.bytes(), id, out);
    }

    /// As [`Self::push`], but a control token is written out whatever the options say.
    pub fn push_shown(&mut self, id: u32, out: &mut String) {
        self.core.push_shown(self.tokenizer.bytes(), id, out);
    }

    /// Ends the stream: an unfinished character becomes U+FFFD. The detokenizer is then as new, for a continuation.
    pub fn finish(&mut self, out: &mut String) {
        self.core.finish(out);
    }

    /// Bytes held back because their character is unfinished (at most 3).
    pub fn pending(&self) -> &[u8] {
        &self.core.pending[..self.core.num_pending]
    }
}

impl Core {
    pub fn new(options: DetokenizerOptions) -> Self {
        Self {
            skip_special: options.skip_special,
            at_start: !options.continuation,
            pending: [0; 4],
            num_pending: 0,
        }
    }

    pub fn push(&mut self, table: &TokenBytes, id: u32, out: &mut String) {
        if !(self.skip_special && table.is_special(id)) {
            self.push_shown(table, id, out);
        }
    }

    pub fn push_shown(&mut self, table: &TokenBytes, id: u32, out: &mut String) {
        let bytes = table.get(id);
        if !self.at_start || bytes.is_empty() {
            return self.feed(bytes, out);
        }
        self.at_start = false;
        match table.start {
            StartRule::Keep => self.feed(bytes, out),
            StartRule::StripOneSpace => self.feed(bytes.strip_prefix(b" ").unwrap_or(bytes), out),
            StartRule::BareFirstToken => {
                bytes
                    .split(|&b| b == b' ')
                    .for_each(|part| self.feed(part, out));
            }
        }
    }

    pub fn finish(&mut self, out: &mut String) {
        if self.num_pending > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
            self.num_pending = 0;
        }
        self.at_start = false;
    }

    fn feed(&mut self, mut bytes: &[u8], out: &mut String) {
        while self.num_pending > 0 {
            let Some((&next, rest)) = bytes.split_first() else {
                return;
            };
            self.pending[self.num_pending] = next;
            let held = &self.pending[..self.num_pending + 1];
            match std::str::from_utf8(held) {
                Ok(character) => {
                    out.push_str(character);
                    self.num_pending = 0;
                }
                Err(error) if error.error_len().is_none() => self.num_pending += 1,
                // `next` does not continue the character: it is looked at again, on its own.
                Err(_) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.num_pending = 0;
                    continue;
                }
            }
            bytes = rest;
        }
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(text) => return out.push_str(text),
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            out.push_str(std::str::from_utf8(valid).expect("checked by the call above"));
            match error.error_len() {
                Some(len) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    bytes = &rest[len..];
                }
                None => {
                    self.pending[..rest.len()].copy_from_slice(rest);
                    self.num_pending = rest.len();
                    return;
                }
            }
        }
    }
}
