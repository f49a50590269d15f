//! The ring: the memory in which front ends and the engine of Izar meet, and the rules of meeting there.
//!
//! It is a byte map, the words in it, and the engine's side of the protocol ([`EngineRing`]). It is not
//! a transport: front ends reach the ring by one-sided reads and writes (crate `izar-transport`), for
//! which this crate has offsets ([`RingLayout`]), words ([`SlotWord`], [`observe`], …) and records as
//! bytes ([`RequestRecord::encode`], …). It allocates nothing, blocks on nothing and knows no clock.
//!
//! # Byte map
//! Little endian, fixed widths, every section on a page. Offsets are those of the default geometry
//! (4096 slots, one lease); for any other they follow from [`RingLayout::new`] and stand in the header.
//!
//! | offset     | bytes           | section                | written by        | unit |
//! |-----------:|----------------:|------------------------|-------------------|------|
//! |          0 |            4096 | header                 | engine            | [`Header`] |
//! |      4,096 | 512 × leases    | leases                 | see below         | [`LeaseRecord`] |
//! |      8,192 |   8 × slots     | submit words           | front end         | [`SlotWord`] |
//! |     40,960 |   8 × slots     | cancel words           | front end         | [`SlotWord`] |
//! |     73,728 |   8 × slots     | recycle words          | front end         | [`SlotWord`] |
//! |    106,496 |   8 × slots     | mask words             | front end         | [`MaskWord`] |
//! |    139,264 |  16 × slots     | progress (64 KiB)      | engine            | [`StatusWord`], [`CountWord`] |
//! |    204,800 | 256 × slots     | request records        | front end         | [`RequestRecord`] |
//! |  1,253,376 |  64 × slots     | result records         | engine            | [`ResultRecord`] |
//! |  1,515,520 |         102,400 | step log               | engine            | head word, [`StepRecord`]s |
//! |  1,617,920 | 64 MiB          | input arena            | front end         | token ids, lists, pairs, masks |
//! | 68,726,784 | 256 MiB         | output arena           | engine            | [`OutputRecord`], [`LogprobHead`] + [`LogprobEntry`] |
//!
//! Inside the header, at offset 0 the constants and the description, at 1024 the engine state, at 1152
//! the engine's heartbeat, at 1280 its counters and
//! at 1408 histograms over its steps. The step log begins with its head word; records start at 128. Inside a lease, at offset 0 claim, owner and heartbeat
//! (front end), at 128 the doorbell (front end), at 256 the verdict (engine). A lease owns a fixed range
//! of slots and of both arenas; the front end that holds it allocates inside its ranges as it likes.
//!
//! # Slot states
//! ```text
//!            submit=g+1            claim                 first token           complete
//!  EMPTY g ─────────────► PENDING ───────► PREFILL g+1 ─────────────► DECODE ──────────► COMPLETED
//!     ▲                                                               ⇅ PAUSED               │
//!     └────────────────────────────────── engine: EMPTY g+1 ◄──────────── recycle=g+1 ───────┘
//! ```
//! PENDING is written nowhere: it is a submit word one generation ahead of an EMPTY status word. All
//! other states are in the status word, which only the engine writes.
//!
//! # Invariants
//! - Every shared word has one writing side. Nothing is compared and swapped between the two.
//! - Payload before state: a word that promises something is stored with release after it.
//! - A word speaks of the generation it carries and is ignored by whoever expects another. Words of
//!   front ends also carry the lease generation, so a former holder's words are ignored too.
//! - A slot reads as completed only together with its final count ([`observe`]), whatever two moments
//!   the two progress words were read at.
//! - The engine believes only its own validated copy of a request record.
//!
//! # Who may touch what
//! [`EngineRing`] is used by one thread at a time. Everything a front end writes goes through
//! [`RingMemory`] or another process's or device's own stores. The labels `SYNC name` mark the two ends
//! of every ordering edge: the engine's are in this crate, the front end's in [`RingMemory`]'s one-sided
//! operations and where a transport calls them.
//!
//! The protocol for authors of other front ends, step by step: `docs/protocol.md`.
#![no_std]

#[cfg(not(target_endian = "little"))]
compile_error!("the ring is little endian and shared with devices that are");

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(loom)]
extern crate std;

mod codec;
mod engine;
mod error;
mod header;
mod layout;
mod lease;
mod memory;
mod output;
mod request;
mod steps;
mod sync;
mod words;

pub use engine::*;
pub use error::*;
pub use header::*;
pub use layout::*;
pub use lease::*;
pub use memory::{OutOfBounds, RingMemory};
pub use output::*;
pub use request::*;
pub use steps::*;
pub use words::*;

// The byte map above, word for word.
const _: () = {
    let geometry = RingGeometry {
        num_slots: DEFAULT_NUM_SLOTS,
        num_leases: 1,
        input_arena_bytes: 64 << 20,
        output_arena_bytes: 256 << 20,
    };
    let Ok(layout) = RingLayout::new(geometry) else {
        panic!("the default geometry can be laid out")
    };
    let sections = [
        4_096, 8_192, 40_960, 73_728, 106_496, 139_264, 204_800, 1_253_376, 1_515_520, 1_617_920,
        68_726_784,
    ];
    let mut i = 0;
    while i < sections.len() {
        assert!(layout.sections()[i] == sections[i]);
        i += 1;
    }
    assert!(layout.total_bytes() == 337_162_240);
    let progress = layout.progress_range();
    assert!(progress.end - progress.start == 64 << 10);
    assert!(HEADER_STATE == 1024 && HEADER_HEARTBEAT == 1152 && HEADER_STATS == 1280);
    assert!(LEASE_CLAIM == 0 && LEASE_DOORBELL == 128 && LEASE_VERDICT == 256);
};
