//! The memory's read rate: what decode kernels are held against.

use half::bf16;

use crate::error::{CudaError, check};
use crate::ffi;
use crate::memory::DeviceBuffer;
use crate::stream::Stream;

/// Reads all of `input` once. `sink` is there so that the reads are not optimised away.
///
/// # Errors
/// Those of the launch.
///
/// # Panics
/// If `sink` is empty.
pub fn read_stream(
    stream: &Stream,
    input: &DeviceBuffer<bf16>,
    sink: &DeviceBuffer<u32>,
) -> Result<(), CudaError> {
    assert!(!sink.is_empty(), "a sink of one word");
    let raw = stream.for_launch()?;
    let bytes = input.len() as u64 * 2;
    // SAFETY: reads inside `input`, writes at most one word of `sink`; buffers outlive work on them.
    let code =
        unsafe { ffi::izar_read_stream(input.address_of(0), bytes, sink.address_of(0), raw) };
    check("read_stream", code)
}
