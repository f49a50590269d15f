//! `decode_projection`: `y = x * weightᵀ` for up to 64 tokens at the memory's speed.
//!
//! `cuda/ops/decode_projection.cu` says how. Results of a token do not depend on the other tokens.

use crate::device::Device;
use crate::error::{CudaError, check};
use crate::ffi::{self, DecodeProjectionArgs};
use crate::matrix::{Matrix, Output};
use crate::memory::DeviceBuffer;
use crate::stream::Stream;

/// Tokens that one launch takes at most.
pub const MAX_DECODE_TOKENS: u32 = 64;

/// f32 words that a block may leave for another: 64 weight rows by 64 tokens.
const PART_WORDS: usize = 64 * 64;

/// What happens to the products before they are written.
#[derive(Debug, Clone, Copy)]
pub enum Epilogue<'a> {
    /// `y = product + bias + residual`, each optional: bias `[1, rows]` is added in f32, residual
    /// `[tokens, rows]` to the product rounded to bf16. The residual may be `y` itself.
    Add {
        /// One value a weight row.
        bias: Option<Matrix<'a>>,
        /// What the layer's output is added to.
        residual: Option<Matrix<'a>>,
    },
    /// The weight is `[gate; up]`; `y = silu(gate) * up` has half its rows.
    Swiglu,
}

/// One projection. Inputs are bf16; tokens and weight rows are matrix rows.
#[derive(Debug, Clone, Copy)]
pub struct DecodeProjection<'a> {
    /// `[rows, depth]`, dense. Must not be written by the kernel just before in the stream: it is
    /// read before that kernel has finished.
    pub weight: Matrix<'a>,
    /// `[tokens, depth]`.
    pub x: Matrix<'a>,
    /// `[tokens, outputs]`; f32 only with [`Epilogue::Add`] and without a residual.
    pub y: Output<'a>,
    /// What is done to the products.
    pub epilogue: Epilogue<'a>,
}

/// Why a projection was not launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeProjectionError {
    /// A matrix of the wrong shape.
    #[error("decode_projection: {matrix} must be {expected:?}, got {got:?}")]
    Shape {
        /// Which.
        matrix: &'static str,
        /// Rows and columns wanted.
        expected: [u32; 2],
        /// Rows and columns given.
        got: [u32; 2],
    },
    /// More than [`MAX_DECODE_TOKENS`].
    #[error("decode_projection: {0} tokens, at most 64: use a prefill projection")]
    TooManyTokens(u32),
    /// A stride, offset or size that the copy engine cannot take.
    #[error("decode_projection: {what} must be a multiple of {multiple}")]
    Alignment {
        /// Which.
        what: &'static str,
        /// Of what it must be a multiple; bytes for addresses, elements for sizes and strides.
        multiple: u32,
    },
    /// f32 outputs with an epilogue that needs them rounded.
    #[error("decode_projection: f32 outputs take a bias alone, no residual and no SwiGLU")]
    F32Epilogue,
    /// The launch failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Memory through which blocks that share a tile pass their parts. One launch at a time may use it:
/// give each stream its own.
#[derive(Debug)]
pub struct ProjectionWorkspace {
    parts: DeviceBuffer<u32>,
    error: DeviceBuffer<u32>,
    num_blocks: u32,
}

impl ProjectionWorkspace {
    /// For launches of `num_blocks` blocks: at best one an SM.
    ///
    /// # Errors
    /// Those of the allocation.
    ///
    /// # Panics
    /// If `num_blocks` is zero or more than the device has SMs: blocks wait for each other, so all
    /// must be resident.
    pub fn new(device: &Device, stream: &Stream, num_blocks: u32) -> Result<Self, CudaError> {
        let num_sms = device.num_multiprocessors()?;
        assert!(
            (1..=num_sms).contains(&num_blocks),
            "{num_blocks} blocks on {num_sms} SMs"
        );
        let parts = DeviceBuffer::new(device, num_blocks as usize * PART_WORDS)?;
        let error = DeviceBuffer::new(device, 1)?;
        parts.fill_bytes(stream, 0xFF)?;
        error.fill_bytes(stream, 0)?;
        Ok(Self {
            parts,
            error,
            num_blocks,
        })
    }

    /// Waits for the stream and says whether every launch so far completed: `false` if a block's part
    /// did not come in time, after which results and workspace are void.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    pub fn is_sound(&self, stream: &Stream) -> Result<bool, CudaError> {
        let mut word = [0];
        self.error.read(stream, &mut word)?;
        Ok(word[0] == 0)
    }

    /// Waits for the stream and says whether the workspace is as every launch must leave it.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    pub fn is_clean(&self, stream: &Stream) -> Result<bool, CudaError> {
        let mut words = vec![0; self.parts.len()];
        self.parts.read(stream, &mut words)?;
        Ok(words.iter().all(|&word| word == u32::MAX))
    }
}

/// Launches one projection into `stream`.
///
/// # Errors
/// [`DecodeProjectionError`]; nothing is launched then.
pub fn decode_projection(
    stream: &Stream,
    projection: &DecodeProjection<'_>,
    workspace: &ProjectionWorkspace,
) -> Result<(), DecodeProjectionError> {
    let DecodeProjection {
        weight,
        x,
        y,
        epilogue,
    } = *projection;
    check_shapes(projection)?;
    check_alignment(projection)?;
    let (bias, residual) = match epilogue {
        Epilogue::Add { bias, residual } => (bias, residual),
        Epilogue::Swiglu => (None, None),
    };
    let address = |matrix: Option<Matrix<'_>>| matrix.map_or(std::ptr::null_mut(), |m| m.address());
    let args = DecodeProjectionArgs {
        weight: weight.address(),
        x: x.address(),
        bias: address(bias),
        residual: address(residual),
        y: y.address(),
        parts: workspace.parts.address_of(0),
        error: workspace.error.address_of(0),
        num_rows: weight.rows(),
        depth: weight.cols(),
        num_tokens: x.rows(),
        x_stride: x.stride(),
        y_stride: y.stride(),
        residual_stride: residual.map_or(0, |m| m.stride()),
        num_blocks: workspace.num_blocks,
        swiglu: matches!(epilogue, Epilogue::Swiglu).into(),
        is_f32: y.is_f32().into(),
        reserved: 0,
    };
    let raw = stream.for_launch()?;
    // SAFETY: every view lies in its buffer and has the shape the kernel expects; buffers outlive
    // work on them; the workspace holds a part for each block.
    check("decode_projection", unsafe {
        ffi::izar_decode_projection(&args, raw)
    })?;
    Ok(())
}

fn check_shapes(projection: &DecodeProjection<'_>) -> Result<(), DecodeProjectionError> {
    let DecodeProjection {
        weight,
        x,
        y,
        epilogue,
    } = *projection;
    let shape = |view: Matrix<'_>| [view.rows(), view.cols()];
    let expect = |matrix: &'static str, got: [u32; 2], expected: [u32; 2]| {
        if got == expected {
            Ok(())
        } else {
            Err(DecodeProjectionError::Shape {
                matrix,
                expected,
                got,
            })
        }
    };
    let tokens = x.rows();
    if tokens > MAX_DECODE_TOKENS {
        return Err(DecodeProjectionError::TooManyTokens(tokens));
    }
    expect("x", shape(x), [tokens, weight.cols()])?;
    let is_rounded = match epilogue {
        Epilogue::Swiglu => true,
        Epilogue::Add { residual, .. } => residual.is_some(),
    };
    if y.is_f32() && is_rounded {
        return Err(DecodeProjectionError::F32Epilogue);
    }
    let got = [y.rows(), y.cols()];
    match epilogue {
        Epilogue::Swiglu => expect("y", got, [tokens, weight.rows() / 2]),
        Epilogue::Add { bias, residual } => {
            let row = [1, weight.rows()];
            expect("y", got, [tokens, weight.rows()])?;
            bias.map_or(Ok(()), |bias| expect("bias", shape(bias), row))?;
            residual.map_or(Ok(()), |view| {
                expect("residual", shape(view), [tokens, weight.rows()])
            })
        }
    }
}

fn check_alignment(projection: &DecodeProjection<'_>) -> Result<(), DecodeProjectionError> {
    let DecodeProjection {
        weight,
        x,
        y,
        epilogue,
    } = *projection;
    let multiple = |what: &'static str, value: usize, multiple: u32| {
        if value.is_multiple_of(multiple as usize) {
            Ok(())
        } else {
            Err(DecodeProjectionError::Alignment { what, multiple })
        }
    };
    multiple("the address of weight", weight.address() as usize, 16)?;
    multiple("the address of x", x.address() as usize, 16)?;
    let pair = if y.is_f32() { 8 } else { 4 };
    multiple("the address of y", y.address() as usize, pair)?;
    multiple("the depth", weight.cols() as usize, 8)?;
    multiple("the stride of x", x.stride() as usize, 8)?;
    if weight.stride() != weight.cols() {
        return Err(DecodeProjectionError::Alignment {
            what: "the stride of weight",
            multiple: weight.cols(),
        });
    }
    match epilogue {
        Epilogue::Swiglu => multiple(
            "the rows of a [gate; up] weight",
            weight.rows() as usize,
            16,
        ),
        Epilogue::Add { residual, .. } => residual.map_or(Ok(()), |view| {
            multiple("the address of residual", view.address() as usize, 4)
        }),
    }
}
