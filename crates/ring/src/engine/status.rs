//! What the engine says about itself in the header.

use core::mem::offset_of;

use super::{EngineRing, EngineSlot};
use crate::error::EngineError;
use crate::header::{
    EngineInfo, EngineState, EngineStateWord, EngineStats, HARDWARE_BYTES, HEADER_HEARTBEAT,
    HEADER_STATE, HEADER_STATS, HEADER_STEPS, Header, MODEL_NAME_BYTES, PLACEMENT_BYTES,
};
use crate::layout::HEADER_BYTES;
use crate::steps::{StepRecord, StepStats};
use crate::sync::{Ordering, fence};

impl<M: AsRef<[EngineSlot]> + AsMut<[EngineSlot]>> EngineRing<M> {
    /// Writes down what the engine is. Call it before the state becomes `Ready`, when front ends
    /// start to rely on it.
    ///
    /// # Panics
    /// When the vocabulary is empty.
    pub fn describe(&mut self, info: &EngineInfo<'_>) {
        assert!(info.vocab_size > 0, "an engine has a vocabulary");
        self.vocab_size = info.vocab_size;
        let mut header = Header::decode(&self.memory.record::<{ HEADER_BYTES as usize }>(0));
        header.max_model_len = info.max_model_len;
        header.vocab_size = info.vocab_size;
        header.block_size = info.block_size;
        header.num_kv_blocks = info.num_kv_blocks;
        header.max_num_seqs = info.max_num_seqs;
        header.max_num_batched_tokens = info.max_num_batched_tokens;
        (header.model_name, header.model_name_bytes) = field::<MODEL_NAME_BYTES>(info.model_name);
        (header.placement, header.placement_bytes) = field::<PLACEMENT_BYTES>(info.placement);
        (header.hardware, header.hardware_bytes) = field::<HARDWARE_BYTES>(info.hardware);
        let described = offset_of!(Header, max_model_len)..offset_of!(Header, reserved1);
        self.store_record(described.start as u64, &header.encode()[described]);
    }

    /// Shows front ends what the engine is up to; `error` says why it failed.
    pub fn set_engine_state(&mut self, state: EngineState, error: Option<EngineError>) {
        // SYNC engine-state: pairs with a front end's acquire read of the state word.
        // Makes the description visible before the engine reads as ready.
        self.memory
            .word(HEADER_STATE)
            .store(EngineStateWord { state, error }.pack(), Ordering::Release);
    }

    /// Shows that the engine lives. `now_ns` is the engine clock; call it at least several times a
    /// second.
    pub fn heartbeat(&mut self, now_ns: u64) {
        // Relaxed: only its changing matters, it announces nothing.
        self.memory
            .word(HEADER_HEARTBEAT)
            .store(now_ns, Ordering::Relaxed);
    }

    /// Publishes gauges and counters: sixteen stores, cheap enough for every step.
    pub fn publish_stats(&mut self, stats: &EngineStats) {
        self.store_record(HEADER_STATS, &stats.encode());
    }

    /// Publishes the histograms over the engine's steps: a hundred stores, cheap beside a step.
    pub fn publish_steps(&mut self, steps: &StepStats) {
        self.store_record(HEADER_STEPS, &steps.encode());
    }

    /// Adds a step to the log, over the oldest one: a dozen stores and two more.
    pub fn log_step(&mut self, step: &StepRecord) {
        let index = self.num_steps_logged;
        // SYNC step-overwritten: pairs with the acquire fence of the bulk read that meets a word stored below. Makes the head stored by
        // the last call visible to whoever has read any of this record, so that its reader can tell that the old one is gone.
        fence(Ordering::Release);
        self.store_record(self.layout.step_record_offset(index), &step.encode());
        self.num_steps_logged = index + 1;
        // SYNC step-logged: pairs with a front end's acquire read of the head word. Makes the record visible before it is counted.
        self.memory
            .word(self.layout.step_log_head())
            .store(self.num_steps_logged, Ordering::Release);
    }
}

/// `text` as a field of the header and how much of it is in use.
fn field<const N: usize>(text: &str) -> ([u8; N], u32) {
    let text = cut(text, N).as_bytes();
    let mut bytes = [0; N];
    bytes[..text.len()].copy_from_slice(text);
    (bytes, text.len() as u32)
}

/// The longest prefix of whole characters that takes at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=text.len().min(bytes))
        .rev()
        .find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}
