//! Doors for the fuzz targets in `fuzz/`: the parts that they drive are private, and stay so without the feature `fuzzing`.
//!
//! Nothing here is made for the fuzzer alone: bodies go through the handlers' own parsing, rendering and encoding, and tokens through
//! the choice, the assembler and the writers of a real answer. Only the ring is left out, so that a run depends on its input alone.

pub use crate::answer::replay::{ReplayToken, Replayed};
pub use crate::message::{Begins, Delta, ExpectedCalls, MessageFormat, MessageParser, ToolFormat};
pub use crate::output::stop::{StopMatcher, StopSet};

use crate::error::ApiError;
use crate::routes::{chat, completions, responses, tokens};
use crate::server::Server;

/// Where a body is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/tokenize`.
    Tokenize,
    /// `/detokenize`.
    Detokenize,
    /// `/v1/responses`.
    Responses,
}

/// How a body was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The body of the answer.
    pub body: String,
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self {
            status: error.status().as_u16(),
            body: error.body().to_string(),
        }
    }
}

impl Server {
    /// Does with a body all that is done before the engine hears of it.
    ///
    /// # Errors
    /// What the client would be answered instead.
    pub fn examine(&self, endpoint: Endpoint, body: &[u8]) -> Result<(), Refusal> {
        let app = self.app();
        match endpoint {
            Endpoint::Chat => drop(chat::order(app, body)?),
            Endpoint::Completions => drop(completions::order(app, body)?),
            Endpoint::Tokenize => drop(tokens::encoded(app, body)?),
            Endpoint::Detokenize => drop(tokens::decoded(app, body)?),
            Endpoint::Responses => drop(responses::order(app, body)?),
        }
        Ok(())
    }

    /// What the completion request `body` of one choice is answered where the engine says `tokens`.
    ///
    /// # Errors
    /// What the client would be answered instead.
    pub fn replay(&self, body: &[u8], tokens: &[ReplayToken]) -> Result<Replayed, Refusal> {
        let order = completions::order(self.app(), body)?;
        Ok(crate::answer::replay::replay(self.app(), &order, tokens))
    }

    /// As [`Server::replay`], for a chat.
    ///
    /// # Errors
    /// What the client would be answered instead.
    pub fn replay_chat(&self, body: &[u8], tokens: &[ReplayToken]) -> Result<Replayed, Refusal> {
        let order = chat::order(self.app(), body)?;
        Ok(crate::answer::replay::replay(self.app(), &order, tokens))
    }
}
