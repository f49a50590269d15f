//! Mapped memory that holds a ring, kept mapped for as long as anyone uses it.

use std::any::Any;
use std::io;
use std::ptr::NonNull;

use izar_ring::{OutOfBounds, RingMemory};
use memmap2::{MmapOptions, MmapRaw};

use crate::TransportError;

/// A [`RingMemory`] together with what keeps its memory alive.
pub(crate) struct Mapping {
    memory: RingMemory,
    _owner: Box<dyn Any + Send + Sync>,
}

impl Mapping {
    /// Zeroed memory of this process alone; pages are committed when they are first touched.
    pub(crate) fn anonymous(len: usize) -> io::Result<Mapping> {
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
        Ok(Mapping::from_map(map.into()))
    }

    /// Takes over a shared, writable mapping that nothing else in this process uses.
    pub(crate) fn from_map(map: MmapRaw) -> Mapping {
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is never at address zero");
        // SAFETY: mappings start on a page and are readable, writable and initialised (zero or a file's bytes) over their
        // whole length. The owner is dropped with this value, and `memory` is lent out only by reference or to engines
        // that keep this value alive. Nobody else in this process has the address.
        unsafe { Mapping::from_raw(base, map.len(), Box::new(map)) }
    }

    /// Memory that belongs to `owner`, for example a pinned allocation that a device maps, too.
    ///
    /// # Safety
    /// What [`RingMemory::new`] asks for, for as long as `owner` lives.
    pub(crate) unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Mapping {
        // SAFETY: promised by the caller.
        let memory = unsafe { RingMemory::new(base, len) };
        Mapping {
            memory,
            _owner: owner,
        }
    }

    pub(crate) fn memory(&self) -> &RingMemory {
        &self.memory
    }
}

impl From<OutOfBounds> for TransportError {
    fn from(error: OutOfBounds) -> Self {
        let OutOfBounds {
            offset,
            len,
            region_bytes,
        } = error;
        TransportError::OutOfRange {
            offset,
            len,
            region_len: region_bytes,
        }
    }
}

/// Writes the one-sided calls of a transport whose `mapping` field holds the region.
macro_rules! transport_over_mapping {
    () => {
        fn len(&self) -> u64 {
            self.mapping.memory().len()
        }

        fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), $crate::TransportError> {
            Ok(self.mapping.memory().read(offset, dst)?)
        }

        fn write(&self, offset: u64, src: &[u8]) -> Result<(), $crate::TransportError> {
            Ok(self.mapping.memory().write(offset, src)?)
        }

        fn write_flag(&self, offset: u64, value: u64) -> Result<(), $crate::TransportError> {
            Ok(self.mapping.memory().write_flag(offset, value)?)
        }

        fn read_word(&self, offset: u64) -> Result<u64, $crate::TransportError> {
            Ok(self.mapping.memory().read_word(offset)?)
        }

        fn compare_and_swap(
            &self,
            offset: u64,
            current: u64,
            new: u64,
        ) -> Result<u64, $crate::TransportError> {
            Ok(self
                .mapping
                .memory()
                .compare_and_swap(offset, current, new)?)
        }
    };
}

pub(crate) use transport_over_mapping;
