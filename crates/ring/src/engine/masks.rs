//! Token masks: what the front end allows each output token of a masked request to be, delivered while the request runs.
//!
//! A [`MaskSource`] reads the masks of one request from any thread of the engine. It is a view: it holds no claim on the slot,
//! and a mask word of another generation reads as nothing delivered.

use super::{EngineRing, EngineSlot};
use crate::layout::SlotIdx;
use crate::memory::RingMemory;
use crate::request::{REQUEST_MASKED, mask_words};
use crate::sync::Ordering;
use crate::words::{MASK_BUFFERS, MaskState, MaskWord};

/// Where the masks of one masked request are read.
#[derive(Clone, Debug)]
pub struct MaskSource {
    memory: RingMemory,
    generation: u32,
    /// Byte offset of the slot's mask word.
    word_offset: u64,
    /// Byte offset of buffer 0.
    area_offset: u64,
    /// Words of 8 bytes in a buffer.
    num_words: u32,
}

impl MaskSource {
    /// Looks for the mask of output token `index` and, if it is [`MaskState::Ready`], copies it to `out`: one bit per vocabulary
    /// entry, low bit first.
    ///
    /// The front end writes the buffer again only after it has read token `index + 1`, so a mask that was there stays until it
    /// was used. One that breaks the protocol gets a mixture of masks, nothing worse.
    ///
    /// # Panics
    /// When `out` is not long enough for the vocabulary.
    pub fn load(&self, index: u32, out: &mut [u32]) -> MaskState {
        // SYNC mask-delivered: pairs with the front end's `write_flag` of the mask word. Makes the mask visible before the
        // word that promises it; the engine's reads of earlier masks came before the tokens that the front end read first.
        let word = self.memory.word(self.word_offset).load(Ordering::Acquire);
        let state = MaskWord::unpack(word).state(self.generation, index);
        if state == MaskState::Ready {
            self.copy(index, out);
        }
        state
    }

    fn copy(&self, index: u32, out: &mut [u32]) {
        let buffer = u64::from(index % MASK_BUFFERS) * u64::from(self.num_words) * 8;
        let halves = out.chunks_mut(2);
        assert!(halves.len() >= self.num_words as usize, "room for a mask");
        for (i, half) in halves.take(self.num_words as usize).enumerate() {
            let word = self
                .memory
                .load_payload(self.area_offset + buffer + 8 * i as u64);
            half[0] = word as u32;
            if let Some(high) = half.get_mut(1) {
                *high = (word >> 32) as u32;
            }
        }
    }

    /// Byte offset of the slot's mask word in the region, for an engine that reads it from a device.
    pub const fn word_offset(&self) -> u64 {
        self.word_offset
    }

    /// Byte offset of the mask area in the region: [`MASK_BUFFERS`] masks, each of [`mask_words`] 8-byte words.
    pub const fn area_offset(&self) -> u64 {
        self.area_offset
    }

    /// Generation that the mask word must carry.
    pub const fn generation(&self) -> u32 {
        self.generation
    }
}

impl<M: AsRef<[EngineSlot]> + AsMut<[EngineSlot]>> EngineRing<M> {
    /// Where the masks of the request claimed in `slot` are; none if it is not masked.
    pub fn mask_source(&self, slot: SlotIdx) -> Option<MaskSource> {
        let local = self.slot(slot);
        let is_masked = local.record.flags & REQUEST_MASKED != 0;
        is_masked.then(|| MaskSource {
            memory: self.memory.clone(),
            generation: local.generation,
            word_offset: self.layout.mask_offset(slot),
            area_offset: local.record.masks.offset,
            num_words: mask_words(self.vocab_size),
        })
    }
}
