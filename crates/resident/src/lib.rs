//! The serial part of the GPU's resident scheduler.
//!
//! The scheduler kernel is one block of threads. What its threads do together (scanning slots, copying prompts, writing
//! plans, binding rows, launching) is CUDA C++ in `izar-kernels`; what one of them does alone is here: claiming and
//! checking requests, the policy, publishing, ends, leases, figures. It is the host scheduler's part of the same names
//! (`izar_engine::driver`) over `izar-ring` and `izar-policy`, and it runs on a GPU because all three are compiled to PTX
//! from the same source (`scripts/gen-resident-ptx`).
//!
//! So: no `std`, no allocation, no recursion, no read-modify-write atomics (they lose their ordering on the way to PTX), no
//! calls through pointers (the stack's depth must be known), all state in memory of the caller's.
//!
//! # A round
//! ```text
//! block: doorbells moved? slots that may have news ──► look ──► events
//! block: copies records and spans of submitted slots ──► admit: claims, cancellations
//! plan: policy entries ──► block: binds new rows, writes the step's plan, launches it
//! block: waits for the oldest step, reads its samples ──► publish
//! ```
//! [`Core`] is used by one thread at a time; between two calls it is plain memory, and stays what it is when the kernel ends
//! and is launched again. `entry` has the functions that the kernel calls.
//!
//! What this placement does not do yet is refused when a request is claimed: log-probabilities of prompts.
#![no_std]

mod core_state;
mod entry;
mod memory;

pub use core_state::{Core, Event, Live, Sample, StepTimes, event_kind, sample_status};
pub use entry::*;
pub use memory::Addresses;

/// The GPU has nobody to tell, and the code is compiled with panics as traps.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
