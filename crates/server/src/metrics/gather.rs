//! What is read when somebody asks, rather than counted when it happens: the engine's header, the ring's slots, the process, the host.

use std::time::Duration;

use izar_transport::client::{
    ClientStats, EngineHealth, EngineStatus, RingClient, State, StepStats,
};

use crate::process::{HostCpu, ProcessStats};

/// The states of a slot in the order of their numbers, as labels and as the page knows them.
pub const SLOT_STATES: [(State, &str); 6] = [
    (State::Empty, "empty"),
    (State::PrefillPending, "pending"),
    (State::PrefillProcessing, "prefill"),
    (State::DecodeProcessing, "decode"),
    (State::DecodePaused, "paused"),
    (State::DecodeCompleted, "completed"),
];

/// A snapshot of the engine's own numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineSnapshot {
    /// Sequences that hold a batch row.
    pub num_running: u64,
    /// Sequences admitted to the ring but not running.
    pub num_waiting: u64,
    /// KV blocks of sequences.
    pub num_kv_blocks_owned: u64,
    /// KV blocks that hold reusable prefixes only.
    pub num_kv_blocks_cached: u64,
    /// Prompt tokens looked up in the prefix cache, since the start.
    pub prefix_cache_queries: u64,
    /// Prompt tokens found there, since the start.
    pub prefix_cache_hits: u64,
    /// Sequences preempted, since the start.
    pub num_preemptions: u64,
    /// Steps computed, since the start.
    pub num_steps: u64,
    /// KV blocks in all.
    pub num_kv_blocks: u64,
    /// Tokens in a block.
    pub block_size: u64,
    /// Most sequences running at once.
    pub max_num_seqs: u64,
    /// Histograms over its steps, since the start.
    pub steps: StepStats,
}

/// Gauges that are read when somebody asks.
#[derive(Debug, Clone, Default)]
pub struct Gauges {
    /// The engine's numbers.
    pub engine: EngineSnapshot,
    /// Its condition, unless the ring cannot be reached.
    pub health: Option<EngineHealth>,
    /// For how long its heartbeat has stood still.
    pub heartbeat_age: Duration,
    /// The front end's part of the ring.
    pub ring: ClientStats,
    /// Every slot of the ring, as the number of its [`State`]; empty if the ring cannot be reached.
    pub slots: Vec<u8>,
    /// HTTP requests that generate, now.
    pub requests_in_flight: u64,
    /// This process.
    pub process: Option<ProcessStats>,
    /// The processors of this host.
    pub host: Option<HostCpu>,
}

impl Gauges {
    /// Reads everything once.
    pub fn read(client: &RingClient, requests_in_flight: usize) -> Self {
        let mut gauges = Self {
            ring: client.stats(),
            requests_in_flight: requests_in_flight as u64,
            process: ProcessStats::read(),
            host: HostCpu::read(),
            ..Self::default()
        };
        if let Ok(status) = client.engine_status() {
            gauges.health = Some(status.health);
            gauges.heartbeat_age = status.heartbeat_age;
            gauges.engine = snapshot(&status);
        }
        let mut states = Vec::new();
        if client.slot_states(&mut states).is_ok() {
            gauges.slots = states.into_iter().map(|state| state as u8).collect();
        }
        gauges
    }

    /// Slots in each state, in the order of [`SLOT_STATES`].
    pub fn num_slots_by_state(&self) -> [u64; SLOT_STATES.len()] {
        let mut counts = [0; SLOT_STATES.len()];
        for &state in &self.slots {
            counts[usize::from(state)] += 1;
        }
        counts
    }
}

fn snapshot(status: &EngineStatus) -> EngineSnapshot {
    let engine = &status.stats;
    // An engine that has ended runs nothing, whatever it was doing when it last said so.
    let ended = matches!(
        status.health,
        EngineHealth::Stopped | EngineHealth::Failed(_)
    );
    let now = |gauge: u64| if ended { 0 } else { gauge };
    EngineSnapshot {
        num_running: now(engine.num_running),
        num_waiting: now(engine.num_waiting),
        num_kv_blocks_owned: now(engine.kv_blocks_owned),
        num_kv_blocks_cached: now(engine.kv_blocks_cached),
        prefix_cache_queries: engine.prefix_query_tokens,
        prefix_cache_hits: engine.prefix_hit_tokens,
        num_preemptions: engine.num_preemptions,
        num_steps: engine.num_steps,
        num_kv_blocks: status.num_kv_blocks.into(),
        block_size: status.block_size.into(),
        max_num_seqs: status.max_num_seqs.into(),
        steps: status.steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_listed_by_number() {
        for (number, (state, _)) in SLOT_STATES.into_iter().enumerate() {
            assert_eq!(State::from_u8(number as u8), Some(state));
        }
        assert_eq!(State::from_u8(SLOT_STATES.len() as u8), None);
    }
}
