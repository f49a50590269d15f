//! The placement without a host: a scheduler kernel claims, plans, launches and publishes; a thread here only watches it.
//!
//! Everything is laid out once: the ring in pinned host memory (front ends of this host write it, the device reads and writes
//! it across PCIe), the scheduler's and the policy's state in device memory, the step graphs' handles. Then the kernel is
//! launched, once; after that it launches itself. While it runs, the host may stand still.
//!
//! Who owns what: [`ResidentScheduler`] owns all of it until the kernel has ended, and its thread is the only one that
//! touches it. The device writes everything but the stop word and what front ends write.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use izar_kernels::{
    CudaError, Device, DeviceBuffer, Graph, GraphExec, Mark, PinnedBuffer, Resident, ResidentError,
    ResidentOffsets, ResidentStatus, StepGate, StepMarks, Stream, resident, resident_make,
    step_mark,
};
use izar_policy::Config;
use izar_resident::{Addresses, CORE_BYTES};
use izar_ring::{
    EngineError, EngineInfo, EngineRing, EngineState, HEADER_STEPS, RingGeometry, RingLayout,
    RingMemory, RingOptions, StepStats, slot_table,
};
use izar_transport::{InProcess, InProcessError};
use thiserror::Error;

use super::executor::CudaExecutor;
use super::sampler::DeviceSampler;
use crate::driver::{Control, ExecutorFailed, Placement, StepTimes, now_ns};

/// How often the watching thread looks.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);
/// How often it looks once the scheduler was told to end.
const END_INTERVAL: Duration = Duration::from_millis(1);
/// A scheduler that shows no sign of life for so long has failed: it shows one every step and every 50 ms without work.
const SILENCE_LIMIT_NS: u64 = 120_000_000_000;
/// Bytes of a word.
const WORD_BYTES: usize = 8;

/// Why the resident scheduler did not start.
#[derive(Debug, Error)]
pub enum ResidentStartError {
    /// The ring.
    #[error(transparent)]
    Ring(#[from] InProcessError),
    /// The sizes do not go together.
    #[error("the scheduler on the device refused its sizes")]
    Sizes,
    /// A CUDA call.
    #[error("cannot set up the scheduler on the device: {0}")]
    Cuda(#[from] CudaError),
}

/// What a resident scheduler is started with, besides its executor.
pub(crate) struct ResidentOptions {
    pub(crate) policy: Config,
    pub(crate) vocab_size: u32,
    pub(crate) model_name: String,
    pub(crate) hardware: String,
    pub(crate) seed: u64,
    pub(crate) mask_timeout: Duration,
    /// Steps between two launches of the scheduler.
    pub(crate) launch_window: u32,
}

/// See the module documentation.
pub(crate) struct ResidentScheduler {
    /// Dropped when the device has ended: see `drop`.
    _exec: GraphExec,
    executor: CudaExecutor,
    status: Arc<ResidentStatus>,
    memory: RingMemory,
    num_slots: u32,
    _state: State,
    _ring: Arc<PinnedBuffer<u64>>,
    _gate: StepGate,
}

/// Device memory of the scheduler.
struct State {
    core: DeviceBuffer<u64>,
    arrays: Vec<DeviceBuffer<u64>>,
    submitted: DeviceBuffer<u64>,
    candidates: DeviceBuffer<u32>,
    sample_slots: DeviceBuffer<u32>,
    execs: DeviceBuffer<u64>,
    decode_buckets: DeviceBuffer<u16>,
    mixed_buckets: DeviceBuffer<u16>,
}

/// Whether graphs can be launched from the device here.
///
/// # Errors
/// What the driver says to a graph that is to be launched so.
pub(crate) fn probe() -> Result<(), CudaError> {
    let device = Device::open(0)?;
    let stream = Stream::new(&device)?;
    let marks = StepMarks::new(&device)?;
    let graph = Graph::capture(&stream, |stream| {
        step_mark(stream, &marks, Mark::Started, None)
    })?;
    graph.instantiate_for_device(&stream)?;
    stream.synchronize()
}

impl ResidentScheduler {
    /// Lays everything out and launches the scheduler. The second value is the ring for a front end of this process.
    pub(crate) fn start(
        executor: CudaExecutor,
        gate: StepGate,
        options: &ResidentOptions,
    ) -> Result<(Self, Arc<InProcess>), ResidentStartError> {
        let stream = &executor.stream;
        let device = *stream.device();
        let ring_options = RingOptions {
            geometry: RingGeometry {
                num_slots: options.policy.num_slots,
                ..RingGeometry::default()
            },
            epoch: now_ns(),
            ..RingOptions::default()
        };
        let layout = RingLayout::new(ring_options.geometry)
            .map_err(|error| InProcessError::Ring(izar_ring::AttachError::Geometry(error)))?;
        let words = layout.total_bytes() as usize / WORD_BYTES;
        let ring = Arc::new(PinnedBuffer::<u64>::new(&device, words)?);
        let (transport, memory) = create_ring(&ring, &ring_options, options)?;
        let mut addresses = addresses(&executor, &ring, &ring_options, &layout, options);
        let state = State::allocate(&executor, &layout, &mut addresses)?;
        make_core(stream, &state, &addresses)?;
        let status = Arc::new(ResidentStatus::new(&device)?);
        let parts = Parts {
            executor: &executor,
            gate: &gate,
            status: &status,
            ring: &ring,
            state: &state,
        };
        let exec = parts.capture(&layout, &addresses, options.launch_window)?;
        stream.synchronize()?;
        // SAFETY: everything that was captured is owned by the value made here, which waits for the device before it drops it.
        unsafe { exec.launch(stream)? };
        let scheduler = Self {
            _exec: exec,
            executor,
            status,
            memory,
            num_slots: options.policy.num_slots,
            _state: state,
            _ring: ring,
            _gate: gate,
        };
        Ok((scheduler, transport))
    }

    /// What the device tells.
    pub(crate) fn status(&self) -> Arc<ResidentStatus> {
        Arc::clone(&self.status)
    }

    /// Watches the scheduler until it has ended or is told to stop.
    ///
    /// # Errors
    /// [`ExecutorFailed`] if the scheduler or its device failed; the ring says so then.
    pub(crate) fn watch(mut self, control: &Control) -> Result<(), ExecutorFailed> {
        let result = self.watch_until_end(control);
        control.set_times(&self.times());
        if let Err(error) = &result {
            tracing::error!(%error, "the engine failed");
            self.fail();
        }
        result
    }

    fn watch_until_end(&mut self, control: &Control) -> Result<(), ExecutorFailed> {
        let mut is_told = false;
        loop {
            if control.is_stopping() && !is_told {
                self.status.stop();
                is_told = true;
            }
            let has_ended = self.status.has_ended().map_err(failed)?;
            let is_idle = self
                .executor
                .stream
                .is_idle()
                .map_err(|error| ExecutorFailed(format!("the device failed: {error}")))?;
            if has_ended {
                return Ok(());
            }
            // Between two executions of the kernel the stream stays busy: they are one launch's.
            if is_idle && !self.status.has_ended().map_err(failed)? {
                return Err(ExecutorFailed("the scheduler ended without a word".into()));
            }
            let silence_ns = now_ns().saturating_sub(self.status.heartbeat_ns());
            if self.status.heartbeat_ns() != 0 && silence_ns > SILENCE_LIMIT_NS {
                return Err(ExecutorFailed("the scheduler fell silent".into()));
            }
            control.set_times(&self.times());
            std::thread::sleep(if is_told {
                END_INTERVAL
            } else {
                WATCH_INTERVAL
            });
        }
    }

    /// Sums over the steps, as the scheduler shows them to front ends.
    fn times(&self) -> StepTimes {
        let mut bytes = [0; size_of::<StepStats>()];
        if self.memory.read(HEADER_STEPS, &mut bytes).is_err() {
            return StepTimes::default();
        }
        let steps = StepStats::decode(&bytes);
        StepTimes {
            num_steps: steps.forward_ns.counts.iter().sum(),
            planning_ns: steps.planning_ns.sum,
            forward_ns: steps.forward_ns.sum,
            sampling_ns: steps.sampling_ns.sum,
            publishing_ns: steps.publishing_ns.sum,
            gap_ns: steps.gap_ns.sum,
            // Parts of the planning that only a scheduler on the host tells apart.
            ..StepTimes::default()
        }
    }

    /// Ends what runs in the place of a scheduler that no longer does.
    fn fail(&mut self) {
        let slots = slot_table(self.num_slots);
        match EngineRing::adopt(self.memory.clone(), now_ns(), slots) {
            Ok(mut ring) => {
                ring.set_engine_state(EngineState::Failed, Some(EngineError::EngineFailed));
            }
            Err(error) => tracing::error!(%error, "the ring cannot be closed"),
        }
    }
}

impl Drop for ResidentScheduler {
    fn drop(&mut self) {
        // Graphs hold addresses of what is about to be freed. An error was reported by `watch`, or ends here.
        self.status.stop();
        let _ = self.executor.stream.synchronize();
    }
}

fn failed(error: ResidentError) -> ExecutorFailed {
    ExecutorFailed(error.to_string())
}

/// Creates and describes the ring. Nobody on the host uses the engine's side of it after this.
fn create_ring(
    ring: &Arc<PinnedBuffer<u64>>,
    ring_options: &RingOptions,
    options: &ResidentOptions,
) -> Result<(Arc<InProcess>, RingMemory), ResidentStartError> {
    let base = NonNull::new(ring.as_ptr().cast::<u8>()).expect("memory that was allocated");
    let len = ring.len() * WORD_BYTES;
    let owner = Box::new(Arc::clone(ring));
    // SAFETY: page-aligned, zeroed memory of its owner's, which both sides reach through the ring's protocol alone.
    let (transport, mut engine_end) =
        unsafe { InProcess::create_in(base, len, owner, ring_options)? };
    let policy = &options.policy;
    engine_end.describe(&EngineInfo {
        max_model_len: policy.max_total_len(),
        vocab_size: options.vocab_size,
        block_size: policy.block_size,
        num_kv_blocks: policy.num_blocks,
        max_num_seqs: policy.max_num_seqs,
        max_num_batched_tokens: policy.max_num_batched_tokens,
        model_name: &options.model_name,
        placement: &Placement::Gpu.to_string(),
        hardware: &options.hardware,
    });
    let memory = engine_end.memory().clone();
    Ok((transport, memory))
}

/// Sizes, and the addresses that are known already.
fn addresses(
    executor: &CudaExecutor,
    ring: &PinnedBuffer<u64>,
    ring_options: &RingOptions,
    layout: &RingLayout,
    options: &ResidentOptions,
) -> Addresses {
    Addresses {
        config: options.policy,
        seed: options.seed,
        ring: ring.address_of(0) as u64,
        ring_bytes: layout.total_bytes(),
        submitted: 0,
        input_arena_bytes: ring_options.geometry.input_arena_bytes,
        output_arena_bytes: ring_options.geometry.output_arena_bytes,
        lease_timeout_ns: ring_options.lease_timeout_ns,
        mask_timeout_ns: options.mask_timeout.as_nanos() as u64,
        num_leases: ring_options.geometry.num_leases,
        vocab_size: options.vocab_size,
        list_capacity: DeviceSampler::list_capacity(),
        reserved: 0,
        slots: 0,
        live: 0,
        events: 0,
        samples: 0,
        logprobs: executor.model.sampler.rows().logprobs_address(),
        results: 0,
        plan_header: 0,
        plan_entries: 0,
        plan_preempted: 0,
        globals: 0,
        sequences: 0,
        waiting: 0,
        running: 0,
        rows: 0,
        block_tables: 0,
        blocks: 0,
        buckets: 0,
        hashes: 0,
        hash_page_tables: 0,
        free_hash_pages: 0,
    }
}

impl State {
    /// Allocates everything and completes the addresses.
    fn allocate(
        executor: &CudaExecutor,
        layout: &RingLayout,
        addresses: &mut Addresses,
    ) -> Result<Self, CudaError> {
        let stream = &executor.stream;
        let device = stream.device();
        let config = addresses.config;
        let words = |bytes: usize| DeviceBuffer::<u64>::new(device, bytes.div_ceil(WORD_BYTES));
        let mut arrays = Vec::new();
        let sizes = Addresses::array_bytes(&config);
        for (bytes, address) in sizes.into_iter().zip(addresses.arrays()) {
            let array = words(bytes)?;
            array.fill_bytes(stream, 0)?;
            *address = array.address_of(0) as u64;
            arrays.push(array);
        }
        let submitted = words(layout.output_arena().start as usize)?;
        submitted.fill_bytes(stream, 0)?;
        addresses.submitted = submitted.address_of(0) as u64;
        let (grid, handles) = executor.graphs.for_device();
        let (decode, mixed) = grid.tables();
        let max_num_seqs = config.max_num_seqs as usize;
        Ok(Self {
            core: words(CORE_BYTES)?,
            arrays,
            submitted,
            candidates: DeviceBuffer::new(device, config.num_slots as usize)?,
            sample_slots: DeviceBuffer::new(device, 2 * max_num_seqs)?,
            execs: DeviceBuffer::from_slice(stream, &handles)?,
            decode_buckets: DeviceBuffer::from_slice(stream, decode)?,
            mixed_buckets: DeviceBuffer::from_slice(stream, mixed)?,
        })
    }

    /// Bytes of device memory.
    fn bytes(&self) -> usize {
        let arrays = self.arrays.iter().map(DeviceBuffer::len).sum::<usize>();
        WORD_BYTES * (arrays + self.core.len() + self.submitted.len())
    }
}

/// Makes the serial part's state, on the device.
fn make_core(
    stream: &Stream,
    state: &State,
    addresses: &Addresses,
) -> Result<(), ResidentStartError> {
    let device = stream.device();
    let passed = PinnedBuffer::<u64>::new(device, size_of::<Addresses>().div_ceil(WORD_BYTES))?;
    // SAFETY: as large as the value and aligned for it; nobody else knows it yet.
    unsafe {
        passed
            .as_ptr()
            .cast::<MaybeUninit<Addresses>>()
            .write(MaybeUninit::new(*addresses))
    };
    let made = DeviceBuffer::<u32>::from_slice(stream, &[0])?;
    // SAFETY: every address is that of an array just allocated for these sizes, the ring's or the sampler's.
    unsafe { resident_make(stream, &state.core, &passed, &made)? };
    let mut answer = [0];
    made.read(stream, &mut answer)?;
    tracing::debug!(
        "{} MiB for the scheduler on the device",
        state.bytes() >> 20
    );
    match answer {
        [1] => Ok(()),
        _ => Err(ResidentStartError::Sizes),
    }
}

/// What the scheduler's kernel is captured with.
struct Parts<'a> {
    executor: &'a CudaExecutor,
    gate: &'a StepGate,
    status: &'a ResidentStatus,
    ring: &'a PinnedBuffer<u64>,
    state: &'a State,
}

impl Parts<'_> {
    /// Captures the scheduler's kernel into a graph that can launch itself.
    fn capture(
        &self,
        layout: &RingLayout,
        addresses: &Addresses,
        launch_window: u32,
    ) -> Result<GraphExec, CudaError> {
        let &Self {
            executor,
            gate,
            status,
            ring,
            state,
        } = self;
        let [first, second] = &executor.halves;
        let args = Resident {
            core: &state.core,
            gate,
            status,
            ring,
            submitted: &state.submitted,
            offsets: offsets(layout),
            events: addresses.events,
            live: addresses.live,
            samples: addresses.samples,
            plan_header: addresses.plan_header,
            plan_entries: addresses.plan_entries,
            block_tables: addresses.block_tables,
            candidates: &state.candidates,
            sample_slots: &state.sample_slots,
            plans: [&first.plan, &second.plan],
            marks: [&first.marks, &second.marks],
            execs: &state.execs,
            decode_buckets: &state.decode_buckets,
            mixed_buckets: &state.mixed_buckets,
            rows: executor.model.sampler.rows(),
            clock_offset_ns: executor.clock.offset_ns(),
            num_slots: addresses.config.num_slots,
            num_leases: addresses.num_leases,
            table_width: addresses.config.max_blocks_per_seq(),
            launch_window,
        };
        // SAFETY: the caller keeps everything until the scheduler has ended; the step graphs were captured with the same parts.
        let graph = Graph::capture(&executor.stream, |stream| unsafe {
            resident(stream, &args)
        })?;
        graph.instantiate_for_device(&executor.stream)
    }
}

fn offsets(layout: &RingLayout) -> ResidentOffsets {
    let slot = izar_ring::SlotIdx(0);
    ResidentOffsets {
        leases: layout.lease_offset(izar_ring::LeaseIdx(0)),
        submit: layout.submit_offset(slot),
        cancel: layout.cancel_offset(slot),
        recycle: layout.recycle_offset(slot),
        progress: layout.progress_offset(slot),
        requests: layout.request_offset(slot),
        input: layout.input_arena().start,
        output: layout.output_arena().start,
        masks: layout.mask_offset(slot),
    }
}
