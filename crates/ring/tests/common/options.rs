//! The ring that most tests use.

use izar_ring::*;

/// Two small leases of two slots each, enough room for [`SHARE`] per slot.
pub const SMALL: RingGeometry = RingGeometry {
    num_slots: 4,
    num_leases: 2,
    input_arena_bytes: 8192,
    output_arena_bytes: 8192,
};

/// The small ring's options.
pub const OPTIONS: RingOptions = RingOptions {
    geometry: SMALL,
    lease_timeout_ns: 1_000,
    epoch: 7,
};

/// A description with a vocabulary of 100 tokens.
pub const INFO: EngineInfo<'static> = EngineInfo {
    max_model_len: 64,
    vocab_size: 100,
    block_size: 16,
    num_kv_blocks: 8,
    max_num_seqs: 4,
    max_num_batched_tokens: 32,
    model_name: "test",
    placement: "host",
    hardware: "none",
};
