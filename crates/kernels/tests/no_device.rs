//! What a process sees on a machine without a GPU, with the feature `cuda` and without it.

use izar_kernels::{CudaError, Device};

#[test]
fn a_missing_driver_or_device_is_an_error_that_says_what_to_do() {
    let error = match Device::open(0) {
        Ok(_) => return, // a machine with a GPU: tests/gpu.rs has more to say there
        Err(error) => error,
    };
    let expected: &[CudaError] = if cfg!(feature = "cuda") {
        &[CudaError::NoDriver, CudaError::NoDevice]
    } else {
        &[CudaError::NotBuilt]
    };
    assert!(expected.contains(&error), "{error:?}");
    let text = error.to_string();
    assert!(
        ["install", "check", "build"]
            .iter()
            .any(|verb| text.contains(verb)),
        "{text}"
    );
}

#[test]
fn a_device_that_does_not_exist_is_refused() {
    assert!(Device::open(1 << 20).is_err());
    assert!(Device::open(-1).is_err());
}
