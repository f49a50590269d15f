//! Host memory of somebody else's, page-locked and mapped so that kernels read it in place: the ring.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;

use crate::device::Device;
use crate::error::{CudaError, check};
use crate::ffi;

/// `cudaHostRegisterPortable | cudaHostRegisterMapped`: pinned for every device, and in the devices' address space.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// A range of host memory that devices reach at [`MappedRegion::address_of`] for as long as this lives.
///
/// Host and device access it at the same time: words that both touch are accessed atomically by both, and what orders
/// payload before flag is theirs to say.
pub struct MappedRegion {
    device: Device,
    base: NonNull<u8>,
    len: usize,
    mapped: *mut c_void,
    /// Keeps the memory where it is.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: a name of memory that `_owner` keeps alive; nothing is read or written through it here.
unsafe impl Send for MappedRegion {}
// SAFETY: as above.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    /// Page-locks and maps `len` bytes at `base`; its pages are committed by that.
    ///
    /// # Errors
    /// Those of the CUDA calls: memory that cannot be locked, or that is registered already.
    ///
    /// # Safety
    /// The range is readable and writable memory of this process and stays so until `owner` is dropped.
    pub unsafe fn register(
        device: &Device,
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, CudaError> {
        device.make_current()?;
        let host = base.as_ptr().cast();
        // SAFETY: the range is the caller's promise; the runtime refuses what it cannot lock.
        check("cudaHostRegister", unsafe {
            ffi::cudaHostRegister(host, len, PORTABLE_AND_MAPPED)
        })?;
        let mut region = Self {
            device: *device,
            base,
            len,
            mapped: std::ptr::null_mut(),
            _owner: owner,
        };
        // SAFETY: writes one pointer; the memory was registered as mapped.
        check("cudaHostGetDevicePointer", unsafe {
            ffi::cudaHostGetDevicePointer(&mut region.mapped, host, 0)
        })?;
        Ok(region)
    }

    /// Bytes of the range.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The devices' address of byte `offset`; nothing if it is past the end.
    #[must_use]
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        (offset <= self.len as u64).then(|| self.mapped as u64 + offset)
    }
}

impl std::fmt::Debug for MappedRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { base, len, .. } = self;
        write!(f, "MappedRegion {{ base: {base:?}, len: {len} }}")
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: registered by us, ended once, before its owner goes; the call waits for work that may use it.
            // An error here is one of an earlier kernel, which its own wait reports.
            unsafe {
                ffi::cudaDeviceSynchronize();
                ffi::cudaHostUnregister(self.base.as_ptr().cast());
            }
        }
    }
}
