//! One-sided access to a ring, and the front end's client on top of it.
//!
//! The ring ([`izar_ring`]) lives in the engine's memory. A front end reaches it only through a [`Transport`]: plain
//! reads and writes of bytes at offsets, whose ordering each call states. Two transports are here: [`InProcess`] (front
//! end and engine share one process) and [`SharedMemory`] (two processes of one host). One conformance suite runs on both.
//!
//! [`client`] is what a front end uses: it takes a lease on part of the ring, submits requests and streams tokens back.
//!
//! Not here: HTTP, text, tokenizers, and any asynchronous runtime (a [`client::RequestHandle`] works with all of them).
//! Dependencies: this crate knows [`izar_ring`] alone.
//!
//! Who may touch what: the engine's process uses the region directly through `izar_ring::EngineRing`; everything in this
//! crate acts for the front end and writes front-end words only. Wake-ups between the two sides of one process go through
//! [`wake`], never through the ring, so that the ring stays free of anything that a GPU or a network card cannot do.

#[cfg(target_endian = "big")]
compile_error!(
    "the ring is little endian and this crate copies whole structures: big-endian hosts are not supported"
);

mod engine_end;
mod in_process;
mod mapping;
mod shared_memory;
mod transport;
pub mod wake;

pub mod client;
#[cfg(feature = "mock-engine")]
pub mod mock_engine;

pub use engine_end::{EngineEnd, TokenMasks};
pub use in_process::{InProcess, InProcessError};
pub use shared_memory::{AttachError, CreateError, SharedMemory};
pub use transport::{ReadOp, Transport, TransportError};
