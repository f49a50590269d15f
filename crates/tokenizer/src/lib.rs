//! Text to token ids and back, and chats to prompts.
//!
//! - [`Tokenizer`] encodes by `fastokens` where that crate supports the vocabulary and agrees with Hugging Face's
//!   `tokenizers` on a self-check at load, and by `tokenizers` otherwise. It is built from a `tokenizer.json` or from
//!   the metadata of a GGUF file ([`GgufVocab`]).
//! - [`Detokenizer`] turns ids back into text one at a time, never emitting half a character. What it streams
//!   concatenates to exactly what [`Tokenizer::decode`] gives for the whole.
//! - [`ChatTemplate`] renders messages as Hugging Face does; [`ChatEncoder`] renders and encodes, keeping special
//!   tokens that somebody wrote into a message apart from those that the template writes.
//! - [`ModelText`] is all of these as loaded from a model directory or a GGUF file.
//!
//! Nothing here knows about the engine, the ring or HTTP. Every type is immutable after load and shared by reference
//! between threads, except [`Detokenizer`], which belongs to one stream.
#![forbid(unsafe_code)]

mod added;
mod backend;
mod bytes;
mod chat;
mod definition;
mod detokenizer;
mod error;
mod gguf;
mod load;
mod tokenizer;

pub use chat::{
    ChatEncoder, ChatError, ChatOptions, ChatTemplate, EncodedChat, RenderError, SpecialTokens,
    TemplateError,
};
pub use detokenizer::{Detokenizer, DetokenizerOptions};
pub use error::{EncodeError, TokenizerError};
pub use gguf::{GgufMetadata, GgufVocab, TokenType};
pub use load::{LoadError, ModelText};
pub use tokenizer::{EncodeOptions, Tokenizer};
