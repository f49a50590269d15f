//! What `decode_projection` computes, in f64: the oracle of its tests.

use crate::error::{CudaError, check};
use crate::ffi;
use crate::matrix::Matrix;
use crate::memory::DeviceBuffer;
use crate::stream::Stream;

/// `y = x * weightᵀ` in f64, one thread an output; with `swiglu` `silu(gate) * up` of a `[gate; up]`
/// weight. `y` is dense, `[tokens, outputs]`.
///
/// # Errors
/// Those of the launch.
///
/// # Panics
/// If depths differ, `weight` is not dense or `y` is too short.
pub fn reference_projection(
    stream: &Stream,
    weight: Matrix<'_>,
    x: Matrix<'_>,
    y: &DeviceBuffer<f64>,
    swiglu: bool,
) -> Result<(), CudaError> {
    let outputs = if swiglu {
        weight.rows() / 2
    } else {
        weight.rows()
    };
    assert_eq!(weight.cols(), x.cols(), "weight and x have one depth");
    assert_eq!(weight.cols(), weight.stride(), "weight is dense");
    assert!(
        y.len() as u64 >= u64::from(x.rows()) * u64::from(outputs),
        "y holds every output"
    );
    let raw = stream.for_launch()?;
    // SAFETY: the views lie in their buffers, y holds every output, and buffers outlive work on them.
    let code = unsafe {
        ffi::izar_reference_projection(
            weight.address(),
            x.address(),
            y.address_of(0),
            weight.rows(),
            weight.cols(),
            x.rows(),
            x.stride(),
            swiglu.into(),
            raw,
        )
    };
    check("reference_projection", code)
}
