//! Heap memory to put a ring in.

use izar_ring::*;

/// Heap memory for a ring; outlives what is made of it by being declared first.
pub struct Heap {
    bytes: std::ptr::NonNull<u8>,
    layout: std::alloc::Layout,
}

impl Heap {
    pub fn new(bytes: u64) -> Self {
        let layout =
            std::alloc::Layout::from_size_align(bytes as usize, PAGE_BYTES as usize).unwrap();
        // SAFETY: the size is not zero.
        let bytes = unsafe { std::alloc::alloc_zeroed(layout) };
        Self {
            bytes: std::ptr::NonNull::new(bytes).unwrap(),
            layout,
        }
    }

    /// The ring memory; must not outlive `self`.
    pub fn memory(&self) -> RingMemory {
        // SAFETY: page aligned, zeroed, mapped until `self` goes, which tests declare before every
        // user; only ring code touches it, and the tests follow the protocol.
        unsafe { RingMemory::new(self.bytes, self.layout.size()) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { std::alloc::dealloc(self.bytes.as_ptr(), self.layout) };
    }
}
