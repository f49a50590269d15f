//! What a CUDA call can answer other than success.

use std::ffi::CStr;

use crate::ffi;

/// A failed CUDA call. Each variant that a person can act on says how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The binary has no CUDA code in it.
    #[error("built without CUDA: build with `--features cuda`, or use the CPU engine")]
    NotBuilt,
    /// No driver, or one too old for the runtime (CUDA error 35).
    #[error(
        "no NVIDIA driver for CUDA 13 (error 35): install driver 580 or later, or use the CPU engine"
    )]
    NoDriver,
    /// A driver, but no device that this process may use (CUDA error 100).
    #[error("no CUDA device (error 100): check nvidia-smi and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// A device older than the kernels.
    #[error(
        "device {ordinal} has compute capability {major}.{minor}, the kernels need 9.0 (Hopper)"
    )]
    UnsupportedDevice {
        /// Its ordinal.
        ordinal: i32,
        /// Compute capability, major part.
        major: i32,
        /// Compute capability, minor part.
        minor: i32,
    },
    /// Any other error. One of an earlier asynchronous kernel can surface here.
    #[error("{call}: {name} (CUDA error {code})")]
    Call {
        /// The function that reported it.
        call: &'static str,
        /// The runtime's code.
        code: i32,
        /// The runtime's name of the code.
        name: &'static str,
    },
}

/// Turns a status of the CUDA runtime into a result.
pub(crate) fn check(call: &'static str, code: i32) -> Result<(), CudaError> {
    match code {
        0 => Ok(()),
        ffi::NOT_BUILT => Err(CudaError::NotBuilt),
        35 => Err(CudaError::NoDriver),
        100 => Err(CudaError::NoDevice),
        code => {
            // SAFETY: takes any code and returns a static, NUL-terminated string.
            let name = unsafe { CStr::from_ptr(ffi::cudaGetErrorName(code)) };
            Err(CudaError::Call {
                call,
                code,
                name: name.to_str().unwrap_or("unknown error"),
            })
        }
    }
}
