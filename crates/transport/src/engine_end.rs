//! [`EngineEnd`]: the engine's side of a ring that this crate has mapped.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use izar_ring::{EngineRing, MaskSource, MaskState, SlotIdx};

use crate::Transport;
use crate::wake::EngineDoorbell;

/// An [`EngineRing`] that keeps its memory mapped, and the doorbell that belongs to it. Belongs to the scheduler's thread.
///
/// A [`izar_ring::RingMemory`] cloned out of the ring must not be used after this value and its transport are gone.
pub struct EngineEnd {
    // Dropped before the transport that owns the memory.
    ring: EngineRing,
    doorbell: EngineDoorbell,
}

impl EngineEnd {
    /// `ring` lies in memory that `transport` owns.
    pub(crate) fn new(ring: EngineRing, transport: Arc<dyn Transport>) -> EngineEnd {
        EngineEnd {
            ring,
            doorbell: EngineDoorbell::new(transport),
        }
    }

    /// Sleeps and wake-ups.
    pub fn doorbell(&self) -> &EngineDoorbell {
        &self.doorbell
    }

    /// The token masks of the request claimed in `slot`, for the thread that samples; none if it is not masked.
    pub fn token_masks(&self, slot: SlotIdx) -> Option<TokenMasks> {
        let source = self.ring.mask_source(slot)?;
        Some(TokenMasks {
            source,
            _memory: self.doorbell.transport(),
        })
    }
}

/// A [`MaskSource`] that keeps its memory mapped.
#[derive(Clone)]
pub struct TokenMasks {
    // Dropped before the transport that owns the memory.
    source: MaskSource,
    _memory: Arc<dyn Transport>,
}

impl TokenMasks {
    /// See [`MaskSource::load`].
    pub fn load(&self, index: u32, out: &mut [u32]) -> MaskState {
        self.source.load(index, out)
    }

    /// Where the masks lie, for an engine that reads them from a device.
    pub fn source(&self) -> &MaskSource {
        &self.source
    }
}

impl std::fmt::Debug for TokenMasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.source.fmt(f)
    }
}

impl Deref for EngineEnd {
    type Target = EngineRing;

    fn deref(&self) -> &EngineRing {
        &self.ring
    }
}

impl DerefMut for EngineEnd {
    fn deref_mut(&mut self) -> &mut EngineRing {
        &mut self.ring
    }
}
