//! The engine's side of the ring: direct memory, one writer.
//!
//! [`EngineRing`] belongs to the engine's scheduler thread. It keeps what it must not read back from
//! shared memory (validated copies of requests, what it has announced) in a table the caller provides,
//! so that no operation allocates and nothing a front end changes later can hurt.

mod arena;
mod claim;
mod leases;
mod masks;
mod publish;
mod scan;
mod slot;
mod status;

use core::fmt;
use core::mem::MaybeUninit;

pub use arena::Generated;
pub use masks::MaskSource;
pub use publish::{OutputToken, SlotResult, TokenLogprobs};
pub use scan::SlotEvent;
pub use slot::{EngineSlot, Request};

use crate::header::{Header, HeaderError, RING_MAGIC};
use crate::layout::{
    GeometryError, HEADER_BYTES, LeaseIdx, MAX_LEASES, RingGeometry, RingLayout, SlotIdx,
};
use crate::memory::RingMemory;
use crate::sync::Ordering;
use crate::words::{State, StatusWord};
use leases::LeaseTracker;

/// Default of [`RingOptions::lease_timeout_ns`]: ten seconds.
pub const DEFAULT_LEASE_TIMEOUT_NS: u64 = 10_000_000_000;

/// What the slot table is when the caller does not say: boxed where there is an allocator.
#[cfg(feature = "alloc")]
pub type DefaultSlots = alloc::boxed::Box<[EngineSlot]>;
/// What the slot table is when the caller does not say: borrowed for good, without an allocator.
#[cfg(not(feature = "alloc"))]
pub type DefaultSlots = &'static mut [EngineSlot];

/// An empty slot table for a ring of `num_slots` slots.
#[cfg(feature = "alloc")]
pub fn slot_table(num_slots: u32) -> alloc::boxed::Box<[EngineSlot]> {
    alloc::vec![EngineSlot::EMPTY; num_slots as usize].into_boxed_slice()
}

/// How a ring is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Slots, leases, arenas.
    pub geometry: RingGeometry,
    /// A lease whose heartbeat stands still this long is revoked, ns.
    pub lease_timeout_ns: u64,
    /// Differs from that of any ring a front end may have seen before (a wall-clock time, say).
    pub epoch: u64,
}

impl Default for RingOptions {
    /// Default geometry, ten seconds, epoch 1.
    fn default() -> Self {
        Self {
            geometry: RingGeometry::default(),
            lease_timeout_ns: DEFAULT_LEASE_TIMEOUT_NS,
            epoch: 1,
        }
    }
}

/// Why a ring cannot be created in, or taken over from, a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// The geometry is impossible.
    Geometry(GeometryError),
    /// The region holds no ring this build understands.
    Header(HeaderError),
    /// The region is smaller than the layout: (needed, present) bytes.
    TooSmall(u64, u64),
    /// The slot table has another length than the ring: (needed, present) slots.
    SlotTable(u32, usize),
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Geometry(error) => error.fmt(f),
            Self::Header(error) => error.fmt(f),
            Self::TooSmall(need, got) => write!(f, "ring needs {need} bytes, region has {got}"),
            Self::SlotTable(need, got) => write!(f, "ring has {need} slots, slot table has {got}"),
        }
    }
}

impl core::error::Error for AttachError {}

fn check_sizes(
    memory: &RingMemory,
    layout: &RingLayout,
    num_slots: usize,
) -> Result<(), AttachError> {
    if memory.len() < layout.total_bytes() {
        return Err(AttachError::TooSmall(layout.total_bytes(), memory.len()));
    }
    if num_slots != layout.num_slots() as usize {
        return Err(AttachError::SlotTable(layout.num_slots(), num_slots));
    }
    Ok(())
}

/// The engine's view of a ring. One per ring; moves between threads but is used by one at a time.
///
/// `M` is the table of engine-private slot state, one [`EngineSlot`] per slot ([`slot_table`] makes a
/// boxed one).
pub struct EngineRing<M = DefaultSlots> {
    memory: RingMemory,
    layout: RingLayout,
    lease_timeout_ns: u64,
    vocab_size: u32,
    /// Head of the step log.
    num_steps_logged: u64,
    /// Engine clock at the last `reap_expired_leases`.
    reaped_ns: u64,
    leases: [LeaseTracker; MAX_LEASES as usize],
    slots: M,
}

impl<M: AsRef<[EngineSlot]> + AsMut<[EngineSlot]>> EngineRing<M> {
    /// Creates a ring in `memory`, whatever was there before. The engine state is `Starting`.
    ///
    /// # Errors
    /// When the geometry is impossible or does not fit, or `slots` has another length.
    pub fn create(
        memory: RingMemory,
        options: &RingOptions,
        slots: M,
    ) -> Result<Self, AttachError> {
        let layout = RingLayout::new(options.geometry).map_err(AttachError::Geometry)?;
        let mut ring = Self::over(memory, layout, options.lease_timeout_ns, slots)?;
        ring.slots.as_mut().fill(EngineSlot::EMPTY);
        let arenas = ring.layout.input_arena().start;
        ring.memory.zero(0..arenas);
        let header = Header::new(&ring.layout, options.epoch, options.lease_timeout_ns);
        ring.store_record(0, &header.encode());
        ring.store_magic();
        Ok(ring)
    }

    /// Takes over the ring in `memory` from an engine that is gone: what was running completes with
    /// `EngineRestarted`, submissions nobody claimed are found by the next scan, finished slots stay
    /// readable. The engine state is `Starting`; describe the engine again before it is ready.
    ///
    /// The former engine must really be gone: two engines on one ring destroy each other's work.
    ///
    /// # Errors
    /// When there is no ring in `memory`, or `slots` has another length.
    pub fn adopt(memory: RingMemory, epoch: u64, slots: M) -> Result<Self, AttachError> {
        if memory.len() < HEADER_BYTES {
            return Err(AttachError::TooSmall(HEADER_BYTES, memory.len()));
        }
        let header = Header::decode(&memory.record(0));
        let layout = header.layout(memory.len()).map_err(AttachError::Header)?;
        let mut ring = Self::over(memory, layout, header.lease_timeout_ns, slots)?;
        ring.store_record(
            0,
            &Header::new(&ring.layout, epoch, header.lease_timeout_ns).encode(),
        );
        // Relaxed: the former engine is gone, and this side alone writes it.
        ring.num_steps_logged = ring
            .memory
            .word(layout.step_log_head())
            .load(Ordering::Relaxed);
        for slot in 0..ring.layout.num_slots() {
            ring.adopt_slot(SlotIdx(slot));
        }
        for lease in 0..ring.layout.num_leases() {
            ring.adopt_lease(LeaseIdx(lease));
        }
        ring.store_magic();
        Ok(ring)
    }

    /// Makes, at `place`, the engine's side of a ring that another value has just created and described, and that no front end
    /// uses yet: for an engine that creates its ring in one place and runs in another, where stacks are small. What described it
    /// must not touch the ring until this is gone.
    ///
    /// # Errors
    /// When the geometry is impossible or does not fit, or `slots` has another length; nothing is written then.
    pub fn continue_described<'a>(
        place: &'a mut MaybeUninit<Self>,
        memory: RingMemory,
        options: &RingOptions,
        vocab_size: u32,
        mut slots: M,
    ) -> Result<&'a mut Self, AttachError> {
        let layout = RingLayout::new(options.geometry).map_err(AttachError::Geometry)?;
        check_sizes(&memory, &layout, slots.as_ref().len())?;
        slots.as_mut().fill(EngineSlot::EMPTY);
        let ring = place.as_mut_ptr();
        // SAFETY: each field of a place of our own is written once, and all of them are before it counts as initialised.
        unsafe {
            (&raw mut (*ring).memory).write(memory);
            (&raw mut (*ring).layout).write(layout);
            (&raw mut (*ring).lease_timeout_ns).write(options.lease_timeout_ns);
            (&raw mut (*ring).vocab_size).write(vocab_size);
            (&raw mut (*ring).reaped_ns).write(0);
            (&raw mut (*ring).num_steps_logged).write(0);
            (&raw mut (*ring).slots).write(slots);
            let leases = (&raw mut (*ring).leases).cast::<LeaseTracker>();
            for idx in 0..MAX_LEASES as usize {
                leases.add(idx).write(LeaseTracker::FRESH);
            }
            Ok(place.assume_init_mut())
        }
    }

    fn over(
        memory: RingMemory,
        layout: RingLayout,
        lease_timeout_ns: u64,
        slots: M,
    ) -> Result<Self, AttachError> {
        check_sizes(&memory, &layout, slots.as_ref().len())?;
        let leases = [LeaseTracker::FRESH; MAX_LEASES as usize];
        Ok(Self {
            memory,
            layout,
            lease_timeout_ns,
            vocab_size: 0,
            num_steps_logged: 0,
            reaped_ns: 0,
            leases,
            slots,
        })
    }

    fn store_magic(&self) {
        // SYNC ring-created: pairs with a front end's acquire read of the header.
        // Makes the constants and the zeroed words visible before the magic is.
        self.memory.word(0).store(RING_MAGIC, Ordering::Release);
    }

    /// The byte map.
    pub const fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// The memory the ring lies in.
    pub const fn memory(&self) -> &RingMemory {
        &self.memory
    }

    fn slot(&self, slot: SlotIdx) -> &EngineSlot {
        &self.slots.as_ref()[slot.0 as usize]
    }

    fn slot_mut(&mut self, slot: SlotIdx) -> &mut EngineSlot {
        &mut self.slots.as_mut()[slot.0 as usize]
    }

    /// Stores a record word by word; a release store of a flag follows.
    fn store_record(&self, offset: u64, bytes: &[u8]) {
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let mut buf = [0; 8];
            buf.copy_from_slice(word);
            self.memory
                .store_payload(offset + 8 * i as u64, u64::from_le_bytes(buf));
        }
    }

    fn store_status(&self, slot: SlotIdx, status: StatusWord) {
        // SYNC slot-completed, slot-emptied: pairs with the acquire of a bulk progress read
        // (`RingMemory::read` or the transport's). Makes count, result and tokens visible before
        // the state that promises them, and ends the engine's use of the arena before EMPTY.
        self.memory
            .word(self.layout.progress_offset(slot))
            .store(status.pack(), Ordering::Release);
    }

    /// Gives the slot back, at its current generation.
    fn empty(&mut self, slot: SlotIdx) {
        let generation = self.slot(slot).generation;
        self.store_status(
            slot,
            StatusWord {
                generation,
                state: State::Empty,
                finish: None,
            },
        );
        *self.slot_mut(slot) = EngineSlot {
            generation,
            ..EngineSlot::EMPTY
        };
        let lease = self.layout.lease_of(slot);
        self.leases[lease.0 as usize].num_live -= 1;
        self.drain_if_unused(lease);
    }
}
