//! The CPU back end: a batched forward pass over a paged KV cache on a few cores.
//!
//! It is the embedded default and the oracle of the GPU back end, not a scheduler: what runs in a step, and which blocks
//! a sequence owns, is decided by the caller and arrives as a [`Batch`].

mod acts;
mod attention;
mod batch;
pub mod bench;
mod error;
mod executor;
mod format;
mod kv;
mod math;
mod matmul;
mod memory;
mod model;
mod moe;
mod pack;
mod simd;
mod step;
mod team;
#[cfg(test)]
mod testing;
mod weights;

pub use batch::{Batch, BatchEntry, LogitsOf};
pub use error::LoadError;
pub use executor::{CpuExecutor, CpuExecutorOptions};
pub use model::{Arithmetic, CpuModel, CpuOptions};
pub use simd::Isa;
pub use team::{Rank, Team};
