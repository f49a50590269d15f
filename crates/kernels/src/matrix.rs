//! Views of matrices in device memory.

use std::ffi::c_void;

use bytemuck::Pod;
use half::bf16;

use crate::error::CudaError;
use crate::memory::DeviceBuffer;
use crate::stream::Stream;

/// `rows` rows of `cols` contiguous elements, `stride` elements apart, inside a buffer.
#[derive(Debug)]
pub struct Matrix<'a, T = bf16> {
    buffer: &'a DeviceBuffer<T>,
    offset: usize,
    rows: u32,
    cols: u32,
    stride: u32,
}

/// Where a projection writes: activations, or logits.
#[derive(Debug, Clone, Copy)]
pub enum Output<'a> {
    /// Rounded to bf16.
    Bf16(Matrix<'a>),
    /// As accumulated.
    F32(Matrix<'a, f32>),
}

impl Output<'_> {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> u32 {
        match self {
            Self::Bf16(matrix) => matrix.rows(),
            Self::F32(matrix) => matrix.rows(),
        }
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> u32 {
        match self {
            Self::Bf16(matrix) => matrix.cols(),
            Self::F32(matrix) => matrix.cols(),
        }
    }

    /// Elements from one row to the next.
    #[must_use]
    pub fn stride(&self) -> u32 {
        match self {
            Self::Bf16(matrix) => matrix.stride(),
            Self::F32(matrix) => matrix.stride(),
        }
    }

    /// Whether elements are f32.
    #[must_use]
    pub fn is_f32(&self) -> bool {
        matches!(self, Self::F32(_))
    }

    /// `count` rows from row `first` on.
    ///
    /// # Panics
    /// As [`Matrix::rows_from`].
    #[must_use]
    pub fn rows_from(&self, first: u32, count: u32) -> Self {
        match self {
            Self::Bf16(matrix) => Self::Bf16(matrix.rows_from(first, count)),
            Self::F32(matrix) => Self::F32(matrix.rows_from(first, count)),
        }
    }

    pub(crate) fn is_aligned(&self, bytes: usize) -> bool {
        match self {
            Self::Bf16(matrix) => matrix.is_aligned(bytes),
            Self::F32(matrix) => matrix.is_aligned(bytes),
        }
    }

    pub(crate) fn address(&self) -> *mut c_void {
        match self {
            Self::Bf16(matrix) => matrix.address(),
            Self::F32(matrix) => matrix.address(),
        }
    }
}

impl<'a> From<Matrix<'a>> for Output<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        Self::Bf16(matrix)
    }
}

impl<'a> From<Matrix<'a, f32>> for Output<'a> {
    fn from(matrix: Matrix<'a, f32>) -> Self {
        Self::F32(matrix)
    }
}

/// A view that does not lie inside its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("[{rows}, {cols}] with stride {stride} at {offset} is outside a buffer of {len} elements")]
pub struct MatrixError {
    rows: u32,
    cols: u32,
    stride: u32,
    offset: usize,
    len: usize,
}

impl<T> Clone for Matrix<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Matrix<'_, T> {}

impl<'a, T: Pod> Matrix<'a, T> {
    /// A dense matrix at the start of `buffer`.
    ///
    /// # Errors
    /// [`MatrixError`] if it does not fit.
    pub fn dense(buffer: &'a DeviceBuffer<T>, rows: u32, cols: u32) -> Result<Self, MatrixError> {
        Self::strided(buffer, 0, rows, cols, cols)
    }

    /// Any matrix in `buffer`; `offset` and `stride` in elements.
    ///
    /// # Errors
    /// [`MatrixError`] if it does not fit, is empty, or its rows overlap.
    pub fn strided(
        buffer: &'a DeviceBuffer<T>,
        offset: usize,
        rows: u32,
        cols: u32,
        stride: u32,
    ) -> Result<Self, MatrixError> {
        if !fits(buffer.len(), offset, rows, cols, stride) {
            return Err(MatrixError {
                rows,
                cols,
                stride,
                offset,
                len: buffer.len(),
            });
        }
        Ok(Self {
            buffer,
            offset,
            rows,
            cols,
            stride,
        })
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Number of columns.
    #[must_use]
    pub fn cols(&self) -> u32 {
        self.cols
    }

    /// Elements from one row to the next.
    #[must_use]
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// `count` rows from row `first` on.
    ///
    /// # Panics
    /// If there are not so many, or none is asked for.
    #[must_use]
    pub fn rows_from(&self, first: u32, count: u32) -> Self {
        let end = first.checked_add(count);
        assert!(
            count > 0 && end.is_some_and(|end| end <= self.rows),
            "rows {first}..+{count} of {}",
            self.rows
        );
        Self {
            offset: self.offset + first as usize * self.stride as usize,
            rows: count,
            ..*self
        }
    }

    /// Copies the elements to the host, row after row, after what is in the stream, and waits.
    ///
    /// # Errors
    /// Those of the CUDA calls, and of kernels that failed before.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>, CudaError> {
        let (rows, cols) = (self.rows as usize, self.cols as usize);
        let stride = if rows > 1 { self.stride as usize } else { cols };
        let mut all = vec![T::zeroed(); (rows - 1) * stride + cols];
        self.buffer.read_from(stream, self.offset, &mut all)?;
        if stride > cols {
            for row in 1..rows {
                all.copy_within(row * stride..row * stride + cols, row * cols);
            }
            all.truncate(rows * cols);
        }
        Ok(all)
    }

    /// Whether every row starts at a multiple of `bytes`.
    pub(crate) fn is_aligned(&self, bytes: usize) -> bool {
        let stride = if self.rows > 1 {
            self.stride as usize
        } else {
            0
        };
        (self.address() as usize | (stride * size_of::<T>())).is_multiple_of(bytes)
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.buffer.address_of(self.offset)
    }
}

fn fits(len: usize, offset: usize, rows: u32, cols: u32, stride: u32) -> bool {
    if rows == 0 || cols == 0 || (stride < cols && rows > 1) {
        return false;
    }
    let last = u64::from(rows - 1) * u64::from(stride) + u64::from(cols);
    (offset as u64)
        .checked_add(last)
        .is_some_and(|end| end <= len as u64)
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_view_ends_with_its_last_row_not_its_last_stride() {
        assert!(fits(22, 0, 3, 2, 10));
        assert!(!fits(21, 0, 3, 2, 10));
        assert!(!fits(22, 1, 3, 2, 10));
    }

    #[test]
    fn empty_and_overlapping_views_are_refused() {
        assert!(!fits(100, 0, 0, 4, 4));
        assert!(!fits(100, 0, 4, 0, 4));
        assert!(!fits(100, 0, 4, 4, 3));
        assert!(fits(100, 0, 1, 4, 0), "one row has no next row");
    }

    #[test]
    fn sizes_beyond_32_bits_do_not_wrap() {
        assert!(!fits(1 << 20, 0, u32::MAX, 1, u32::MAX));
        assert!(!fits(1 << 20, usize::MAX, 1, 1, 1));
    }
}
