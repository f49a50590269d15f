//! `step_mark`: when a step got where, and that it is complete, told to a host that polls.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Device;
use crate::error::{CudaError, check};
use crate::expand_plan::StepMeta;
use crate::ffi;
use crate::memory::DeviceBuffer;
use crate::pinned::PinnedBuffer;
use crate::resident::StepGate;
use crate::stream::Stream;

/// Words of the marks: three clocks, the step, and padding to a cache line.
const WORDS: usize = 8;
/// Which word has the step.
const STEP_WORD: usize = 3;

/// Mirrors `IzarStepMarkArgs`.
#[repr(C)]
pub(crate) struct Args {
    marks: *mut c_void,
    meta: *const c_void,
    index: u32,
    unused: u32,
    done: *mut c_void,
}

const _: () = assert!(size_of::<Args>() == 32);

/// A place on a step's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The first kernel runs.
    Started,
    /// The logits are there.
    Sampling,
    /// All is done.
    Finished,
}

/// What the device wrote about the last step that used them: one line of pinned host memory.
#[derive(Debug)]
pub struct StepMarks {
    words: PinnedBuffer<u64>,
    gate: Option<StepGate>,
}

impl StepMarks {
    /// Marks of no step: step 0.
    ///
    /// # Errors
    /// Those of the allocation.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        Ok(Self {
            words: PinnedBuffer::new(device, WORDS)?,
            gate: None,
        })
    }

    /// Marks of steps that also tell the gate of the step after them that they are complete.
    ///
    /// # Errors
    /// Those of the allocation.
    pub fn with_gate(device: &Device, gate: &StepGate) -> Result<Self, CudaError> {
        Ok(Self {
            gate: Some(gate.clone()),
            ..Self::new(device)?
        })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "word {index} of the marks");
        // SAFETY: inside the buffer, aligned, alive as long as `self`; host and device access it atomically only.
        unsafe { AtomicU64::from_ptr(self.words.as_ptr().add(index)) }
    }

    /// The step that was completed last. What its kernels wrote to host memory can be read.
    #[must_use]
    pub fn completed_step(&self) -> u64 {
        // SYNC step-complete: pairs with the release store in `step_mark.cu`, system scope.
        self.word(STEP_WORD).load(Ordering::Acquire)
    }

    /// The device's clock at a mark of the step that was completed last, in nanoseconds.
    #[must_use]
    pub fn clock_ns(&self, mark: Mark) -> u64 {
        // Relaxed: written before the step's number, which the caller has seen.
        self.word(mark as usize).load(Ordering::Relaxed)
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.words.address_of(0)
    }
}

/// Notes the device's clock once everything before in `stream` is done; with `completes`, also that the step named there is
/// complete.
///
/// # Errors
/// Those of the launch.
///
/// # Panics
/// If `completes` is empty.
pub fn step_mark(
    stream: &Stream,
    marks: &StepMarks,
    mark: Mark,
    completes: Option<&DeviceBuffer<StepMeta>>,
) -> Result<(), CudaError> {
    let meta = completes.map_or(std::ptr::null_mut(), |meta| {
        assert!(!meta.is_empty(), "the counts of a step");
        meta.address_of(0)
    });
    let args = Args {
        marks: marks.address(),
        meta,
        index: mark as u32,
        unused: 0,
        done: marks
            .gate
            .as_ref()
            .map_or(std::ptr::null_mut(), StepGate::done),
    };
    let raw = stream.for_launch()?;
    // SAFETY: the kernel writes inside the marks and reads one StepMeta; both outlive work on them.
    check("step_mark", unsafe { ffi::izar_step_mark(&args, raw) })
}
