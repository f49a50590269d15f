//! One choice: tokens in, text out.
//!
//! Streaming and not streaming run the same [`Assembler`], so the pieces of a stream concatenate to the whole answer by construction.
//! It owns the incremental detokenizer and the stop matcher of its choice and knows nothing of HTTP or the engine. It belongs to one task.

use std::sync::Arc;

use izar_tokenizer::Detokenizer;

use super::stop::{StopMatcher, StopSet};

/// What may end a choice, shared by the choices of one request.
#[derive(Debug, Default)]
pub struct StopRules {
    /// Stop strings.
    pub strings: Arc<StopSet>,
    /// The client's stop tokens.
    pub token_ids: Vec<u32>,
    /// The model's end-of-sequence tokens; empty where the client ignores them.
    pub eos_token_ids: Vec<u32>,
    /// Control tokens whose text is shown all the same: markup that the message is taken apart by.
    pub shown_token_ids: Vec<u32>,
    /// Whether a stop token's text stays in the output.
    pub include_stop: bool,
    /// Nothing stops a choice before it has this many tokens.
    pub min_tokens: u32,
}

/// What ended a choice, as far as its tokens and text tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// An end-of-sequence token of the model.
    Eos,
    /// A stop token of the client.
    Token(u32),
    /// A stop string: its index in the [`StopSet`].
    Text(usize),
    /// The only call that was wanted is complete.
    Called,
}

/// The state of one choice's text.
pub struct Assembler {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    rules: Arc<StopRules>,
    num_tokens: u32,
    num_chars: usize,
    /// Text of the token at hand, before stop strings are looked for.
    fresh: String,
}

impl Assembler {
    /// A choice without tokens, whose text starts `num_chars` characters into the answer (after an echoed prompt).
    pub fn new(detokenizer: Detokenizer, rules: Arc<StopRules>, num_chars: usize) -> Self {
        let matcher = StopMatcher::new(Arc::clone(&rules.strings));
        Self {
            detokenizer,
            matcher,
            rules,
            num_tokens: 0,
            num_chars,
            fresh: String::new(),
        }
    }

    /// What may end the choice.
    pub fn rules(&self) -> &Arc<StopRules> {
        &self.rules
    }

    /// Characters of text before the next token.
    pub fn num_chars(&self) -> usize {
        self.num_chars
    }

    /// Takes a token and appends to `out` the text that is now certain. After a stop, no more tokens may come.
    pub fn push(&mut self, token: u32, out: &mut String) -> Option<Stopped> {
        self.num_tokens += 1;
        let may_stop = self.num_tokens > self.rules.min_tokens;
        let stopped = if may_stop {
            self.stop_token(token)
        } else {
            None
        };
        if stopped.is_none() || self.rules.include_stop {
            self.fresh.clear();
            if self.rules.shown_token_ids.contains(&token) {
                self.detokenizer.push_shown(token, &mut self.fresh);
            } else {
                self.detokenizer.push(token, &mut self.fresh);
            }
            if let Some(stop) = self.match_fresh(may_stop, out) {
                return Some(Stopped::Text(stop));
            }
        }
        stopped
    }

    /// Ends the text: releases what was held back for a character or a stop string that did not come. What is released may itself
    /// complete a stop string. Nothing is released after a stop string.
    pub fn finish(&mut self, out: &mut String) -> Option<Stopped> {
        self.fresh.clear();
        self.detokenizer.finish(&mut self.fresh);
        let stop = self.match_fresh(self.num_tokens > self.rules.min_tokens, out);
        if stop.is_none() {
            self.matcher.finish(out);
        }
        stop.map(Stopped::Text)
    }

    fn match_fresh(&mut self, may_stop: bool, out: &mut String) -> Option<usize> {
        self.num_chars += self.fresh.chars().count();
        if may_stop {
            return self.matcher.push(&self.fresh, out);
        }
        out.push_str(&self.fresh);
        None
    }

    fn stop_token(&self, token: u32) -> Option<Stopped> {
        if self.rules.token_ids.contains(&token) {
            Some(Stopped::Token(token))
        } else if self.rules.eos_token_ids.contains(&token) {
            Some(Stopped::Eos)
        } else {
            None
        }
    }
}
