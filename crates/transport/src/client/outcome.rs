//! What comes back: tokens, the end of a request, and the errors of connecting and submitting.

use std::time::Duration;

use izar_ring::{EngineError, HeaderError};

use super::engine::EngineHealth;
use crate::TransportError;

/// One generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// Token id.
    pub token: u32,
    /// When the engine published it, in nanoseconds of the engine's clock.
    pub timestamp_ns: u64,
    /// Present if the request asked for log probabilities.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

/// Log probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Log probability of the sampled token.
    pub sampled: f32,
    /// Rank of the sampled token among all tokens, 1 for the most probable.
    pub rank: u32,
    /// The most probable tokens and their log probabilities, most probable first; as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// What a poll of a request brought.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// New tokens were appended; there may be more.
    More,
    /// The request is over. Tokens that came before the end were appended; every later poll says the same again.
    Finished(Finish),
}

/// The end of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// Tokens delivered in all, the stop token included if there was one.
    pub num_generated: u32,
    /// Prompt tokens that the prefix cache answered.
    pub num_cached_tokens: u32,
    /// How often the sequence lost its blocks and was computed again.
    pub num_preemptions: u32,
    /// When the engine took the request, engine clock; 0 if it never did.
    pub claimed_ns: u64,
    /// When the first token was published, engine clock; 0 if none was.
    pub first_token_ns: u64,
    /// When the engine ended the request, engine clock; 0 if it did not.
    pub completed_ns: u64,
}

impl Finish {
    /// An end by `error` after `num_generated` tokens, of which the engine has told nothing more.
    pub(super) fn failed(error: RequestError, num_generated: u32) -> Finish {
        Finish {
            reason: FinishReason::Failed(error),
            num_generated,
            num_cached_tokens: 0,
            num_preemptions: 0,
            claimed_ns: 0,
            first_token_ns: 0,
            completed_ns: 0,
        }
    }
}

/// Why a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop or end-of-sequence token was sampled.
    Stop {
        /// That token: the last one delivered.
        token: Option<u32>,
    },
    /// `max_tokens` or the context window was reached.
    Length,
    /// The caller cancelled it.
    Cancelled,
    /// It could not be carried through.
    Failed(RequestError),
}

/// Why a request could not be carried through.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The engine refused or failed it; says why.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine's heartbeat has stopped.
    #[error("the engine gave no sign of life for {0:.1?}")]
    EngineLost(Duration),
    /// The engine stopped on request without ending this one.
    #[error("the engine has stopped")]
    EngineStopped,
    /// The engine as a whole failed.
    #[error("the engine has failed{}", because(*.0))]
    EngineFailed(Option<EngineError>),
    /// The engine took this front end for dead and withdrew its lease.
    #[error("the engine withdrew this front end's lease")]
    LeaseRevoked,
    /// This front end closed its client.
    #[error("the front end closed its connection to the engine")]
    ClientClosed,
    /// The token reader met a broken invariant of its own; its message is in the log.
    #[error("the token reader failed")]
    ReaderFailed,
    /// The ring held something that cannot be.
    #[error("the ring holds an impossible value: {0}")]
    CorruptRing(&'static str),
    /// The ring could not be reached.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// The end of a message about a failed engine.
fn because(error: Option<EngineError>) -> String {
    error.map(|error| format!(": {error}")).unwrap_or_default()
}

/// Why [`super::RingClient::connect`] failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no ring that this version understands.
    #[error("cannot use the ring: {0}")]
    Header(#[from] HeaderError),
    /// Every lease is held by another front end; start the engine with more, or stop one.
    #[error("all {0} leases of the ring are held by other front ends")]
    NoLease(u32),
    /// The ring could not be reached.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Memory for received tokens or the reader's thread could not be had.
    #[error("cannot start the token reader: {0}")]
    Resources(#[from] std::io::Error),
}

/// Why [`super::RingClient::submit`] did not take a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// All slots or all arena space are in use: try again later. Not a failure; HTTP says 429.
    #[error("the ring is full ({what}); try again in about {}s", retry_after.as_secs().max(1))]
    Full {
        /// What ran out.
        what: Shortage,
        /// A guess at when some will be free.
        retry_after: Duration,
    },
    /// The prompt with its lists is larger than the front end's whole input arena.
    #[error("the request needs {needed_bytes} input bytes, the ring has {arena_bytes} in all")]
    InputTooLarge {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes there are.
        arena_bytes: u64,
    },
    /// `max_tokens` (with log probabilities) is larger than the front end's whole output arena.
    #[error(
        "the request needs {needed_bytes} output bytes, the ring has {arena_bytes} in all; lower max_tokens"
    )]
    OutputTooLarge {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes there are.
        arena_bytes: u64,
    },
    /// The request makes no sense, for example an empty prompt.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// The engine takes no requests now.
    #[error("the engine is not ready: {0}")]
    EngineNotReady(EngineHealth),
    /// The client lost its lease or was closed: connect again.
    #[error("this client can no longer submit: {0}")]
    Disconnected(RequestError),
}

/// What [`SubmitError::Full`] ran out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// Ring slots.
    Slots,
    /// Space for prompts.
    InputArena,
    /// Space for generated tokens.
    OutputArena,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Shortage::Slots => "no free slot",
            Shortage::InputArena => "no input space",
            Shortage::OutputArena => "no output space",
        })
    }
}
