//! [`EngineEnd`]: the engine's side of a ring that this crate has mapped.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use izar_ring::EngineRing;

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
