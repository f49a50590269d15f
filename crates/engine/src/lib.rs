//! The engine: what runs a model. Steps, KV blocks, placements, and the CPU back end.
//!
//! The engine never sees text or HTTP; it meets front ends only through the ring.

pub mod cpu;
pub mod driver;
pub mod sampling;
