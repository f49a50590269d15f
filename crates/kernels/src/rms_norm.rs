//! `rms_norm`: root-mean-square normalisation, fused with the residual addition before it.

use crate::error::{CudaError, check};
use crate::ffi::{self, RmsNormArgs};
use crate::matrix::Matrix;
use crate::stream::Stream;

/// Longest row, in elements: it is held in registers.
const MAX_HIDDEN: u32 = 8192;

/// One normalisation; all matrices bf16, a token a row.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm<'a> {
    /// `[tokens, hidden]`.
    pub x: Matrix<'a>,
    /// `[tokens, hidden]`, dense: becomes `x + residual` rounded to bf16, which is then normalised.
    pub residual: Option<Matrix<'a>>,
    /// `[1, hidden]`. Must not be written by the kernel just before in the stream.
    pub weight: Matrix<'a>,
    /// `[tokens, hidden]`, dense; may be a dense `x`.
    pub y: Matrix<'a>,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// Why a normalisation was not launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RmsNormError {
    /// A matrix of the wrong shape or stride.
    #[error("rms_norm: {matrix} must be {expected:?} and dense, got {got:?} with stride {stride}")]
    Shape {
        /// Which.
        matrix: &'static str,
        /// Rows and columns wanted.
        expected: [u32; 2],
        /// Rows and columns given.
        got: [u32; 2],
        /// Row stride given.
        stride: u32,
    },
    /// Rows must be a multiple of 8 elements, at most 8192, and start at multiples of 16 bytes.
    #[error(
        "rms_norm: rows of {0} elements: must be a multiple of 8, at most 8192, 16-byte aligned"
    )]
    Row(u32),
    /// The launch failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Launches one normalisation into `stream`.
///
/// # Errors
/// [`RmsNormError`]; nothing is launched then.
pub fn rms_norm(stream: &Stream, norm: &RmsNorm<'_>) -> Result<(), RmsNormError> {
    let RmsNorm {
        x,
        residual,
        weight,
        y,
        epsilon,
    } = *norm;
    let (tokens, hidden) = (x.rows(), x.cols());
    let dense = |matrix: &'static str, view: Matrix<'_>, rows: u32| {
        let (got, stride) = ([view.rows(), view.cols()], view.stride());
        if got == [rows, hidden] && (stride == hidden || rows == 1) {
            Ok(())
        } else {
            Err(RmsNormError::Shape {
                matrix,
                expected: [rows, hidden],
                got,
                stride,
            })
        }
    };
    dense("weight", weight, 1)?;
    dense("y", y, tokens)?;
    residual.map_or(Ok(()), |view| dense("residual", view, tokens))?;
    let aligned = |view: Matrix<'_>| (view.address() as usize).is_multiple_of(16);
    let views = [Some(x), residual, Some(weight), Some(y)];
    if !hidden.is_multiple_of(8)
        || hidden > MAX_HIDDEN
        || !x.stride().is_multiple_of(8)
        || !views.into_iter().flatten().all(aligned)
    {
        return Err(RmsNormError::Row(hidden));
    }
    let args = RmsNormArgs {
        x: x.address(),
        residual: residual.map_or(std::ptr::null_mut(), |view| view.address()),
        weight: weight.address(),
        y: y.address(),
        num_tokens: tokens,
        hidden,
        x_stride: x.stride(),
        epsilon,
    };
    let raw = stream.for_launch()?;
    // SAFETY: every view lies in its buffer and has the shape the kernel expects; buffers outlive
    // work on them.
    check("rms_norm", unsafe { ffi::izar_rms_norm(&args, raw) })?;
    Ok(())
}
