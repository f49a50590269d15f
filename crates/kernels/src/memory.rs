//! Device memory.

use std::ffi::c_void;
use std::marker::PhantomData;

use bytemuck::Pod;

use crate::device::Device;
use crate::error::{CudaError, check};
use crate::ffi;
use crate::pinned::PinnedBuffer;
use crate::stream::Stream;

/// `cudaMemcpyKind`.
const HOST_TO_DEVICE: i32 = 1;
const DEVICE_TO_HOST: i32 = 2;

/// `len` elements on a device, 256-byte aligned, uninitialised until written.
///
/// Kernels write through shared references: see the crate's page on order.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    device: Device,
    address: *mut c_void,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: owns device memory, which no host thread dereferences.
unsafe impl<T: Send> Send for DeviceBuffer<T> {}
// SAFETY: as above; concurrent calls only queue work.
unsafe impl<T: Sync> Sync for DeviceBuffer<T> {}

impl<T: Pod> DeviceBuffer<T> {
    /// Allocates `len` elements. Reading them before a write gives unspecified values.
    ///
    /// # Errors
    /// Those of the CUDA call; out of memory is code 2.
    pub fn new(device: &Device, len: usize) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut address = std::ptr::null_mut();
        let bytes = len.saturating_mul(size_of::<T>());
        // SAFETY: writes one pointer.
        check("cudaMalloc", unsafe {
            ffi::cudaMalloc(&mut address, bytes)
        })?;
        Ok(Self {
            device: *device,
            address,
            len,
            element: PhantomData,
        })
    }

    /// Allocates memory and copies `host` into it.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    pub fn from_slice(stream: &Stream, host: &[T]) -> Result<Self, CudaError> {
        let buffer = Self::new(stream.device(), host.len())?;
        buffer.write(stream, host)?;
        Ok(buffer)
    }

    /// Copies `host` to the start of the buffer, after what is in the stream, and waits.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    ///
    /// # Panics
    /// If `host` is longer than the buffer.
    pub fn write(&self, stream: &Stream, host: &[T]) -> Result<(), CudaError> {
        assert!(
            host.len() <= self.len,
            "{} elements into a buffer of {}",
            host.len(),
            self.len
        );
        let raw = stream.for_launch()?;
        // SAFETY: both regions hold that many bytes; `host` outlives the copy, which is waited for.
        let code = unsafe {
            let from = host.as_ptr().cast();
            ffi::cudaMemcpyAsync(self.address, from, size_of_val(host), HOST_TO_DEVICE, raw)
        };
        check("cudaMemcpyAsync", code)?;
        stream.synchronize()
    }

    /// Copies the start of the buffer to `host`, after what is in the stream, and waits.
    ///
    /// # Errors
    /// Those of the CUDA calls, and of kernels that failed before.
    ///
    /// # Panics
    /// If `host` is longer than the buffer.
    pub fn read(&self, stream: &Stream, host: &mut [T]) -> Result<(), CudaError> {
        self.read_from(stream, 0, host)
    }

    /// As [`DeviceBuffer::read`], from element `index` on.
    pub(crate) fn read_from(
        &self,
        stream: &Stream,
        index: usize,
        host: &mut [T],
    ) -> Result<(), CudaError> {
        assert!(
            index + host.len() <= self.len,
            "{} elements from {index} of a buffer of {}",
            host.len(),
            self.len
        );
        let from = self.address_of(index);
        let raw = stream.for_launch()?;
        // SAFETY: both regions hold that many bytes; any bit pattern is a `T`; the copy is waited for.
        let code = unsafe {
            let to = host.as_mut_ptr().cast();
            ffi::cudaMemcpyAsync(to, from, size_of_val(host), DEVICE_TO_HOST, raw)
        };
        check("cudaMemcpyAsync", code)?;
        stream.synchronize()
    }

    /// Queues a copy of `from[from_index..][..len]` to `self[index..]` and returns. Can be captured.
    ///
    /// # Errors
    /// Those of the CUDA call.
    ///
    /// # Safety
    /// Both buffers live, and the source stays as it is, until the copy is done (for a captured one: every launch).
    ///
    /// # Panics
    /// If a range leaves its buffer.
    pub unsafe fn write_async(
        &self,
        stream: &Stream,
        index: usize,
        from: &PinnedBuffer<T>,
        from_index: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        assert!(index + len <= self.len && from_index + len <= from.len());
        let raw = stream.for_launch()?;
        let (to, bytes) = (self.address_of(index), len * size_of::<T>());
        // SAFETY: both ranges are in bounds, asserted; the caller vouches for their lives.
        let code = unsafe {
            let from = from.as_ptr().add(from_index).cast();
            ffi::cudaMemcpyAsync(to, from, bytes, HOST_TO_DEVICE, raw)
        };
        check("cudaMemcpyAsync", code)
    }

    /// Queues a copy of `self[index..][..len]` to `to[to_index..]` and returns. Can be captured.
    ///
    /// # Errors
    /// Those of the CUDA call.
    ///
    /// # Safety
    /// Both buffers live, and nobody touches the target, until the copy is done.
    ///
    /// # Panics
    /// If a range leaves its buffer.
    pub unsafe fn read_async(
        &self,
        stream: &Stream,
        index: usize,
        to: &PinnedBuffer<T>,
        to_index: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        assert!(index + len <= self.len && to_index + len <= to.len());
        let raw = stream.for_launch()?;
        let (from, bytes) = (self.address_of(index), len * size_of::<T>());
        // SAFETY: both ranges are in bounds, asserted; the caller vouches for their lives.
        let code = unsafe {
            let to = to.as_ptr().add(to_index).cast();
            ffi::cudaMemcpyAsync(to, from, bytes, DEVICE_TO_HOST, raw)
        };
        check("cudaMemcpyAsync", code)
    }

    /// Sets every byte, in the order of the stream.
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn fill_bytes(&self, stream: &Stream, byte: u8) -> Result<(), CudaError> {
        let bytes = self.len * size_of::<T>();
        let raw = stream.for_launch()?;
        // SAFETY: the buffer holds that many bytes.
        let code = unsafe { ffi::cudaMemsetAsync(self.address, byte.into(), bytes, raw) };
        check("cudaMemsetAsync", code)
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address of element `index`, for a library that takes one. Never dereference it.
    ///
    /// # Panics
    /// If `index` is past the end.
    #[must_use]
    pub fn address_of(&self, index: usize) -> *mut c_void {
        assert!(index <= self.len, "element {index} of {}", self.len);
        self.address.wrapping_byte_add(index * size_of::<T>())
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        // An error here is one of an earlier kernel, which its own wait reports.
        if self.device.make_current().is_ok() {
            // SAFETY: allocated by us, freed once; the call waits for work that may use it.
            unsafe { ffi::cudaFree(self.address) };
        }
    }
}
