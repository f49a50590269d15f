//! Chats to prompts: rendering a model's chat template and encoding the result.
//!
//! # Control tokens
//! Only the template writes control tokens. A special token that stands in a message, a tool or any other input is
//! encoded as the text it is. How: before rendering, such occurrences are put between two marks (characters that
//! occur nowhere in the inputs); the marks travel through the template with the text they enclose; afterwards they are
//! taken out again, and a token that was enclosed, or that a mark interrupts, is text. Everything around it is encoded
//! exactly as without marks: the text is split at the template's tokens only.
//!
//! Which tokens are guarded depends on who wrote the input:
//! - *special* tokens everywhere. One exception: a special token that the template itself searches for
//!   (`content.split('</think>')`, `startswith(…)`) is part of the template's language, and left alone in messages of
//!   the assistant.
//! - *other added tokens* that the template writes but does not search for (DeepSeek's `<｜User｜>`, Qwen's
//!   `<tool_call>`) in everything but messages of the system, the developer and the assistant. Applications and
//!   models may write those: models do, and prompts that explain the format of tool calls do.
//! - All remaining added tokens (Qwen3's `<think>`) are ordinary vocabulary, matched wherever they are written.
//!
//! A piece of a guarded token at the edge of an input gets a mark at that edge, so that inputs which are harmless on
//! their own cannot join into a control token. A bare word (`user` in `<|user|>`) gets none: that is how templates
//! build control tokens from roles. Marks enclose a token rather than break it, so `'…' in content`, `split` and
//! `replace` work as before, and they are there only when an input contains a guarded token.
//!
//! # Beginning of text
//! If the vocabulary asks for a BOS, the prompt begins with exactly one, whether the template writes none, one or two.

mod guard;
mod methods;
mod python;
mod render;
mod repr;
mod source;
mod template;
mod tojson;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use render::{ChatOptions, RenderError};
pub use template::{ChatTemplate, SpecialTokens, TemplateError};

use crate::error::EncodeError;
use crate::tokenizer::{EncodeOptions, Tokenizer};
use guard::Guard;
use serde_json::Value;

/// Why a chat did not become a prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The template did not render.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The rendered text did not encode.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// A chat as the model sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedChat {
    /// The prompt.
    pub ids: Vec<u32>,
    /// The rendered text (a BOS that the template does not write is not in it).
    pub text: String,
}

/// A tokenizer with a chat template.
pub struct ChatEncoder {
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    /// By the names of the templates.
    guards: BTreeMap<String, Guard>,
}

impl ChatEncoder {
    /// Joins a tokenizer and a template.
    pub fn new(tokenizer: Arc<Tokenizer>, template: ChatTemplate) -> Self {
        let guard =
            |(name, source): (&str, &str)| (name.to_owned(), Guard::new(tokenizer.added(), source));
        let guards = template.sources().map(guard).collect();
        Self {
            tokenizer,
            template,
            guards,
        }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// Renders and encodes `messages` (objects with `role` and `content`, as in OpenAI's API).
    pub fn encode(
        &self,
        messages: &[Value],
        options: &ChatOptions<'_>,
    ) -> Result<EncodedChat, ChatError> {
        let (name, source) = self.template.choose(options)?;
        self.encode_guarded(
            &self.template,
            source,
            &self.guards[name],
            messages,
            options,
        )
    }

    /// As [`Self::encode`], with another template.
    pub fn encode_with(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
        options: &ChatOptions<'_>,
    ) -> Result<EncodedChat, ChatError> {
        let (_, source) = template.choose(options)?;
        let guard = Guard::new(self.tokenizer.added(), source);
        self.encode_guarded(template, source, &guard, messages, options)
    }

    fn encode_guarded(
        &self,
        template: &ChatTemplate,
        source: &str,
        guard: &Guard,
        messages: &[Value],
        options: &ChatOptions<'_>,
    ) -> Result<EncodedChat, ChatError> {
        let inputs = render::Inputs::new(messages, options)?;
        let (mut ids, text) = match guard.mark(&inputs, source) {
            None => {
                let text = template.render_inputs(inputs, options, None)?;
                let parse = EncodeOptions {
                    add_special: false,
                    parse_special: true,
                };
                (self.tokenizer.encode(&text, parse)?, text)
            }
            Some((marked, marks)) => {
                let rendered = template.render_inputs(marked, options, Some(marks))?;
                let (text, matches) = guard.unmark(&rendered, marks);
                (self.tokenizer.encode_with_matches(&text, &matches)?, text)
            }
        };
        self.frame(&mut ids);
        Ok(EncodedChat { ids, text })
    }

    /// Makes the prompt begin with exactly one BOS if the vocabulary asks for one.
    fn frame(&self, ids: &mut Vec<u32>) {
        let prefix = self.tokenizer.prefix();
        let Some(&bos) = prefix.first() else {
            return;
        };
        match ids.iter().take_while(|&&id| id == bos).count() {
            0 => drop(ids.splice(0..0, prefix.iter().copied())),
            num => drop(ids.drain(1..num)),
        }
    }
}
