//! The ring: the memory in which front ends and the engine of Izar meet.
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
pub use words::*;
