//! Why a model does not start on the CPU.

/// Loading failed. The message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The checkpoint lacks a parameter or has one of the wrong shape or type.
    #[error(transparent)]
    Checkpoint(#[from] izar_model::LoadError),
    /// Address space for weights, cache or activations was refused.
    #[error(
        "cannot reserve memory for the model: {0}; lower the number of KV blocks, the batch size or the batched tokens"
    )]
    Memory(#[source] std::io::Error),
    /// Worker threads were refused.
    #[error("cannot start {threads} threads: {source}; lower the number of threads")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The KV block size does not fit the cache layout.
    #[error("block size {0} is not supported on the CPU; use a multiple of 16")]
    BlockSize(usize),
    /// The model's heads are wider than the attention kernels take.
    #[error("heads of {got} elements are not supported on the CPU; at most {max} are")]
    HeadDim {
        /// Width of the model's heads.
        got: usize,
        /// The widest supported.
        max: usize,
    },
}
