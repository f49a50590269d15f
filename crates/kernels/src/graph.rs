//! Graphs: work captured once from a stream and launched as a whole, from the host or the device.

use crate::error::{CudaError, check};
use crate::ffi::{self, RawGraph, RawGraphExec};
use crate::stream::Stream;

/// `cudaStreamCaptureModeThreadLocal`: other threads may allocate meanwhile.
const THREAD_LOCAL: i32 = 1;
/// `cudaGraphInstantiateFlagDeviceLaunch`.
const DEVICE_LAUNCH: u64 = 4;

/// Captured work, not yet launchable.
#[derive(Debug)]
pub struct Graph {
    raw: RawGraph,
}

impl Graph {
    /// Captures what `record` puts into `stream`; nothing runs. The stream is usable again after,
    /// also when `record` fails.
    ///
    /// # Errors
    /// Those of `record`, and of the CUDA calls (a wait or an allocation during capture, say).
    pub fn capture<E: From<CudaError>>(
        stream: &Stream,
        record: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Self, E> {
        let raw_stream = stream.for_launch()?;
        // SAFETY: the stream is alive.
        let code = unsafe { ffi::cudaStreamBeginCapture(raw_stream, THREAD_LOCAL) };
        check("cudaStreamBeginCapture", code)?;
        let recorded = record(stream);
        let mut graph = Self {
            raw: RawGraph::NULL,
        };
        // SAFETY: the stream is alive; writes one handle, null when the capture was invalidated.
        let code = unsafe { ffi::cudaStreamEndCapture(raw_stream, &mut graph.raw) };
        recorded?;
        check("cudaStreamEndCapture", code)?;
        Ok(graph)
    }

    /// Number of nodes.
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn num_nodes(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: a null list asks for the count alone.
        let code = unsafe { ffi::cudaGraphGetNodes(self.raw, std::ptr::null_mut(), &mut count) };
        check("cudaGraphGetNodes", code)?;
        Ok(count)
    }

    /// Makes it launchable from the host.
    ///
    /// # Errors
    /// Those of the CUDA call.
    pub fn instantiate(&self) -> Result<GraphExec, CudaError> {
        self.instantiate_with(0)
    }

    /// Makes it launchable from the host and from kernels of `stream`'s device, and uploads it, which
    /// a launch from the device needs. Such a graph holds kernels, copies, sets and child graphs of
    /// one device only.
    ///
    /// # Errors
    /// Those of the CUDA calls; a node that cannot be launched from the device is one.
    pub fn instantiate_for_device(&self, stream: &Stream) -> Result<GraphExec, CudaError> {
        let exec = self.instantiate_with(DEVICE_LAUNCH)?;
        let raw = stream.for_launch()?;
        // SAFETY: both handles are alive.
        check("cudaGraphUpload", unsafe {
            ffi::cudaGraphUpload(exec.raw, raw)
        })?;
        Ok(exec)
    }

    fn instantiate_with(&self, flags: u64) -> Result<GraphExec, CudaError> {
        let mut raw = RawGraphExec::NULL;
        // SAFETY: the graph is alive; writes one handle.
        let code = unsafe { ffi::cudaGraphInstantiate(&mut raw, self.raw, flags) };
        check("cudaGraphInstantiate", code)?;
        Ok(GraphExec { raw })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.raw != RawGraph::NULL {
            // SAFETY: captured by us, destroyed once.
            unsafe { ffi::cudaGraphDestroy(self.raw) };
        }
    }
}

/// A launchable graph. One launch at a time: a second starts when the first has finished.
#[derive(Debug)]
pub struct GraphExec {
    raw: RawGraphExec,
}

impl GraphExec {
    /// Puts a launch into the stream.
    ///
    /// # Errors
    /// Those of the CUDA call.
    ///
    /// # Safety
    /// Every buffer whose address was captured must live until the launch has finished.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        let raw = stream.for_launch()?;
        // SAFETY: both handles are alive; the caller vouches for the addresses inside.
        check("cudaGraphLaunch", unsafe {
            ffi::cudaGraphLaunch(self.raw, raw)
        })
    }

    /// The handle that a kernel passes to launch the graph.
    #[must_use]
    pub fn device_handle(&self) -> u64 {
        self.raw.0 as u64
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: instantiated by us, destroyed once; the runtime defers it past a running launch.
        unsafe { ffi::cudaGraphExecDestroy(self.raw) };
    }
}
