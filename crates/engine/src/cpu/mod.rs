//! The CPU back end: a batched forward pass over a paged KV cache on a few cores.
//!
//! It is the embedded default and the oracle of the GPU back end, not a scheduler: what runs in a step, and which blocks
//! a sequence owns, is decided by the caller and arrives as a [`Batch`].

mod batch;
mod team;

pub use batch::{Batch, BatchEntry, LogitsOf};
pub use team::{Rank, Team};
