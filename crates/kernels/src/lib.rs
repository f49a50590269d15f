//! CUDA kernels, their build, and safe wrappers of what runs them: devices, device memory, streams,
//! events and graphs.
//!
//! Not a general CUDA binding: it holds what the engine needs and nothing else. Only this crate sees
//! CUDA types.
//!
//! - **Without the feature `cuda`** the API is the same and nothing is linked: the foreign functions
//!   are replaced by ones that report [`CudaError::NotBuilt`].
//! - **With it** the CUDA runtime is linked statically and finds the driver at run time. A binary
//!   starts on a machine without one; [`Device::open`] then says so.
//!
//! # Ownership and order
//! Device memory is shared with work in flight, so a [`DeviceBuffer`] is written through a shared
//! reference: order comes from [`Stream`]s, not from borrows. Freeing a buffer waits for the device.
//! A captured [`Graph`] holds addresses, not buffers: launching it is `unsafe` for that reason alone.
//! Every type may move between threads; each call makes its device current on the calling thread.
//!
//! # Kernels
//! One module per operation, named like its file in `cuda/ops/`; `linear` alone is a library's, found at run time. [`mod@bench`]
//! times them all. A wrapper checks shapes, strides and alignment once, then launches; it allocates nothing and can be captured into a graph.

pub mod bench;
mod cublaslt;
mod decode_projection;
mod device;
mod device_word;
mod error;
mod expand_plan;
#[cfg(feature = "cuda")]
mod ffi;
#[cfg(not(feature = "cuda"))]
#[path = "ffi_stub.rs"]
mod ffi;
mod ffi_types;
mod fill_random;
mod gather_rows;
mod graph;
mod launch_error;
mod linear;
mod mapped_region;
mod matrix;
mod memory;
mod moe;
mod paged_decode_attention;
mod paged_prefill_attention;
mod pinned;
mod read_stream;
mod reference_projection;
mod resident;
mod rms_norm;
mod rope_and_kv_write;
mod sampler;
mod score_tokens;
mod step_mark;
mod stream;
mod swiglu;

pub use cublaslt::{CublasError, LibraryError};
pub use decode_projection::{
    DecodeProjection, DecodeProjectionError, Epilogue, MAX_DECODE_TOKENS, ProjectionWorkspace,
    decode_projection,
};
pub use device::Device;
pub use device_word::DeviceWord;
pub use error::CudaError;
pub use expand_plan::{ExpandPlan, ExpandPlanError, PlanWriter, StepInputs, StepMeta, expand_plan};
pub use fill_random::fill_random;
pub use gather_rows::{embed, gather_rows};
pub use graph::{Graph, GraphExec};
pub use launch_error::LaunchError;
pub use linear::{Linear, LinearError, LinearProjection};
pub use mapped_region::MappedRegion;
pub use matrix::{Matrix, MatrixError, Output};
pub use memory::DeviceBuffer;
pub use moe::{MAX_ROUTER_TOKENS, MoeChoice, MoeFfn, MoeShape, MoeWorkspace, Norm, moe_ffn};
pub use paged_decode_attention::{
    AttentionError, AttentionWorkspace, KvCache, PagedDecodeAttention, paged_decode_attention,
    reference_attention,
};
pub use paged_prefill_attention::{PagedPrefillAttention, paged_prefill_attention};
pub use pinned::PinnedBuffer;
pub use read_stream::read_stream;
pub use reference_projection::reference_projection;
pub use resident::{
    MAX_LAUNCH_WINDOW, Resident, ResidentError, ResidentFigures, ResidentOffsets, ResidentStatus,
    StepGate, gate, resident, resident_make,
};
pub use rms_norm::{RmsNorm, RmsNormError, rms_norm};
pub use rope_and_kv_write::{HeadNorms, RopeAndKvWrite, RopeTable, rope_and_kv_write};
pub use sampler::{
    BindingRecord, DeviceRows, FetchMasks, LOGPROB_ENTRIES, RowFlags, SampleLogprob, SampleRecord,
    SampleStatus, SampleStep, SamplerError, SamplerRow, SamplerSizes,
};
pub use score_tokens::{ScoreTokens, TokenScore, score_tokens};
pub use step_mark::{Mark, StepMarks, step_mark};
pub use stream::{Event, Stream};
pub use swiglu::swiglu;
