//! The engine's condition, watched through its header words.
//!
//! A heartbeat counts as alive when it *changes*, timed by the front end's own clock, so the two clocks need not agree. Only
//! an engine that has said it serves can be lost: one that loads weights may be silent for minutes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use izar_ring::{
    EngineError, EngineState, EngineStateWord, EngineStats, HEADER_BYTES, HEADER_HEARTBEAT,
    HEADER_STATE, Header, StepStats,
};

use super::outcome::RequestError;
use crate::{Transport, TransportError};

/// The engine's condition as the front end sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineHealth {
    /// Loading; not yet ready.
    Starting,
    /// Takes requests.
    Ready,
    /// Finishes what it has, takes nothing new.
    Draining,
    /// Has stopped.
    Stopped,
    /// Has failed, and perhaps said why.
    Failed(Option<EngineError>),
    /// Its heartbeat has not moved for longer than [`super::ClientOptions::engine_timeout`].
    Lost,
}

impl std::fmt::Display for EngineHealth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineHealth::Starting => f.write_str("it is still starting"),
            EngineHealth::Ready => f.write_str("it is ready"),
            EngineHealth::Draining => f.write_str("it is draining"),
            EngineHealth::Stopped => f.write_str("it has stopped"),
            EngineHealth::Failed(None) => f.write_str("it has failed"),
            EngineHealth::Failed(Some(error)) => write!(f, "it has failed: {error}"),
            EngineHealth::Lost => f.write_str("it gives no sign of life"),
        }
    }
}

/// What the engine says about itself, and how recently.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineStatus {
    /// Its condition.
    pub health: EngineHealth,
    /// For how long its heartbeat has been seen standing still; the resolution is the client's heartbeat interval.
    pub heartbeat_age: Duration,
    /// Name of the model, if the engine has given one.
    pub model_name: String,
    /// Where it plans its steps, for people.
    pub placement: String,
    /// What it computes on, for people.
    pub hardware: String,
    /// Most tokens of prompt and output together.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// KV blocks in the pool.
    pub num_kv_blocks: u32,
    /// Most sequences running at once.
    pub max_num_seqs: u32,
    /// Most tokens of one step.
    pub max_num_batched_tokens: u32,
    /// Gauges and counters.
    pub stats: EngineStats,
    /// Histograms over its steps.
    pub steps: StepStats,
}

/// Watches one engine.
pub(super) struct EngineWatch {
    timeout: Duration,
    seen: Mutex<Seen>,
}

struct Seen {
    health: EngineHealth,
    heartbeat: u64,
    changed: Instant,
}

impl EngineWatch {
    /// Nothing seen yet.
    pub(super) fn new(timeout: Duration, now: Instant) -> EngineWatch {
        let seen = Seen {
            health: EngineHealth::Starting,
            heartbeat: 0,
            changed: now,
        };
        EngineWatch {
            timeout,
            seen: Mutex::new(seen),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        // Every update leaves it consistent, so a panic elsewhere does not spoil it.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the last look found.
    pub(super) fn health(&self) -> EngineHealth {
        self.lock().health
    }

    /// Looks at the engine's words.
    pub(super) fn refresh(
        &self,
        transport: &dyn Transport,
        now: Instant,
    ) -> Result<EngineHealth, TransportError> {
        // SYNC engine-state: pairs with the engine's release store of its state.
        let word = transport.read_word(HEADER_STATE)?;
        let heartbeat = transport.read_word(HEADER_HEARTBEAT)?;
        let mut seen = self.lock();
        if heartbeat != seen.heartbeat {
            seen.heartbeat = heartbeat;
            seen.changed = now;
        }
        let silent = now.saturating_duration_since(seen.changed) > self.timeout;
        seen.health = match EngineStateWord::unpack(word) {
            None => EngineHealth::Failed(None),
            Some(EngineStateWord { state, error }) => match state {
                EngineState::Starting => EngineHealth::Starting,
                EngineState::Stopped => EngineHealth::Stopped,
                EngineState::Failed => EngineHealth::Failed(error),
                EngineState::Ready | EngineState::Draining if silent => EngineHealth::Lost,
                EngineState::Ready => EngineHealth::Ready,
                EngineState::Draining => EngineHealth::Draining,
            },
        };
        Ok(seen.health)
    }

    /// Why nothing more is to be expected from the engine, if so.
    pub(super) fn loss(&self, now: Instant) -> Option<RequestError> {
        let seen = self.lock();
        match seen.health {
            EngineHealth::Starting | EngineHealth::Ready | EngineHealth::Draining => None,
            EngineHealth::Stopped => Some(RequestError::EngineStopped),
            EngineHealth::Failed(error) => Some(RequestError::EngineFailed(error)),
            EngineHealth::Lost => Some(RequestError::EngineLost(
                now.saturating_duration_since(seen.changed),
            )),
        }
    }

    /// Everything the header says.
    pub(super) fn status(&self, transport: &dyn Transport) -> Result<EngineStatus, TransportError> {
        let now = Instant::now();
        let health = self.refresh(transport, now)?;
        let mut bytes = [0; HEADER_BYTES as usize];
        transport.read(0, &mut bytes)?;
        let header = Header::decode(&bytes);
        Ok(EngineStatus {
            health,
            heartbeat_age: now.saturating_duration_since(self.lock().changed),
            model_name: header.model_name().unwrap_or_default().to_owned(),
            placement: header.placement().unwrap_or_default().to_owned(),
            hardware: header.hardware().unwrap_or_default().to_owned(),
            max_model_len: header.max_model_len,
            vocab_size: header.vocab_size,
            block_size: header.block_size,
            num_kv_blocks: header.num_kv_blocks,
            max_num_seqs: header.max_num_seqs,
            max_num_batched_tokens: header.max_num_batched_tokens,
            stats: header.stats,
            steps: header.steps,
        })
    }
}
