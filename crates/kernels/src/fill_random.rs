//! Random numbers in device memory: dummy weights and test inputs.

use half::bf16;

use crate::error::{CudaError, check};
use crate::ffi;
use crate::memory::DeviceBuffer;
use crate::stream::Stream;

/// Fills `out` with values uniform in [-`scale` / 2, `scale` / 2). Element i depends on `seed` and i
/// alone.
///
/// # Errors
/// Those of the launch.
pub fn fill_random(
    stream: &Stream,
    out: &DeviceBuffer<bf16>,
    seed: u32,
    scale: f32,
) -> Result<(), CudaError> {
    let raw = stream.for_launch()?;
    // SAFETY: the kernel writes `len` elements of the buffer, which outlives work on it.
    let code =
        unsafe { ffi::izar_fill_random(out.address_of(0), out.len() as u64, seed, scale, raw) };
    check("fill_random", code)
}
