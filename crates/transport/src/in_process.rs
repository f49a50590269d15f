//! [`InProcess`]: front end and engine share an address space. The default deployment.
//!
//! The ring lies in anonymous memory (or in memory the caller brings, for example pinned and mapped into a device). The
//! engine uses it through [`EngineEnd`], the front end through the [`Transport`]. Both sides can sleep: the front end raises
//! the engine's event after every submit, cancel and recycle; an engine that runs on the host raises the reader's.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use izar_ring::{EngineRing, RingLayout, RingOptions, slot_table};

use crate::mapping::{Mapping, transport_over_mapping};
use crate::wake::EventCount;
use crate::{EngineEnd, Transport};

/// A ring inside this process.
pub struct InProcess {
    mapping: Mapping,
    engine_event: EventCount,
    reader_event: Option<EventCount>,
}

/// Why there is no ring in this process.
#[derive(Debug, thiserror::Error)]
pub enum InProcessError {
    /// The ring cannot be laid out in the memory.
    #[error("cannot create the ring: {0}")]
    Ring(#[from] izar_ring::AttachError),
    /// The memory could not be had.
    #[error("cannot map {bytes} bytes for the ring: {source}")]
    Map {
        /// Size of the ring.
        bytes: u64,
        /// What the system said.
        source: std::io::Error,
    },
}

impl InProcess {
    /// Creates a ring in anonymous memory. Its engine is expected to raise the reader's event ([`EngineEnd::doorbell`]) after
    /// it published something.
    ///
    /// # Errors
    /// If the geometry is impossible or the address space is exhausted.
    pub fn create(options: &RingOptions) -> Result<(Arc<InProcess>, EngineEnd), InProcessError> {
        let layout = RingLayout::new(options.geometry).map_err(izar_ring::AttachError::Geometry)?;
        let bytes = layout.total_bytes();
        let mapping = Mapping::anonymous(bytes as usize)
            .map_err(|source| InProcessError::Map { bytes, source })?;
        InProcess::with_mapping(mapping, options, Some(EventCount::new()))
    }

    /// Creates a ring in memory that `owner` keeps alive, for an engine that writes it from a device: nobody raises the
    /// reader's event then, so the reader polls.
    ///
    /// # Errors
    /// If the geometry is impossible or does not fit.
    ///
    /// # Safety
    /// What [`izar_ring::RingMemory::new`] asks for, for as long as `owner` lives.
    pub unsafe fn create_in(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
        options: &RingOptions,
    ) -> Result<(Arc<InProcess>, EngineEnd), InProcessError> {
        // SAFETY: promised by the caller.
        let mapping = unsafe { Mapping::from_raw(base, len, owner) };
        InProcess::with_mapping(mapping, options, None)
    }

    /// Where the region lies in this process: [`Transport::len`] bytes, for as long as this value lives. For mapping it into a
    /// device, which keeps to the protocol's words as everybody does.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.memory().base()
    }

    fn with_mapping(
        mapping: Mapping,
        options: &RingOptions,
        reader_event: Option<EventCount>,
    ) -> Result<(Arc<InProcess>, EngineEnd), InProcessError> {
        let slots = slot_table(options.geometry.num_slots);
        let ring = EngineRing::create(mapping.memory().clone(), options, slots)?;
        let transport = Arc::new(InProcess {
            mapping,
            engine_event: EventCount::new(),
            reader_event,
        });
        Ok((transport.clone(), EngineEnd::new(ring, transport)))
    }
}

impl Transport for InProcess {
    transport_over_mapping!();

    fn engine_event(&self) -> Option<&EventCount> {
        Some(&self.engine_event)
    }

    fn reader_event(&self) -> Option<&EventCount> {
        self.reader_event.as_ref()
    }
}
