//! The CUDA back end.

pub mod grid;
pub mod memory;
pub mod sampler;
pub mod weights;
