//! The engine: what runs a model. Steps, KV blocks, placements, and the CPU back end.
//!
//! The engine never sees text or HTTP; it meets front ends only through the ring.

pub mod cpu;
mod cpu_engine;
pub mod cuda;
mod cuda_engine;
pub mod driver;
pub mod sampling;
mod sizing;

pub use cpu_engine::{CpuEngine, CpuEngineOptions, CpuStartError, CpuSummary};
pub use cuda_engine::{CudaEngine, CudaEngineOptions, CudaStartError, CudaSummary};
pub use sizing::SizeError;
