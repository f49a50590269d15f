//! Why a step was not put into its stream.

use izar_kernels::{
    AttentionError, CudaError, DecodeProjectionError, ExpandPlanError, LaunchError, LinearError,
    RmsNormError, SamplerError,
};
use thiserror::Error;

use super::weights::CudaLoadError;

/// A step was not launched or captured: a shape that a kernel has no code for, or a failed CUDA call.
#[derive(Debug, Error)]
pub enum StepError {
    /// The step's inputs.
    #[error(transparent)]
    Plan(#[from] ExpandPlanError),
    /// One of the small operations.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A normalisation.
    #[error(transparent)]
    Norm(#[from] RmsNormError),
    /// A projection of few tokens.
    #[error(transparent)]
    Projection(#[from] DecodeProjectionError),
    /// A projection of many tokens.
    #[error(transparent)]
    Linear(#[from] LinearError),
    /// Attention.
    #[error(transparent)]
    Attention(#[from] AttentionError),
    /// Sampling.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// A CUDA call.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// A model was not put on the device.
#[derive(Debug, Error)]
pub enum CudaModelError {
    /// A head that attention has no code for.
    #[error(
        "the CUDA engine runs heads of 64, 96 or 128 features, this model's have {0}: use the CPU engine"
    )]
    HeadDim(usize),
    /// Experts of sizes that the kernels have no code for.
    #[error(transparent)]
    Experts(#[from] LaunchError),
    /// The weights.
    #[error(transparent)]
    Load(#[from] CudaLoadError),
    /// The sampler's state.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The library for projections of many tokens.
    #[error(transparent)]
    Linear(#[from] LinearError),
    /// A CUDA call: out of memory, as a rule.
    #[error("cannot set up the model on the device: {0}")]
    Cuda(#[from] CudaError),
}
