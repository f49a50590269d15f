//! `gather_rows`: rows of a matrix picked by a list on the device: token embeddings, hidden states that sample.

use std::ffi::c_void;

use crate::error::check;
use crate::ffi;
use crate::launch_error::{Checks, LaunchError};
use crate::matrix::Matrix;
use crate::memory::DeviceBuffer;
use crate::stream::Stream;

/// Mirrors `IzarGatherRowsArgs`.
#[repr(C)]
pub(crate) struct Args {
    table: *const c_void,
    rows: *const c_void,
    y: *mut c_void,
    num_rows: u32,
    num_outputs: u32,
    width: u32,
    table_stride: u32,
    y_stride: u32,
}

const _: () = assert!(size_of::<Args>() == 48);

/// `y[i] = table[rows[i]]` for every row of `y`. A row outside the table reads as NaN. Matrices bf16, their rows
/// 16-byte aligned and a multiple of 8 elements.
///
/// # Errors
/// [`LaunchError`]; nothing is launched then.
pub fn gather_rows(
    stream: &Stream,
    table: Matrix<'_>,
    rows: &DeviceBuffer<u32>,
    y: Matrix<'_>,
) -> Result<(), LaunchError> {
    launch("gather_rows", stream, table, rows, y)
}

/// `y[i] = table[token_ids[i]]`: [`gather_rows`] of an embedding `[vocab, hidden]`.
///
/// # Errors
/// [`LaunchError`]; nothing is launched then.
pub fn embed(
    stream: &Stream,
    table: Matrix<'_>,
    token_ids: &DeviceBuffer<u32>,
    y: Matrix<'_>,
) -> Result<(), LaunchError> {
    launch("embed", stream, table, token_ids, y)
}

fn launch(
    op: &'static str,
    stream: &Stream,
    table: Matrix<'_>,
    rows: &DeviceBuffer<u32>,
    y: Matrix<'_>,
) -> Result<(), LaunchError> {
    let checks = Checks(op);
    let width = table.cols();
    checks.require(y.cols() == width, "the width of y", "the table's", y.cols())?;
    checks.require(
        width.is_multiple_of(8),
        "the width",
        "a multiple of 8",
        width,
    )?;
    checks.require(
        table.is_aligned(16) && y.is_aligned(16),
        "rows",
        "16-byte aligned",
        table.stride(),
    )?;
    checks.require(
        rows.len() >= y.rows() as usize,
        "the row list",
        "as long as y or longer",
        rows.len(),
    )?;
    let args = Args {
        table: table.address(),
        rows: rows.address_of(0),
        y: y.address(),
        num_rows: table.rows(),
        num_outputs: y.rows(),
        width,
        table_stride: table.stride(),
        y_stride: y.stride(),
    };
    let raw = stream.for_launch()?;
    // SAFETY: the views lie in their buffers, the list names a row for each of y, rows outside the table are not
    // read, and buffers outlive work on them.
    check(op, unsafe { ffi::izar_gather_rows(&args, raw) })?;
    Ok(())
}
