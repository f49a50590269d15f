//! The CUDA back end: steps of a ragged batch on one GPU, captured as graphs at start.
//!
//! [`CudaExecutor`] computes steps for the driver; [`crate::CudaEngine`] is the whole engine. Without the feature `cuda` all of this
//! is there and [`probe`] says that it was not built.
//!
//! Who owns what: the executor owns the model (weights, cache, activations, sampler state), the graphs that hold
//! addresses inside it, and both halves of the double buffer; the thread that drives it is the only one that touches them.
//! The device writes its own arrays, the marks of a step and the sample records; the last two lie in host memory, payload
//! before the number of the step.
//!
//! - `grid`: which shapes are captured. `step`: what is captured. `graphs`: the captures.
//! - `prompts`: log-probabilities of prompts, computed behind the step that has their tokens.
//! - `half`: how plans get to the device. `executor`: launching and waiting. `clock`: the device's time on the engine's line.
//! - `resident`: the placement without a host: a scheduler on the device launches the captures itself.
//! - `stages`, `bench`: steps without some of their parts, and how long they take.
//! - `model`: everything a step reads; `weights`, `buffers`, `sampler` its parts. `memory`: how much of it fits.

pub mod bench;
mod buffers;
mod clock;
mod error;
mod executor;
mod experts;
mod graphs;
pub mod grid;
mod half;
pub mod memory;
mod model;
mod prompts;
pub(crate) mod resident;
pub mod sampler;
mod stages;
mod step;
pub mod weights;

use izar_kernels::{CudaError, Device, Linear, LinearError, Stream};

pub use error::{CudaModelError, StepError};
pub use executor::{CudaExecutor, CudaExecutorOptions, ExecutorError};
pub use memory::BLOCK_SIZE;
pub use resident::ResidentStartError;
pub use stages::{Stage, Variant};

/// Whether there is a device that this build can use.
///
/// # Errors
/// Why not: built without CUDA, no driver, no device, or one too old.
pub fn probe() -> Result<(), CudaError> {
    Device::open(0).map(|_| ())
}

/// File and version of the library that prompts are projected with.
///
/// # Errors
/// Why there is none: no device to use it on, or not installed.
pub fn library() -> Result<String, String> {
    let load = || -> Result<Linear, LinearError> {
        let device = Device::open(0)?;
        let stream = Stream::new(&device)?;
        Linear::new(&device, &stream)
    };
    let linear = load().map_err(|error| error.to_string())?;
    match linear.library() {
        Ok((path, version)) => Ok(format!("{version} at {}", path.display())),
        Err(reason) => Err(reason.to_string()),
    }
}
