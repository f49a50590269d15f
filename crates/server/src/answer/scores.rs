//! Log probabilities of a prompt's tokens: beside the echoed prompt, or as vLLM's `prompt_logprobs`.

use std::sync::Arc;

use izar_tokenizer::{Detokenizer, DetokenizerOptions, Tokenizer};
use izar_transport::client::TokenLogprobs;

use crate::output::logprobs::TokenEntry;

/// What a choice does with its prompt's log probabilities.
pub struct PromptScores {
    /// For the places of tokens in the echoed text.
    pub tokenizer: Arc<Tokenizer>,
    /// The prompt.
    pub ids: Vec<u32>,
    /// They stand with the echo.
    pub beside_echo: bool,
    /// They are listed in the answer.
    pub is_listed: bool,
    /// The prompt is all that is wanted: what is generated to get them is dropped.
    pub is_all: bool,
}

/// Log probabilities of the prompt of one choice: of each of its tokens but the first.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredPrompt {
    /// The prompt, at least one token.
    pub ids: Vec<u32>,
    /// In order, from the second token on.
    pub logprobs: Vec<TokenLogprobs>,
}

impl ScoredPrompt {
    /// An entry for each token, the first without log probabilities, placed in the echoed text `echo`.
    pub fn entries(&self, tokenizer: &Arc<Tokenizer>, echo: &str) -> Vec<TokenEntry> {
        let logprobs = self.logprobs.iter().cloned().map(|l| Some(Box::new(l)));
        let offsets = text_offsets(tokenizer, &self.ids, echo.chars().count());
        std::iter::once(None)
            .chain(logprobs)
            .zip(self.ids.iter().zip(offsets))
            .map(|(logprobs, (&token, text_offset))| TokenEntry {
                token,
                logprobs,
                text_offset,
            })
            .collect()
    }
}

/// Where the text of each token starts in a text of `num_chars` characters. Control tokens count where they are part of it.
fn text_offsets(tokenizer: &Arc<Tokenizer>, ids: &[u32], num_chars: usize) -> Vec<usize> {
    let all = offsets(tokenizer, ids, false);
    let (total, offsets) = if all.0 == num_chars {
        all
    } else {
        offsets(tokenizer, ids, true)
    };
    let limit = total.min(num_chars);
    offsets
        .into_iter()
        .map(|offset| offset.min(limit))
        .collect()
}

/// Characters of the whole text, and before each token.
fn offsets(tokenizer: &Arc<Tokenizer>, ids: &[u32], skip_special: bool) -> (usize, Vec<usize>) {
    let options = DetokenizerOptions {
        skip_special,
        continuation: false,
    };
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), options);
    let (mut num_chars, mut text) = (0, String::new());
    let before = |&id: &u32| {
        let offset = num_chars;
        text.clear();
        detokenizer.push(id, &mut text);
        num_chars += text.chars().count();
        offset
    };
    let offsets = ids.iter().map(before).collect();
    (num_chars, offsets)
}
