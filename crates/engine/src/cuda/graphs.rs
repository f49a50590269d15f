//! Captured steps: a graph for every bucket, instantiated once for each half of the double buffer.
//!
//! Two instances of each, because an instance cannot be launched again before its last launch has retired, and because
//! each knows the addresses of its own half. All are uploaded at start and can be launched from the device.

use izar_kernels::{CudaError, Graph, GraphExec, Stream};

use super::error::StepError;
use super::grid::{Bucket, Grid};

/// See the module documentation.
pub(super) struct StepGraphs {
    grid: Option<Grid>,
    /// By bucket, then by half.
    execs: Vec<[GraphExec; 2]>,
}

impl StepGraphs {
    /// No graphs: nothing can be launched.
    pub(super) fn none() -> Self {
        Self {
            grid: None,
            execs: Vec::new(),
        }
    }

    /// Captures every bucket of `grid`: `record(stream, bucket, half)` puts a step into the stream.
    pub(super) fn capture(
        stream: &Stream,
        grid: Grid,
        mut record: impl FnMut(&Stream, Bucket, usize) -> Result<(), StepError>,
    ) -> Result<Self, StepError> {
        let mut execs = Vec::with_capacity(grid.buckets().len());
        for &bucket in grid.buckets() {
            let mut exec = |half| -> Result<GraphExec, StepError> {
                let graph = Graph::capture(stream, |stream| record(stream, bucket, half))?;
                Ok(graph.instantiate_for_device(stream)?)
            };
            execs.push([exec(0)?, exec(1)?]);
        }
        stream.synchronize()?;
        Ok(Self {
            grid: Some(grid),
            execs,
        })
    }

    /// Launches the tightest bucket's step.
    pub(super) fn launch(
        &self,
        num_tokens: u32,
        decodes_only: bool,
        half: usize,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let grid = self.grid.as_ref().expect("steps are captured at start");
        let exec = &self.execs[grid.find(num_tokens, decodes_only)][half];
        // SAFETY: the executor owns graphs and buffers together and waits for the device before it drops them.
        unsafe { exec.launch(stream) }
    }

    /// What is captured, and the handles by which a kernel launches it: by bucket, then by half.
    pub(super) fn for_device(&self) -> (&Grid, Vec<u64>) {
        let grid = self.grid.as_ref().expect("steps are captured at start");
        let handles = self.execs.iter().flatten().map(GraphExec::device_handle);
        (grid, handles.collect())
    }

    /// Captured shapes.
    pub(super) fn num_buckets(&self) -> usize {
        self.execs.len()
    }
}
