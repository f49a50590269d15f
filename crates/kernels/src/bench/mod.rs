//! Times of every kernel of a step beside the time it cannot be under.
//!
//! A kernel runs many times in one captured graph, as in a step: launched ahead, over weights and caches that do not fit the
//! second-level cache. A row holds the median of the replays. Floors: bytes at [`READ_BYTES_PER_US`], or products at
//! [`FLOPS_PER_US`], whichever takes longer; at decode sizes small kernels are bound by latency instead, which no floor counts.

mod attention;
mod chain;
mod dense;

use std::fmt;

use serde::Serialize;

use crate::decode_projection::DecodeProjectionError;
use crate::device::Device;
use crate::error::CudaError;
use crate::launch_error::LaunchError;
use crate::linear::LinearError;
use crate::matrix::MatrixError;
use crate::paged_decode_attention::AttentionError;
use crate::rms_norm::RmsNormError;
use crate::stream::Stream;

use chain::Chain;

/// What an H200 reads at most: 4.65 TB/s, measured (docs/perf/h200-kernels.md).
pub const READ_BYTES_PER_US: f64 = 4.65e6;
/// What its matrix units do on random bf16 data: 790 TFLOP/s, a library's product of 8192³.
pub const FLOPS_PER_US: f64 = 790e6;

/// Sizes of a dense model: what kernels are timed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelShape {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Inner width of the feed-forward part.
    pub intermediate: u32,
    /// Query heads.
    pub num_heads: u32,
    /// Key and value heads.
    pub num_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Rows of the head.
    pub vocab: u32,
}

impl ModelShape {
    /// Llama-3-8B.
    pub const LLAMA_3_8B: Self = Self {
        hidden: 4096,
        intermediate: 14336,
        num_heads: 32,
        num_kv_heads: 8,
        head_dim: 128,
        vocab: 128_256,
    };

    fn qkv(&self) -> u32 {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }

    /// The projections of a layer: name, rows, depth.
    fn projections(&self) -> [(&'static str, u32, u32); 4] {
        let attended = self.num_heads * self.head_dim;
        [
            ("qkv", self.qkv(), self.hidden),
            ("output", self.hidden, attended),
            ("gate_up", 2 * self.intermediate, self.hidden),
            ("down", self.hidden, self.intermediate),
        ]
    }
}

/// One kernel at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The operation.
    pub kernel: &'static str,
    /// Its sizes, for people.
    pub shape: String,
    /// Tokens, or sequences of a decode.
    pub tokens: u32,
    /// Of one launch.
    pub us: f64,
    /// What it cannot be under.
    pub floor_us: f64,
    /// Bytes of device memory that the floor counts.
    pub bytes: f64,
    /// Floating-point operations that it counts.
    pub flops: f64,
}

impl Row {
    fn new(kernel: &'static str, shape: String, tokens: u32, us: f64, cost: Cost) -> Self {
        Self {
            kernel,
            shape,
            tokens,
            us,
            floor_us: (cost.bytes / READ_BYTES_PER_US).max(cost.flops / FLOPS_PER_US),
            bytes: cost.bytes,
            flops: cost.flops,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kernel,
            shape,
            tokens,
            us,
            floor_us,
            ..
        } = self;
        let ratio = us / floor_us.max(1e-3);
        write!(
            f,
            "{kernel:<24} {shape:<22} {tokens:>6} {us:>10.2} {floor_us:>10.2} {ratio:>7.2}"
        )
    }
}

/// The head of the table that rows display as.
pub const TABLE_HEAD: &str =
    "kernel                   shape                  tokens         us   floor us /floor";

/// What a launch has to do at least.
#[derive(Clone, Copy, Default)]
struct Cost {
    bytes: f64,
    flops: f64,
}

/// A kernel could not be timed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A CUDA call.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A projection.
    #[error(transparent)]
    Projection(#[from] DecodeProjectionError),
    /// A projection of many tokens.
    #[error(transparent)]
    Linear(#[from] LinearError),
    /// Attention.
    #[error(transparent)]
    Attention(#[from] AttentionError),
    /// A norm.
    #[error(transparent)]
    Norm(#[from] RmsNormError),
    /// A small kernel.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A shape too large for its buffer.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
}

/// Times every kernel on `shape`; `report` is told of each row as it is measured. Takes some 8 GB of device memory and
/// a few seconds.
///
/// # Errors
/// [`BenchError`]; rows reported before are valid.
pub fn run(
    device: &Device,
    shape: &ModelShape,
    report: &mut dyn FnMut(&Row),
) -> Result<Vec<Row>, BenchError> {
    let stream = Stream::new(device)?;
    let chain = Chain::new(&stream)?;
    let mut rows = Vec::new();
    let mut note = |row: Row| {
        report(&row);
        rows.push(row);
    };
    dense::read(&chain, &mut note)?;
    dense::decode_projections(&chain, shape, &mut note)?;
    dense::linears(&chain, shape, &mut note)?;
    dense::small(&chain, shape, &mut note)?;
    attention::decode(&chain, shape, &mut note)?;
    attention::prefill(&chain, shape, &mut note)?;
    Ok(rows)
}
