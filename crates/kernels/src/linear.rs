//! `linear`: `y = x * weightᵀ` for any number of tokens: prefill, and decode batches beyond [`MAX_DECODE_TOKENS`].
//!
//! cuBLASLt does the work, its algorithm chosen once per shape. Without it every 64 tokens are a `decode_projection`: right,
//! and slow for long prompts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::cublaslt::{ALIGNMENT, CublasError, CublasLt, LibraryError, Operands, Product, Shape};
use crate::decode_projection::{
    DecodeProjection, DecodeProjectionError, Epilogue, MAX_DECODE_TOKENS, ProjectionWorkspace,
    decode_projection,
};
use crate::device::Device;
use crate::error::CudaError;
use crate::matrix::{Matrix, Output};
use crate::memory::DeviceBuffer;
use crate::stream::{Event, Stream};

/// Workspace of the products: what NVIDIA recommends for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;

/// One projection of any number of tokens. Inputs are bf16; tokens and weight rows are matrix rows, 16-byte aligned.
#[derive(Debug, Clone, Copy)]
pub struct LinearProjection<'a> {
    /// `[rows, depth]`, dense.
    pub weight: Matrix<'a>,
    /// `[tokens, depth]`.
    pub x: Matrix<'a>,
    /// `[tokens, rows]`.
    pub y: Output<'a>,
    /// `[1, rows]`, added in f32; of a bf16 `y` alone.
    pub bias: Option<Matrix<'a>>,
    /// `[tokens, rows]`, added in f32; of a bf16 `y` alone, which it may be.
    pub residual: Option<Matrix<'a>>,
}

/// Why a projection was not launched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinearError {
    /// A matrix of the wrong shape.
    #[error("linear: {matrix} must be {expected:?}, got {got:?}")]
    Shape {
        /// Which.
        matrix: &'static str,
        /// Rows and columns wanted.
        expected: [u32; 2],
        /// Rows and columns given.
        got: [u32; 2],
    },
    /// Rows that do not start at multiples of 16 bytes, or a weight that is not dense.
    #[error(
        "linear: rows of {0} must start at multiples of 16 bytes, those of weight without gaps"
    )]
    Alignment(&'static str),
    /// f32 outputs with a bias or residual.
    #[error("linear: f32 outputs take neither bias nor residual")]
    F32Epilogue,
    /// cuBLASLt has no algorithm for the shape.
    #[error("linear: no algorithm for {tokens} tokens by [{rows}, {depth}]")]
    NoAlgorithm {
        /// Tokens.
        tokens: u32,
        /// Weight rows.
        rows: u32,
        /// Weight columns.
        depth: u32,
    },
    /// cuBLASLt refused a call.
    #[error("linear: {0}")]
    Cublas(#[from] CublasError),
    /// The projection of a chunk was refused.
    #[error("linear: {0}")]
    Chunk(#[from] DecodeProjectionError),
    /// A CUDA call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// What runs projections of any number of tokens in one stream at a time: give each stream its own.
pub struct Linear {
    backend: Backend,
}

enum Backend {
    Library {
        library: CublasLt,
        workspace: DeviceBuffer<u8>,
        products: Mutex<HashMap<Shape, Product>>,
    },
    Chunks {
        workspace: ProjectionWorkspace,
        reason: LibraryError,
    },
}

impl Linear {
    /// Loads cuBLASLt, or prepares to do without it: see [`Linear::library`].
    ///
    /// # Errors
    /// Those of the CUDA calls, and a library that refuses the device.
    pub fn new(device: &Device, stream: &Stream) -> Result<Self, LinearError> {
        device.make_current()?;
        let backend = match CublasLt::load() {
            Ok(library) => Backend::Library {
                library: library?,
                workspace: DeviceBuffer::new(device, WORKSPACE_BYTES)?,
                products: Mutex::default(),
            },
            Err(reason) => Backend::Chunks {
                workspace: ProjectionWorkspace::new(device, stream, device.num_multiprocessors()?)?,
                reason,
            },
        };
        Ok(Self { backend })
    }

    /// The library's file and version (130000 is 13.0.0), or why it is done without.
    ///
    /// # Errors
    /// Why there is none.
    pub fn library(&self) -> Result<(PathBuf, usize), &LibraryError> {
        match &self.backend {
            Backend::Library { library, .. } => Ok((library.path().to_owned(), library.version())),
            Backend::Chunks { reason, .. } => Err(reason),
        }
    }

    /// Launches one projection into `stream`. The first of a shape chooses its algorithm, which costs some 50 µs of the host;
    /// nothing is allocated on the device, so it may be captured.
    ///
    /// # Errors
    /// [`LinearError`]; nothing is launched then.
    pub fn project(
        &self,
        stream: &Stream,
        projection: &LinearProjection<'_>,
    ) -> Result<(), LinearError> {
        projection.check()?;
        match &self.backend {
            Backend::Chunks { workspace, .. } => projection.in_chunks(stream, workspace),
            Backend::Library {
                library,
                workspace,
                products,
            } => {
                let mut products = products.lock().unwrap_or_else(PoisonError::into_inner);
                let product = product_of(library, &mut products, projection.shape())?;
                let operands = projection.operands(workspace);
                let raw = stream.for_launch()?;
                // SAFETY: shapes and alignment were checked; buffers outlive work on them; the workspace is this stream's.
                unsafe { library.run(product, &operands, raw) }?;
                Ok(())
            }
        }
    }

    /// Times up to `candidates` algorithms on a projection's own matrices, keeps the fastest for its shape, and returns their
    /// times in microseconds, the library's favourite first; none without a library. Overwrites `y`; not to be captured.
    ///
    /// # Errors
    /// [`LinearError`].
    pub fn tune(
        &self,
        stream: &Stream,
        projection: &LinearProjection<'_>,
        candidates: usize,
        repeats: usize,
    ) -> Result<Vec<f32>, LinearError> {
        projection.check()?;
        let Backend::Library {
            library,
            workspace,
            products,
        } = &self.backend
        else {
            return Ok(Vec::new());
        };
        let mut products = products.lock().unwrap_or_else(PoisonError::into_inner);
        let product = product_of(library, &mut products, projection.shape())?;
        let found = library.candidates(product, WORKSPACE_BYTES, candidates)?;
        let operands = projection.operands(workspace);
        let (start, end) = (Event::new(stream.device())?, Event::new(stream.device())?);
        let raw = stream.for_launch()?;
        let mut times = Vec::with_capacity(found.len());
        for &algorithm in &found {
            CublasLt::choose(product, algorithm);
            for repeat in 0..=repeats {
                if repeat == 1 {
                    start.record(stream)?;
                }
                // SAFETY: as in `project`.
                unsafe { library.run(product, &operands, raw) }?;
            }
            end.record(stream)?;
            end.synchronize()?;
            times.push(end.ms_since(&start)? * 1e3 / repeats as f32);
        }
        let fastest = (0..found.len()).min_by(|&a, &b| times[a].total_cmp(&times[b]));
        if let Some(fastest) = fastest {
            CublasLt::choose(product, found[fastest]);
        }
        Ok(times)
    }
}

impl std::fmt::Debug for Linear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Linear")
            .field("library", &self.library())
            .finish()
    }
}

fn product_of<'a>(
    library: &CublasLt,
    products: &'a mut HashMap<Shape, Product>,
    shape: Shape,
) -> Result<&'a mut Product, LinearError> {
    match products.entry(shape) {
        Entry::Occupied(entry) => Ok(entry.into_mut()),
        Entry::Vacant(entry) => match library.describe(shape, WORKSPACE_BYTES)? {
            Some(product) => Ok(entry.insert(product)),
            None => Err(LinearError::NoAlgorithm {
                tokens: shape.tokens,
                rows: shape.rows,
                depth: shape.depth,
            }),
        },
    }
}

impl LinearProjection<'_> {
    fn check(&self) -> Result<(), LinearError> {
        let (tokens, rows) = (self.x.rows(), self.weight.rows());
        let expect = |matrix: &'static str, got: [u32; 2], expected: [u32; 2]| {
            if got == expected {
                Ok(())
            } else {
                Err(LinearError::Shape {
                    matrix,
                    expected,
                    got,
                })
            }
        };
        let shape = |view: Matrix<'_>| [view.rows(), view.cols()];
        expect("x", shape(self.x), [tokens, self.weight.cols()])?;
        expect("y", [self.y.rows(), self.y.cols()], [tokens, rows])?;
        let residual = self.residual.map_or([tokens, rows], shape);
        expect("residual", residual, [tokens, rows])?;
        expect("bias", self.bias.map_or([1, rows], shape), [1, rows])?;
        if self.y.is_f32() && (self.bias.is_some() || self.residual.is_some()) {
            return Err(LinearError::F32Epilogue);
        }
        let is_dense = rows == 1 || self.weight.stride() == self.weight.cols();
        let aligned = [
            ("weight", is_dense && self.weight.is_aligned(ALIGNMENT)),
            ("x", self.x.is_aligned(ALIGNMENT)),
            ("y", self.y.is_aligned(ALIGNMENT)),
            ("bias", self.bias.is_none_or(|m| m.is_aligned(ALIGNMENT))),
            (
                "residual",
                self.residual.is_none_or(|m| m.is_aligned(ALIGNMENT)),
            ),
        ];
        match aligned.into_iter().find(|(_, is_aligned)| !is_aligned) {
            Some((matrix, _)) => Err(LinearError::Alignment(matrix)),
            None => Ok(()),
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            rows: self.weight.rows(),
            depth: self.weight.cols(),
            tokens: self.x.rows(),
            x_stride: self.x.stride(),
            y_stride: self.y.stride(),
            residual_stride: self.residual.map(|residual| residual.stride()),
            has_bias: self.bias.is_some(),
            is_f32: self.y.is_f32(),
        }
    }

    fn operands(&self, workspace: &DeviceBuffer<u8>) -> Operands {
        let address = |m: Option<Matrix<'_>>| m.map_or(std::ptr::null_mut(), |m| m.address());
        Operands {
            weight: self.weight.address(),
            x: self.x.address(),
            bias: address(self.bias),
            residual: address(self.residual),
            y: self.y.address(),
            workspace: workspace.address_of(0),
            workspace_bytes: workspace.len(),
        }
    }

    fn in_chunks(
        &self,
        stream: &Stream,
        workspace: &ProjectionWorkspace,
    ) -> Result<(), LinearError> {
        let tokens = self.x.rows();
        for first in (0..tokens).step_by(MAX_DECODE_TOKENS as usize) {
            let count = MAX_DECODE_TOKENS.min(tokens - first);
            let chunk = DecodeProjection {
                weight: self.weight,
                x: self.x.rows_from(first, count),
                y: self.y.rows_from(first, count),
                epilogue: Epilogue::Add {
                    bias: self.bias,
                    residual: self.residual.map(|m| m.rows_from(first, count)),
                },
            };
            decode_projection(stream, &chunk, workspace)?;
        }
        Ok(())
    }
}
