//! Devices: which there are, and what they have.

use crate::error::{CudaError, check};
use crate::ffi;

/// `cudaDeviceAttr` values.
const MULTIPROCESSORS: i32 = 16;
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;

/// A device that the kernels can run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    ordinal: i32,
}

impl Device {
    /// How many devices this process sees.
    ///
    /// # Errors
    /// [`CudaError::NotBuilt`], [`CudaError::NoDriver`], [`CudaError::NoDevice`].
    pub fn count() -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: writes one i32.
        check("cudaGetDeviceCount", unsafe {
            ffi::cudaGetDeviceCount(&mut count)
        })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Opens a device and makes it current on this thread.
    ///
    /// # Errors
    /// As [`Device::count`], and [`CudaError::UnsupportedDevice`] for anything but Hopper: the kernels
    /// use its own instructions.
    pub fn open(ordinal: i32) -> Result<Self, CudaError> {
        Self::count()?;
        let device = Self { ordinal };
        device.make_current()?;
        let (major, minor) = (
            device.attribute(CAPABILITY_MAJOR)?,
            device.attribute(CAPABILITY_MINOR)?,
        );
        if (major, minor) != (9, 0) {
            return Err(CudaError::UnsupportedDevice {
                ordinal,
                major,
                minor,
            });
        }
        Ok(device)
    }

    /// Its ordinal.
    #[must_use]
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Number of streaming multiprocessors (SMs).
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn num_multiprocessors(&self) -> Result<u32, CudaError> {
        Ok(self.attribute(MULTIPROCESSORS)?.unsigned_abs())
    }

    /// Free and total memory in bytes.
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn memory_bytes(&self) -> Result<(usize, usize), CudaError> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two words.
        check("cudaMemGetInfo", unsafe {
            ffi::cudaMemGetInfo(&mut free, &mut total)
        })?;
        Ok((free, total))
    }

    /// Waits for everything launched on the device.
    ///
    /// # Errors
    /// Those of the CUDA call, and of any kernel that failed since the last wait.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.make_current()?;
        // SAFETY: no arguments.
        check("cudaDeviceSynchronize", unsafe {
            ffi::cudaDeviceSynchronize()
        })
    }

    /// Makes the device current on the calling thread.
    pub(crate) fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: takes any ordinal and checks it.
        check("cudaSetDevice", unsafe { ffi::cudaSetDevice(self.ordinal) })
    }

    fn attribute(&self, attribute: i32) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: writes one i32.
        let code = unsafe { ffi::cudaDeviceGetAttribute(&mut value, attribute, self.ordinal) };
        check("cudaDeviceGetAttribute", code)?;
        Ok(value)
    }
}
