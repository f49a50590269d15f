//! One kernel many times in a captured graph.

use half::bf16;

use super::BenchError;
use crate::error::CudaError;
use crate::fill_random::fill_random;
use crate::graph::Graph;
use crate::memory::DeviceBuffer;
use crate::stream::{Event, Stream};

/// Timed replays; their median counts.
const REPLAYS: usize = 11;
/// Bytes that no cache holds.
const UNCACHED_BYTES: usize = 512 << 20;

/// Times chains of launches in its stream.
pub(super) struct Chain<'a> {
    pub(super) stream: &'a Stream,
    start: Event,
    end: Event,
}

impl<'a> Chain<'a> {
    pub(super) fn new(stream: &'a Stream) -> Result<Self, CudaError> {
        Ok(Self {
            stream,
            start: Event::new(stream.device())?,
            end: Event::new(stream.device())?,
        })
    }

    /// Microseconds of one of `launches` launches. `launch` is told which, to use other memory each time; what it uses
    /// outlives this call.
    pub(super) fn time(
        &self,
        launches: usize,
        launch: impl Fn(&Stream, usize) -> Result<(), BenchError>,
    ) -> Result<f64, BenchError> {
        // Once outside a graph: code is loaded at first use.
        launch(self.stream, 0)?;
        self.stream.synchronize()?;
        let graph = Graph::capture(self.stream, |stream| {
            (0..launches).try_for_each(|i| launch(stream, i))
        })?;
        let exec = graph.instantiate()?;
        let mut times = Vec::with_capacity(REPLAYS);
        for replay in 0..REPLAYS + 2 {
            self.start.record(self.stream)?;
            // SAFETY: what was captured outlives this call, which waits for the launch.
            unsafe { exec.launch(self.stream) }?;
            self.end.record(self.stream)?;
            self.end.synchronize()?;
            if replay >= 2 {
                times.push(f64::from(self.end.ms_since(&self.start)?));
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[REPLAYS / 2] * 1e3 / launches as f64)
    }

    /// `len` random elements, uniform in ±`scale / 2`.
    pub(super) fn random(&self, len: usize, scale: f32) -> Result<DeviceBuffer<bf16>, CudaError> {
        let buffer = DeviceBuffer::new(self.stream.device(), len)?;
        fill_random(self.stream, &buffer, len as u32, scale)?;
        Ok(buffer)
    }

    /// Copies of `len` random elements that together do not fit a cache.
    pub(super) fn uncached(
        &self,
        len: usize,
        scale: f32,
    ) -> Result<Vec<DeviceBuffer<bf16>>, CudaError> {
        let copies = (UNCACHED_BYTES / (2 * len)).clamp(2, 32);
        (0..copies).map(|_| self.random(len, scale)).collect()
    }
}
