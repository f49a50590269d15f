//! `resident` and `gate`: a scheduler that lives on the device, and what holds back the steps that it launches ahead.
//!
//! The scheduler is one block that runs for as long as the engine; `cuda/scheduler/resident.cuh` says what it does. Its serial
//! part is Rust compiled to PTX (crate izar-resident), whose memory the caller lays out; this module passes addresses
//! and sizes on. Captured into a graph of its own with [`crate::Graph::instantiate_for_device`], it can launch itself again,
//! which it must after 120 steps.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Device;
use crate::error::{CudaError, check};
use crate::ffi;
use crate::memory::DeviceBuffer;
use crate::pinned::PinnedBuffer;
use crate::sampler::{DeviceRows, LOGPROB_ENTRIES, RowsArgs};
use crate::step_mark::StepMarks;
use crate::stream::Stream;

/// Words of the scheduler's own state.
const CONTROL_WORDS: usize = 114;
/// Where `Control::done` is.
const DONE_WORD: usize = 16;
/// Words of the status.
const STATUS_WORDS: usize = 32;
/// Most graphs that one execution of a kernel can launch.
pub const MAX_LAUNCH_WINDOW: u32 = 120;
/// Step gaps that are kept.
const NUM_GAPS: usize = 1 << 16;

/// Mirrors `IzarResidentArgs`.
#[repr(C)]
pub(crate) struct Args {
    core: *mut c_void,
    control: *mut c_void,
    status: *mut c_void,
    ring: *mut c_void,
    submitted: *mut c_void,
    offsets: ResidentOffsets,
    events: u64,
    live: u64,
    samples: u64,
    plan_header: u64,
    plan_entries: u64,
    block_tables: u64,
    candidates: *mut c_void,
    sample_slots: *mut c_void,
    plans: [*mut c_void; 2],
    marks: [*mut c_void; 2],
    execs: *mut c_void,
    decode_buckets: *mut c_void,
    mixed_buckets: *mut c_void,
    records: *mut c_void,
    gaps: *mut c_void,
    rows: RowsArgs,
    clock_offset_ns: i64,
    num_gaps: u32,
    num_slots: u32,
    num_leases: u32,
    max_num_seqs: u32,
    table_width: u32,
    logprob_entries: u32,
    window: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Args>() == 40 + 72 + 64 + 32 + 40 + 88 + 8 + 32);

/// Where the ring's sections start, in bytes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ResidentOffsets {
    /// Leases.
    pub leases: u64,
    /// Submit words.
    pub submit: u64,
    /// Cancel words.
    pub cancel: u64,
    /// Recycle words.
    pub recycle: u64,
    /// Progress.
    pub progress: u64,
    /// Request records.
    pub requests: u64,
    /// Input arena.
    pub input: u64,
    /// Output arena.
    pub output: u64,
    /// Mask words.
    pub masks: u64,
}

/// The words by which scheduler and steps tell each other how far they are.
#[derive(Debug, Clone)]
pub struct StepGate {
    control: Arc<DeviceBuffer<u64>>,
}

impl StepGate {
    /// The gate of a scheduler that has not begun.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    pub fn new(stream: &Stream) -> Result<Self, CudaError> {
        let control = DeviceBuffer::new(stream.device(), CONTROL_WORDS)?;
        control.fill_bytes(stream, 0)?;
        stream.synchronize()?;
        Ok(Self {
            control: Arc::new(control),
        })
    }

    pub(crate) fn done(&self) -> *mut c_void {
        self.control.address_of(DONE_WORD)
    }
}

/// Launches the wait for a step's turn: what follows in `stream` starts when the step that `plan` describes may run.
///
/// # Errors
/// Those of the launch.
///
/// # Panics
/// If the plan has no header.
pub fn gate(stream: &Stream, plan: &DeviceBuffer<u32>, gate: &StepGate) -> Result<(), CudaError> {
    assert!(plan.len() >= 16, "a plan without a header");
    let raw = stream.for_launch()?;
    // SAFETY: reads two words of the header, reads and writes words of the control; both outlive work on them.
    check("gate", unsafe {
        ffi::izar_gate(plan.address_of(0), gate.control.address_of(0), raw)
    })
}

/// What the scheduler tells the host, and the word by which it is told to stop. In pinned host memory.
#[derive(Debug)]
pub struct ResidentStatus {
    words: PinnedBuffer<u64>,
    gaps: PinnedBuffer<u32>,
}

/// Words of [`ResidentStatus`] after the host's own.
#[derive(Debug, Clone, Copy)]
enum Word {
    Stop = 0,
    Heartbeat = 16,
    HasEnded,
    Error,
    Detail,
    NumSteps,
    NumRelaunches,
    NumRetries,
    MaxPlanning,
    MaxPublishing,
    MaxScan,
}

/// Why the scheduler ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResidentError {
    /// A step's graph could not be launched.
    #[error("a step could not be launched from the device: CUDA error {0}")]
    Launch(u64),
    /// A step did not complete.
    #[error("step {0} did not complete in time")]
    Step(u64),
    /// A step completed without its samples.
    #[error("step {0} left a sample out")]
    Sample(u64),
    /// The scheduler could not launch itself.
    #[error("the scheduler could not launch itself again: CUDA error {0}")]
    Relaunch(u64),
    /// A gate gave up.
    #[error("step {0} waited too long for its turn")]
    Gate(u64),
    /// A number that this version does not know.
    #[error("the scheduler ended with error {0}")]
    Unknown(u64),
}

/// Figures of a scheduler since its start. Times in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ResidentFigures {
    /// Steps published.
    pub num_steps: u64,
    /// Times it launched itself again.
    pub num_relaunches: u64,
    /// Launches that had to be tried again because the instance had not retired.
    pub num_retries: u64,
    /// Longest planning, from looking at the doorbells to the launch.
    pub max_planning_ns: u64,
    /// Longest publishing of a step.
    pub max_publishing_ns: u64,
    /// Longest scan of all slots.
    pub max_scan_ns: u64,
}

impl ResidentStatus {
    /// The status of a scheduler that has not begun.
    ///
    /// # Errors
    /// Those of the allocations.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        Ok(Self {
            words: PinnedBuffer::new(device, STATUS_WORDS)?,
            gaps: PinnedBuffer::new(device, NUM_GAPS)?,
        })
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        // SAFETY: inside the buffer, aligned, alive as long as `self`; host and device access it atomically only.
        unsafe { AtomicU64::from_ptr(self.words.as_ptr().add(word as usize)) }
    }

    fn read(&self, word: Word) -> u64 {
        // Relaxed: figures, each right by itself.
        self.word(word).load(Ordering::Relaxed)
    }

    /// Tells the scheduler to end when nothing is in flight.
    pub fn stop(&self) {
        // Relaxed: carries nothing.
        self.word(Word::Stop).store(1, Ordering::Relaxed);
    }

    /// Whether the scheduler has ended, and why if by itself.
    ///
    /// # Errors
    /// [`ResidentError`].
    pub fn has_ended(&self) -> Result<bool, ResidentError> {
        // SYNC resident-ended: pairs with the release stores in resident.cuh, system scope. Makes the error visible.
        let has_ended = self.word(Word::HasEnded).load(Ordering::Acquire) != 0;
        let detail = self.read(Word::Detail);
        match self.read(Word::Error) {
            0 => Ok(has_ended),
            1 => Err(ResidentError::Launch(detail)),
            2 => Err(ResidentError::Step(detail)),
            3 => Err(ResidentError::Sample(detail)),
            4 => Err(ResidentError::Relaunch(detail)),
            5 => Err(ResidentError::Gate(detail)),
            other => Err(ResidentError::Unknown(other)),
        }
    }

    /// The scheduler's last sign of life, on the engine's clock; 0 before the first.
    #[must_use]
    pub fn heartbeat_ns(&self) -> u64 {
        self.read(Word::Heartbeat)
    }

    /// Figures since the start.
    #[must_use]
    pub fn figures(&self) -> ResidentFigures {
        ResidentFigures {
            num_steps: self.read(Word::NumSteps),
            num_relaunches: self.read(Word::NumRelaunches),
            num_retries: self.read(Word::NumRetries),
            max_planning_ns: self.read(Word::MaxPlanning),
            max_publishing_ns: self.read(Word::MaxPublishing),
            max_scan_ns: self.read(Word::MaxScan),
        }
    }

    /// Nanoseconds from the end of a step to the start of the next one, of the last steps that followed another at once, in no
    /// particular order.
    #[must_use]
    pub fn gaps_ns(&self) -> Vec<u32> {
        let gaps = (0..self.gaps.len()).map(|idx| {
            // SAFETY: inside the buffer; a value that the device writes meanwhile is one of two right ones.
            unsafe { self.gaps.as_ptr().add(idx).read_volatile() }
        });
        gaps.filter(|&gap| gap != 0).collect()
    }
}

/// What a scheduler runs with. Addresses are the devices'.
#[derive(Debug)]
pub struct Resident<'a> {
    /// Made by [`resident_make`].
    pub core: &'a DeviceBuffer<u64>,
    /// Of the steps.
    pub gate: &'a StepGate,
    /// What the host sees.
    pub status: &'a ResidentStatus,
    /// The ring's region.
    pub ring: &'a PinnedBuffer<u64>,
    /// As long as the region up to its output arena.
    pub submitted: &'a DeviceBuffer<u64>,
    /// Where the ring's sections start.
    pub offsets: ResidentOffsets,
    /// Array of the core: events.
    pub events: u64,
    /// Array of the core: what is kept of sequences.
    pub live: u64,
    /// Array of the core: samples.
    pub samples: u64,
    /// The core's plan: totals.
    pub plan_header: u64,
    /// The core's plan: entries.
    pub plan_entries: u64,
    /// The policy's block tables.
    pub block_tables: u64,
    /// `[num_slots]`.
    pub candidates: &'a DeviceBuffer<u32>,
    /// `[2, max_num_seqs]`.
    pub sample_slots: &'a DeviceBuffer<u32>,
    /// Each has room for any plan.
    pub plans: [&'a DeviceBuffer<u32>; 2],
    /// Of the steps' halves.
    pub marks: [&'a StepMarks; 2],
    /// `[buckets, 2]`: [`crate::GraphExec::device_handle`] of the steps.
    pub execs: &'a DeviceBuffer<u64>,
    /// `[max_num_seqs]`: the bucket of a step of decodes, by its tokens - 1.
    pub decode_buckets: &'a DeviceBuffer<u16>,
    /// `[max_num_batched_tokens]`: the bucket of any other step.
    pub mixed_buckets: &'a DeviceBuffer<u16>,
    /// Rows of the sampler.
    pub rows: &'a DeviceRows,
    /// What to add to the device's clock to get the engine's.
    pub clock_offset_ns: i64,
    /// Slots of the ring.
    pub num_slots: u32,
    /// Leases of the ring.
    pub num_leases: u32,
    /// Row stride of `block_tables`.
    pub table_width: u32,
    /// Steps it launches before it launches itself again, from 2 to [`MAX_LAUNCH_WINDOW`].
    pub launch_window: u32,
}

/// Launches the making of the scheduler's state at `core`, as `addresses` (an `Addresses` of izar-resident) says; `made` becomes
/// 1, or 0 if the sizes are impossible.
///
/// # Errors
/// Those of the launch.
///
/// # Safety
/// `core` has room for the state; every address is that of memory of the size that the sizes ask for, which lives as long as
/// the state is used.
pub unsafe fn resident_make(
    stream: &Stream,
    core: &DeviceBuffer<u64>,
    addresses: &PinnedBuffer<u64>,
    made: &DeviceBuffer<u32>,
) -> Result<(), CudaError> {
    let raw = stream.for_launch()?;
    // SAFETY: promised by the caller.
    check("resident_make", unsafe {
        ffi::izar_resident_make(
            core.address_of(0),
            addresses.address_of(0),
            made.address_of(0),
            raw,
        )
    })
}

/// Launches the scheduler: it runs until it is told to stop. To be captured and instantiated for the device.
///
/// # Errors
/// Those of the launch.
///
/// # Panics
/// If an array is shorter than the sizes say.
///
/// # Safety
/// Every address is what its field says, and lives until the scheduler has ended. The step graphs were captured with the same
/// gate, plans, marks and rows.
pub unsafe fn resident(stream: &Stream, r: &Resident<'_>) -> Result<(), CudaError> {
    let max_num_seqs = r.rows.sizes().max_num_seqs;
    assert!(
        r.candidates.len() >= r.num_slots as usize
            && r.sample_slots.len() >= 2 * max_num_seqs as usize
            && r.decode_buckets.len() >= max_num_seqs as usize,
        "arrays of {}, {} and {} for {} slots and {max_num_seqs} rows",
        r.candidates.len(),
        r.sample_slots.len(),
        r.decode_buckets.len(),
        r.num_slots
    );
    let args = Args {
        core: r.core.address_of(0),
        control: r.gate.control.address_of(0),
        status: r.status.words.address_of(0),
        ring: r.ring.address_of(0),
        submitted: r.submitted.address_of(0),
        offsets: r.offsets,
        events: r.events,
        live: r.live,
        samples: r.samples,
        plan_header: r.plan_header,
        plan_entries: r.plan_entries,
        block_tables: r.block_tables,
        candidates: r.candidates.address_of(0),
        sample_slots: r.sample_slots.address_of(0),
        plans: r.plans.map(|plan| plan.address_of(0)),
        marks: r.marks.map(StepMarks::address),
        execs: r.execs.address_of(0),
        decode_buckets: r.decode_buckets.address_of(0),
        mixed_buckets: r.mixed_buckets.address_of(0),
        records: r.rows.records(),
        gaps: r.status.gaps.address_of(0),
        rows: r.rows.args(),
        clock_offset_ns: r.clock_offset_ns,
        num_gaps: NUM_GAPS as u32,
        num_slots: r.num_slots,
        num_leases: r.num_leases,
        max_num_seqs,
        table_width: r.table_width,
        logprob_entries: LOGPROB_ENTRIES as u32,
        window: r.launch_window.clamp(2, MAX_LAUNCH_WINDOW),
        reserved: 0,
    };
    let raw = stream.for_launch()?;
    // SAFETY: promised by the caller; the arguments are copied by the launch.
    check("resident", unsafe { ffi::izar_resident(&args, raw) })
}
