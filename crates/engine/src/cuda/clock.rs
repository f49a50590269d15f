//! The device's clock on the engine's time line.

use izar_kernels::{CudaError, Mark, StepMarks, Stream, step_mark};

use crate::driver::now_ns;

/// Readings to take the best of: the one whose answer took the least time.
const READINGS: usize = 8;

/// What to add to the device's clock to get the engine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceClock {
    offset_ns: i64,
}

impl DeviceClock {
    /// Compares the clocks. The stream must be idle.
    pub(super) fn calibrate(stream: &Stream) -> Result<Self, CudaError> {
        let marks = StepMarks::new(stream.device())?;
        let mut offset_ns = i64::MAX;
        for _ in 0..READINGS {
            step_mark(stream, &marks, Mark::Started, None)?;
            stream.synchronize()?;
            // Host time is read after the device's, so the smallest difference is the nearest to the truth.
            let difference = now_ns() as i64 - marks.clock_ns(Mark::Started) as i64;
            offset_ns = offset_ns.min(difference);
        }
        Ok(Self { offset_ns })
    }

    /// What to add to the device's clock to get the engine's.
    pub(super) fn offset_ns(&self) -> i64 {
        self.offset_ns
    }

    /// The engine's time at a mark.
    pub(super) fn at(&self, marks: &StepMarks, mark: Mark) -> u64 {
        (marks.clock_ns(mark) as i64 + self.offset_ns) as u64
    }
}
