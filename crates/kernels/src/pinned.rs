//! Page-locked host memory: what copies run from at full speed, and what kernels can read and write in place.

use std::ffi::c_void;
use std::marker::PhantomData;

use bytemuck::Pod;

use crate::device::Device;
use crate::error::{CudaError, check};
use crate::ffi;

/// `cudaHostAllocPortable | cudaHostAllocMapped`: pinned for every device, and in the devices' address space.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// `len` zeroed elements of page-locked host memory.
///
/// Copies and kernels may touch it while the host does, so elements are reached through raw pointers; a word that
/// both sides touch at the same time is accessed atomically by both.
#[derive(Debug)]
pub struct PinnedBuffer<T> {
    device: Device,
    host: *mut c_void,
    mapped: *mut c_void,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: owns memory; access to it is through raw pointers or unsafe methods that state their contract.
unsafe impl<T: Send> Send for PinnedBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for PinnedBuffer<T> {}

impl<T: Pod> PinnedBuffer<T> {
    /// Allocates `len` zeroed elements.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    ///
    /// # Panics
    /// If `len` is zero.
    pub fn new(device: &Device, len: usize) -> Result<Self, CudaError> {
        assert!(len > 0, "an empty buffer");
        device.make_current()?;
        let bytes = len.saturating_mul(size_of::<T>());
        let mut host = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check("cudaHostAlloc", unsafe {
            ffi::cudaHostAlloc(&mut host, bytes, PORTABLE_AND_MAPPED)
        })?;
        // SAFETY: just allocated, `bytes` long, page aligned, nobody else knows it.
        unsafe { host.cast::<u8>().write_bytes(0, bytes) };
        let mut buffer = Self {
            device: *device,
            host,
            mapped: std::ptr::null_mut(),
            len,
            element: PhantomData,
        };
        // SAFETY: writes one pointer; the memory was allocated as mapped.
        check("cudaHostGetDevicePointer", unsafe {
            ffi::cudaHostGetDevicePointer(&mut buffer.mapped, host, 0)
        })?;
        Ok(buffer)
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none. Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The host's address of the first element.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.host.cast()
    }

    /// The devices' address of element `index`.
    ///
    /// # Panics
    /// If `index` is past the end.
    #[must_use]
    pub fn address_of(&self, index: usize) -> *mut c_void {
        assert!(index <= self.len, "element {index} of {}", self.len);
        self.mapped.wrapping_byte_add(index * size_of::<T>())
    }

    /// The elements, to read.
    ///
    /// # Safety
    /// No copy, kernel or other thread writes them while the slice lives.
    #[must_use]
    pub unsafe fn as_slice(&self) -> &[T] {
        // SAFETY: allocated and zeroed by `new`, any bit pattern is a `T`; unwritten by the contract.
        unsafe { std::slice::from_raw_parts(self.host.cast(), self.len) }
    }

    /// The elements, to write.
    ///
    /// # Safety
    /// No copy or kernel touches them while the slice lives.
    #[must_use]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`; untouched by the contract, and unshared by the exclusive borrow.
        unsafe { std::slice::from_raw_parts_mut(self.host.cast(), self.len) }
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        // An error here is one of an earlier kernel, which its own wait reports.
        if self.device.make_current().is_ok() {
            // SAFETY: allocated by us, freed once; the call waits for work that may use it.
            unsafe { ffi::cudaFreeHost(self.host) };
        }
    }
}
