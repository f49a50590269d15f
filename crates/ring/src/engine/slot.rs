//! What the engine keeps about a slot where no front end can reach it.

use crate::layout::SlotIdx;
use crate::request::{RequestRecord, UNFILLED};
use crate::words::State;

/// Engine-private state of one slot. Opaque; [`EngineRing`](super::EngineRing) fills it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EngineSlot {
    /// The validated copy of the request; the one in the ring may change behind the engine's back.
    pub(super) record: RequestRecord,
    /// Generation in progress, or the last one if the slot is empty.
    pub(super) generation: u32,
    /// `PrefillPending` from the scan that announced it until the claim.
    pub(super) state: State,
    pub(super) num_generated: u32,
    /// The cancellation has been announced.
    pub(super) cancelled: bool,
    /// The lease is gone: on completion the slot is emptied without waiting to be recycled.
    pub(super) orphaned: bool,
    pub(super) claimed_ns: u64,
    pub(super) first_token_ns: u64,
}

impl EngineSlot {
    /// A slot nobody uses.
    pub const EMPTY: Self = Self {
        record: UNFILLED,
        generation: 0,
        state: State::Empty,
        num_generated: 0,
        cancelled: false,
        orphaned: false,
        claimed_ns: 0,
        first_token_ns: 0,
    };

    pub(super) const fn is_running(&self) -> bool {
        matches!(
            self.state,
            State::PrefillProcessing | State::DecodeProcessing | State::DecodePaused
        )
    }
}

/// A claimed request: every number checked, variable-length parts reachable through
/// [`EngineRing`](super::EngineRing) ([`prompt`](super::EngineRing::prompt) and siblings).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// The slot it lives in.
    pub slot: SlotIdx,
    /// The slot's generation.
    pub generation: u32,
    /// The front end's name for it, for logs.
    pub request_id: u64,
    /// When it arrived, front-end clock, ns.
    pub arrival_ns: u64,
    /// When it was claimed, engine clock, ns.
    pub claimed_ns: u64,
    /// Prompt tokens, at least one.
    pub prompt_len: u32,
    /// Most tokens to produce, at least one.
    pub max_tokens: u32,
    /// No stop before this many tokens.
    pub min_tokens: u32,
    /// Finite, at least 0; 0 is greedy.
    pub temperature: f32,
    /// In (0, 1]; 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// In [0, 1]; 0 is off.
    pub min_p: f32,
    /// Finite, above 0; 1 is off.
    pub repetition_penalty: f32,
    /// Finite; 0 is off.
    pub presence_penalty: f32,
    /// Finite; 0 is off.
    pub frequency_penalty: f32,
    /// Seed, if the request has one.
    pub seed: Option<u64>,
    /// End-of-sequence tokens do not stop it.
    pub ignore_eos: bool,
    /// Log-probabilities wanted: `Some(0)` of the sampled token, `Some(n)` also of the n most likely.
    pub num_logprobs: Option<u32>,
    /// Smaller runs sooner.
    pub priority: i32,
    /// Every output token waits for its mask ([`EngineRing::mask_source`](super::EngineRing::mask_source)).
    pub is_masked: bool,
    /// Log-probabilities wanted of each prompt token but the first: `Some(n)` also of the n most likely.
    pub num_prompt_logprobs: Option<u32>,
}
