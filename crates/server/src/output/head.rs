//! What every chunk and body of one answer shares, and the small parts both are made of.

use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use izar_tokenizer::Tokenizer;

use super::json::{put_list, put_string, put_uint};
use super::logprobs::{TokenEntry, put_chat, put_completion};

/// Which of OpenAI's answers this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `chat.completion` and `chat.completion.chunk`.
    Chat,
    /// `text_completion`.
    Completion,
    /// `response` and its events.
    Response,
}

/// The identity of an answer.
#[derive(Clone)]
pub struct Head {
    /// Which answer.
    pub shape: Shape,
    /// `chatcmpl-…`, `cmpl-…` or `resp_…`; the same on every chunk.
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
    /// `stop`, `length` or `tool_calls`.
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

/// A part of a message. Completions have text alone.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// Text for the reader.
    Text(&'a str),
    /// The model's reasoning.
    Reasoning(&'a str),
    /// A call begins.
    Call {
        /// Which call of the message, from 0.
        index: usize,
        /// What the tool's answer will refer to.
        id: &'a str,
        /// The tool.
        name: &'a str,
    },
    /// More of the arguments of a call.
    Arguments {
        /// Which call of the message.
        index: usize,
        /// JSON, cut anywhere.
        text: &'a str,
    },
}

/// A piece of one choice: a part of its message and what belongs to the tokens that made it.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The part; of an ending, an empty text.
    pub part: Part<'a>,
    /// Log probabilities of the tokens, where they were asked for.
    pub entries: Option<&'a [TokenEntry]>,
    /// Ids of the tokens, where they were asked for.
    pub token_ids: Option<&'a [u32]>,
}

impl Shape {
    /// What the ids of such answers begin with.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Completion => "cmpl-",
            Self::Response => "resp_",
        }
    }

    /// The member of a request that holds the prompt.
    pub fn prompt_param(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completion => "prompt",
            Self::Response => "input",
        }
    }
}

impl Part<'_> {
    /// Appends the part as a member of chat's `delta`.
    pub fn put_delta(&self, out: &mut BytesMut) {
        match *self {
            Self::Text(text) => {
                out.put_slice(b"\"content\":");
                put_string(out, text);
            }
            Self::Reasoning(text) => put_reasoning(out, text),
            Self::Call { index, id, name } => {
                out.put_slice(b"\"tool_calls\":[{\"index\":");
                put_uint(out, index as u64);
                out.put_u8(b',');
                put_call(out, id, name, "");
                out.put_slice(b"}]");
            }
            Self::Arguments { index, text } => {
                out.put_slice(b"\"tool_calls\":[{\"index\":");
                put_uint(out, index as u64);
                out.put_slice(b",\"function\":{\"arguments\":");
                put_string(out, text);
                out.put_slice(b"}}]");
            }
        }
    }
}

/// Appends reasoning under both of its names: vLLM's newer one, and the one that most clients read.
pub fn put_reasoning(out: &mut BytesMut, text: &str) {
    out.put_slice(b"\"reasoning_content\":");
    put_string(out, text);
    out.put_slice(b",\"reasoning\":");
    put_string(out, text);
}

/// Appends the members of a call.
pub fn put_call(out: &mut BytesMut, id: &str, name: &str, arguments: &str) {
    out.put_slice(b"\"id\":");
    put_string(out, id);
    out.put_slice(b",\"type\":\"function\",\"function\":{\"name\":");
    put_string(out, name);
    out.put_slice(b",\"arguments\":");
    put_string(out, arguments);
    out.put_u8(b'}');
}

impl Head {
    /// Appends `,"logprobs":…`.
    pub fn put_logprobs(&self, out: &mut BytesMut, entries: Option<&[TokenEntry]>) {
        out.put_slice(b",\"logprobs\":");
        match (entries, self.shape) {
            (None | Some([]), _) => out.put_slice(b"null"),
            (Some(entries), Shape::Chat | Shape::Response) => {
                put_chat(out, &self.tokenizer, entries)
            }
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
