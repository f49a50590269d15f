//! The CPU back end: a batched forward pass over a paged KV cache on a few cores.
//!
//! It is the embedded default and the oracle of the GPU back end, not a scheduler: what runs in a step, and which blocks
//! a sequence owns, is decided by the caller and arrives as a [`Batch`].
//!
//! Speed of light: decoding one sequence reads every weight once, so weights stay quantised in memory, in tiles that the integer dot-product
//! instructions take as they lie; with 16 sequences or a prompt the multipliers are the limit, so up to 16 tokens share each pass
//! over a tile. `examples/cpu_bench.rs` prints how near a machine comes to both.
//!
//! A token's KV and logits are a function of its sequence alone, to the bit: every output is one chain of multiply-adds whose order depends on
//! nothing but the model. Batch, chunking, cached prefix, threads, block placement and instruction set change who computes it beside whom.
//!
//! Memory: packed weights (within 3 % of the file), the KV cache, activations for the largest step, 16 KiB of scratch a thread. All of it is reserved by
//! [`CpuModel::load`]; a step allocates nothing. During a step the ranks of the [`Team`] share the buffers through raw views
//! (`memory::Shared`): in each phase every element has one writer, and readers come a barrier later.
//!
//! | module | what it holds |
//! |---|---|
//! | `team` | threads that walk a step together |
//! | `batch` | a step's input |
//! | `simd` | 16-lane vectors for AVX-512, AVX2 and plain Rust |
//! | `format`, `pack` | weight tiles, and how a checkpoint becomes them |
//! | `acts` | activations as the kernels read them, 8-bit or f32 |
//! | `matmul` | tiles × tokens, in integers or f32 |
//! | `attention`, `kv` | paged attention, and the cache |
//! | `math` | norms, SwiGLU, rotation |
//! | `weights`, `model` | a loaded model and its buffers |
//! | `step`, `moe` | the phases of a forward pass |
//! | `executor` | the thread that runs steps for the driver |
//! | [`mod@bench`] | ceilings of the machine |

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
