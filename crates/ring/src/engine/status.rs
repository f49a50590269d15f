//! What the engine says about itself in the header.

use core::mem::offset_of;

use super::{EngineRing, EngineSlot};
use crate::error::EngineError;
use crate::header::{
    EngineInfo, EngineState, EngineStateWord, EngineStats, HEADER_HEARTBEAT, HEADER_STATE,
    HEADER_STATS, HEADER_STEPS, Header, MODEL_NAME_BYTES,
};
use crate::layout::HEADER_BYTES;
use crate::steps::StepStats;
use crate::sync::Ordering;

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
        let name = cut(info.model_name, MODEL_NAME_BYTES);
        header.model_name_bytes = name.len() as u32;
        header.model_name = [0; MODEL_NAME_BYTES];
        header.model_name[..name.len()].copy_from_slice(name.as_bytes());
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
}

/// The longest prefix of whole characters that takes at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=text.len().min(bytes))
        .rev()
        .find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}
