//! Streams, which order work on a device, and events, which time it and order streams.

use std::ffi::c_void;

use crate::device::Device;
use crate::error::{CudaError, check};
use crate::ffi::{self, RawEvent, RawStream};

/// `cudaStreamNonBlocking`: no implicit order with the legacy default stream.
const NON_BLOCKING: u32 = 1;
/// `cudaErrorNotReady`.
const NOT_READY: i32 = 600;
/// `cudaEventDisableTiming`.
const DISABLE_TIMING: u32 = 2;

/// A queue of work on one device: in order within it, unordered against other streams.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    raw: RawStream,
}

impl Stream {
    /// A new, empty stream.
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut raw = RawStream::NULL;
        // SAFETY: writes one handle.
        let code = unsafe { ffi::cudaStreamCreateWithFlags(&mut raw, NON_BLOCKING) };
        check("cudaStreamCreateWithFlags", code)?;
        Ok(Self {
            device: *device,
            raw,
        })
    }

    /// A new, empty stream whose kernels go before those of others as blocks finish.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    pub fn urgent(device: &Device) -> Result<Self, CudaError> {
        device.make_current()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: writes two integers.
        check("cudaDeviceGetStreamPriorityRange", unsafe {
            ffi::cudaDeviceGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        let mut raw = RawStream::NULL;
        // SAFETY: writes one handle.
        let code = unsafe { ffi::cudaStreamCreateWithPriority(&mut raw, NON_BLOCKING, greatest) };
        check("cudaStreamCreateWithPriority", code)?;
        Ok(Self {
            device: *device,
            raw,
        })
    }

    /// Waits for everything in the stream.
    ///
    /// # Errors
    /// Those of the CUDA call, and of any kernel that failed since the last wait.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is alive as long as `self`.
        check("cudaStreamSynchronize", unsafe {
            ffi::cudaStreamSynchronize(self.raw)
        })
    }

    /// Whether everything in the stream is done; does not wait.
    ///
    /// # Errors
    /// Those of the CUDA call, and of any kernel that failed since the last wait.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        // SAFETY: the handle is alive as long as `self`.
        match unsafe { ffi::cudaStreamQuery(self.raw) } {
            NOT_READY => Ok(false),
            code => check("cudaStreamQuery", code).map(|()| true),
        }
    }

    /// Makes later work of this stream wait for `event`.
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both handles are alive.
        check("cudaStreamWaitEvent", unsafe {
            ffi::cudaStreamWaitEvent(self.raw, event.raw, 0)
        })
    }

    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The runtime's handle, for a library that takes one. Valid while `self` lives.
    #[must_use]
    pub fn raw_handle(&self) -> *mut c_void {
        self.raw.0
    }

    /// The handle, with its device made current so that a launch can follow.
    pub(crate) fn for_launch(&self) -> Result<RawStream, CudaError> {
        self.device.make_current()?;
        Ok(self.raw)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once; the runtime lets work in it finish.
        unsafe { ffi::cudaStreamDestroy(self.raw) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    raw: RawEvent,
}

impl Event {
    /// A new event that takes a time stamp when recorded.
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        Self::with_flags(device, 0)
    }

    /// A new event that only orders, which is cheaper to record.
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn untimed(device: &Device) -> Result<Self, CudaError> {
        Self::with_flags(device, DISABLE_TIMING)
    }

    fn with_flags(device: &Device, flags: u32) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut raw = RawEvent::NULL;
        // SAFETY: writes one handle.
        check("cudaEventCreateWithFlags", unsafe {
            ffi::cudaEventCreateWithFlags(&mut raw, flags)
        })?;
        Ok(Self { raw })
    }

    /// Records the event after what is in the stream now.
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are alive.
        check("cudaEventRecord", unsafe {
            ffi::cudaEventRecord(self.raw, stream.raw)
        })
    }

    /// Waits until the event has happened.
    ///
    /// # Errors
    /// Those of the CUDA call, and of kernels before the event.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is alive.
        check("cudaEventSynchronize", unsafe {
            ffi::cudaEventSynchronize(self.raw)
        })
    }

    /// Milliseconds from `start` to this event, on the device's clock. Both must have happened.
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn ms_since(&self, start: &Event) -> Result<f32, CudaError> {
        let mut ms = 0.0;
        // SAFETY: writes one f32; both handles are alive.
        let code = unsafe { ffi::cudaEventElapsedTime(&mut ms, start.raw, self.raw) };
        check("cudaEventElapsedTime", code)?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once.
        unsafe { ffi::cudaEventDestroy(self.raw) };
    }
}
