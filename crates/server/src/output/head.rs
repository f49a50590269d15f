//! What every chunk and body of one answer shares, and the small parts both are made of.

use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use izar_tokenizer::Tokenizer;

use super::json::{put_list, put_string, put_uint};
use super::logprobs::{TokenEntry, put_chat, put_completion};

/// Which of OpenAI's two answers this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `chat.completion` and `chat.completion.chunk`.
    Chat,
    /// `text_completion`.
    Completion,
}

/// The identity of an answer.
#[derive(Clone)]
pub struct Head {
    /// Which of the two answers.
    pub shape: Shape,
    /// `chatcmpl-…` or `cmpl-…`; the same on every chunk.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model as the client named it.
    pub model: String,
    /// For the text of tokens in log probabilities.
    pub tokenizer: Arc<Tokenizer>,
}

/// Tokens counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of all prompts, each counted once whatever `n` is.
    pub prompt_tokens: u64,
    /// Tokens of all choices.
    pub completion_tokens: u64,
    /// Prompt tokens from the prefix cache, where the engine said.
    pub cached_tokens: Option<u64>,
}

/// Why a choice ended, in OpenAI's words and vLLM's `stop_reason`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// `stop` or `length`.
    pub finish_reason: &'static str,
    /// What stopped it, beside the model's own end of sequence.
    pub stop_reason: Option<StopReason>,
}

/// What stopped a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// This stop string.
    Text(String),
    /// This stop token.
    Token(u32),
}

/// A piece of one choice: text and what belongs to the tokens that made it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Piece<'a> {
    /// Text; may be empty.
    pub text: &'a str,
    /// Log probabilities of the tokens, where they were asked for.
    pub entries: Option<&'a [TokenEntry]>,
    /// Ids of the tokens, where they were asked for.
    pub token_ids: Option<&'a [u32]>,
}

impl Head {
    /// Appends `,"logprobs":…`.
    pub fn put_logprobs(&self, out: &mut BytesMut, entries: Option<&[TokenEntry]>) {
        out.put_slice(b",\"logprobs\":");
        match (entries, self.shape) {
            (None | Some([]), _) => out.put_slice(b"null"),
            (Some(entries), Shape::Chat) => put_chat(out, &self.tokenizer, entries),
            (Some(entries), Shape::Completion) => put_completion(out, &self.tokenizer, entries),
        }
    }

    /// Appends `"id":…,"object":…,"created":…,"model":…`.
    pub fn put_identity(&self, out: &mut BytesMut, object: &str) {
        out.put_slice(b"\"id\":");
        put_string(out, &self.id);
        out.put_slice(b",\"object\":");
        put_string(out, object);
        out.put_slice(b",\"created\":");
        put_uint(out, self.created);
        out.put_slice(b",\"model\":");
        put_string(out, &self.model);
    }
}

impl Ending {
    /// Appends `,"finish_reason":…,"stop_reason":…`.
    pub fn put(&self, out: &mut BytesMut) {
        out.put_slice(b",\"finish_reason\":\"");
        out.put_slice(self.finish_reason.as_bytes());
        out.put_slice(b"\",\"stop_reason\":");
        match &self.stop_reason {
            None => out.put_slice(b"null"),
            Some(StopReason::Text(text)) => put_string(out, text),
            Some(StopReason::Token(token)) => put_uint(out, (*token).into()),
        }
    }
}

impl Usage {
    /// Appends the object.
    pub fn put(&self, out: &mut BytesMut) {
        out.put_slice(b"{\"prompt_tokens\":");
        put_uint(out, self.prompt_tokens);
        out.put_slice(b",\"completion_tokens\":");
        put_uint(out, self.completion_tokens);
        out.put_slice(b",\"total_tokens\":");
        put_uint(out, self.prompt_tokens + self.completion_tokens);
        if let Some(cached) = self.cached_tokens {
            out.put_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
            put_uint(out, cached);
            out.put_u8(b'}');
        }
        out.put_u8(b'}');
    }
}

/// Appends `,"NAME":[…]` where there are ids to append.
pub fn put_ids(out: &mut BytesMut, name: &str, ids: Option<&[u32]>) {
    if let Some(ids) = ids {
        out.put_slice(b",\"");
        out.put_slice(name.as_bytes());
        out.put_slice(b"\":");
        put_list(out, ids, |out, &id| put_uint(out, id.into()));
    }
}
