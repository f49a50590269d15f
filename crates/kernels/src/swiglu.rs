//! `swiglu`: `silu(gate) * up` where the projection before it has no such epilogue.

use std::ffi::c_void;

use crate::error::check;
use crate::ffi;
use crate::launch_error::{Checks, LaunchError};
use crate::matrix::Matrix;
use crate::stream::Stream;

/// Mirrors `IzarSwigluArgs`.
#[repr(C)]
pub(crate) struct Args {
    gate_up: *const c_void,
    y: *mut c_void,
    num_tokens: u32,
    width: u32,
    x_stride: u32,
    y_stride: u32,
}

const _: () = assert!(size_of::<Args>() == 32);

/// `y = silu(gate) * up`: `gate_up` is `[tokens, 2 * width]`, gates first, `y` is `[tokens, width]`; bf16, rows 16-byte
/// aligned, width a multiple of 8.
///
/// # Errors
/// [`LaunchError`]; nothing is launched then.
pub fn swiglu(stream: &Stream, gate_up: Matrix<'_>, y: Matrix<'_>) -> Result<(), LaunchError> {
    let checks = Checks("swiglu");
    let width = y.cols();
    checks.require(
        gate_up.cols() == 2 * width,
        "the width of gate_up",
        "twice that of y",
        gate_up.cols(),
    )?;
    checks.require(
        gate_up.rows() == y.rows(),
        "the rows of gate_up",
        "those of y",
        gate_up.rows(),
    )?;
    checks.require(
        width.is_multiple_of(8),
        "the width",
        "a multiple of 8",
        width,
    )?;
    checks.require(
        gate_up.is_aligned(16) && y.is_aligned(16),
        "rows",
        "16-byte aligned",
        y.stride(),
    )?;
    let args = Args {
        gate_up: gate_up.address(),
        y: y.address(),
        num_tokens: y.rows(),
        width,
        x_stride: gate_up.stride(),
        y_stride: y.stride(),
    };
    let raw = stream.for_launch()?;
    // SAFETY: the views lie in their buffers and have the shapes the kernel expects; buffers outlive work on them.
    check("swiglu", unsafe { ffi::izar_swiglu(&args, raw) })?;
    Ok(())
}
