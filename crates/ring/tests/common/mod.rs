//! What several test binaries share: a small front end and the small ring it works on.

mod front_end;
mod options;
mod session;

use izar_ring::*;

pub use front_end::*;
pub use options::*;

/// What a scan or a reaping reports.
pub fn events(f: impl FnOnce(&mut dyn FnMut(SlotEvent))) -> Vec<SlotEvent> {
    let mut events = Vec::new();
    f(&mut |event| events.push(event));
    events
}

#[cfg(not(loom))]
/// A described, ready engine over the small ring.
pub fn engine(memory: RingMemory) -> EngineRing {
    let mut ring = EngineRing::create(memory, &OPTIONS, slot_table(SMALL.num_slots)).unwrap();
    ring.describe(&INFO);
    ring.set_engine_state(EngineState::Ready, None);
    ring
}

/// A token and a timestamp made up from it.
pub fn output(token: u32) -> OutputToken {
    OutputToken {
        token,
        timestamp_ns: 10_000 + u64::from(token),
    }
}
