//! Structured output: what an answer must look like, and the token masks that make it so.
//!
//! A [`Format`] is what a client asks for. [`Grammars::compile`] turns it into a [`Constraint`], or says why that cannot be done: before
//! anything is generated, away from the threads that stream, within limits of size and time. Compiled formats are kept and
//! shared. The grammars are `llguidance`'s; nothing outside this module knows that crate.
//!
//! White space in JSON is bounded: a model that would write spaces for ever must go on after [`MAX_WHITESPACE`] of them.

mod compile;
mod vocabulary;
mod workers;

use serde_json::Value;

pub use compile::{Constraint, Grammars};
pub use workers::{MaskWorkers, Outcome, Watch};

/// Characters of white space between two JSON tokens at most.
pub const MAX_WHITESPACE: usize = 20;

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema(Value),
    /// Text that a regular expression describes as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Reasoning up to `</think>`, and then an answer that looks like this.
    AfterReasoning {
        /// Whether the model opens its reasoning itself, by `<think>`, and so may do without; if not, the prompt has opened it.
        is_optional: bool,
        /// What the answer must look like.
        answer: Box<Self>,
    },
    /// A context-free grammar in `llguidance`'s dialect of Lark, whose rule `start` is the answer. `%json {schema}` stands for JSON.
    Lark(String),
}

/// A format as a request asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct FormatRequest {
    /// What the answer must look like.
    pub format: Format,
    /// The field that asked for it, for errors.
    pub param: String,
}

/// Why there is no grammar for a format. Reads on from the name of the field that asked for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// It contradicts itself or uses what is not supported.
    #[error("cannot be used: {0}")]
    Refused(String),
    /// Its text is too long.
    #[error("is too large: at most {limit_bytes} bytes are compiled")]
    TooLarge {
        /// The limit, bytes.
        limit_bytes: usize,
    },
    /// Compiling it took too long.
    #[error("is too complex: it was not compiled within {limit_s} s")]
    TooSlow {
        /// The limit, seconds.
        limit_s: u64,
    },
    /// The vocabulary has no end-of-sequence token, without which no grammar can end.
    #[error("is not available for this model: its vocabulary has no end-of-sequence token")]
    NoEos,
    /// The machine has no thread to compile it on.
    #[error("cannot be compiled now: {0}")]
    NoThread(String),
}
