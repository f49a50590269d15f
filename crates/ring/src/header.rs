//! The header: how a front end recognises a ring, and what the engine says about itself.

use core::fmt;

use crate::codec::record_codec;
use crate::error::EngineError;
use crate::layout::{GeometryError, HEADER_BYTES, RingGeometry, RingLayout};
use crate::steps::StepStats;
use crate::words::ERROR_SHIFT;

/// First eight bytes of a ring: `IZARRING` in memory order.
pub const RING_MAGIC: u64 = 0x474e_4952_5241_5a49;
/// Version of this byte map and these rules.
pub const RING_VERSION: u32 = 3;
/// Longest model name the header holds, in bytes.
pub const MODEL_NAME_BYTES: usize = 256;
/// Longest name of a placement the header holds, in bytes.
pub const PLACEMENT_BYTES: usize = 32;
/// Longest description of hardware the header holds, in bytes.
pub const HARDWARE_BYTES: usize = 128;

/// Byte offset of the engine-state word.
pub const HEADER_STATE: u64 = 1024;
/// Byte offset of the engine-heartbeat word.
pub const HEADER_HEARTBEAT: u64 = 1152;
/// Byte offset of the engine's gauges and counters.
pub const HEADER_STATS: u64 = 1280;
/// Byte offset of the histograms over the engine's steps.
pub const HEADER_STEPS: u64 = 1408;

/// The header as it lies in the ring. All of it is written by the engine.
///
/// Everything before `state` is constant once the magic is there, except the description (from
/// `max_model_len` to `hardware`), which is constant once the engine is ready.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// [`RING_MAGIC`], stored last at creation (SYNC ring-created).
    pub magic: u64,
    /// [`RING_VERSION`].
    pub version: u32,
    /// Size of the header.
    pub header_bytes: u32,
    /// Size of the region.
    pub total_bytes: u64,
    /// Differs each time a ring is created or taken over by a new engine.
    pub epoch: u64,
    /// Number of slots.
    pub num_slots: u32,
    /// Number of leases.
    pub num_leases: u32,
    /// A lease whose heartbeat stands still this long is revoked, ns.
    pub lease_timeout_ns: u64,
    /// Start of the leases.
    pub leases_offset: u64,
    /// Start of the submit words.
    pub submit_offset: u64,
    /// Start of the cancel words.
    pub cancel_offset: u64,
    /// Start of the recycle words.
    pub recycle_offset: u64,
    /// Start of the mask words.
    pub masks_offset: u64,
    /// Start of the progress array.
    pub progress_offset: u64,
    /// Start of the request records.
    pub requests_offset: u64,
    /// Start of the result records.
    pub results_offset: u64,
    /// Start of the step log.
    pub step_log_offset: u64,
    /// Start of the input arena.
    pub input_offset: u64,
    /// Size of the input arena.
    pub input_bytes: u64,
    /// Start of the output arena.
    pub output_offset: u64,
    /// Size of the output arena.
    pub output_bytes: u64,
    /// Most tokens of prompt and output together.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// KV blocks in the pool.
    pub num_kv_blocks: u32,
    /// Most sequences running at once.
    pub max_num_seqs: u32,
    /// Most tokens of one step.
    pub max_num_batched_tokens: u32,
    /// Bytes of `model_name` in use.
    pub model_name_bytes: u32,
    /// Bytes of `placement` in use.
    pub placement_bytes: u32,
    /// Bytes of `hardware` in use.
    pub hardware_bytes: u32,
    /// Zero.
    pub reserved0: u32,
    /// Name of the model, UTF-8.
    pub model_name: [u8; MODEL_NAME_BYTES],
    /// Where steps are planned, UTF-8.
    pub placement: [u8; PLACEMENT_BYTES],
    /// What computes, UTF-8.
    pub hardware: [u8; HARDWARE_BYTES],
    /// Zero.
    pub reserved1: [u8; 416],
    /// [`EngineStateWord`].
    pub state: u64,
    /// Zero.
    pub reserved2: [u8; 120],
    /// Engine clock, ns, stored at least several times a second while the engine lives.
    pub heartbeat_ns: u64,
    /// Zero.
    pub reserved3: [u8; 120],
    /// Gauges and counters.
    pub stats: EngineStats,
    /// Histograms over the engine's steps.
    pub steps: StepStats,
    /// Zero.
    pub reserved4: [u8; 1872],
}

record_codec!(Header, HEADER_BYTES as usize, {
    magic,
    version,
    header_bytes,
    total_bytes,
    epoch,
    num_slots,
    num_leases,
    lease_timeout_ns,
    leases_offset,
    submit_offset,
    cancel_offset,
    recycle_offset,
    masks_offset,
    progress_offset,
    requests_offset,
    results_offset,
    step_log_offset,
    input_offset,
    input_bytes,
    output_offset,
    output_bytes,
    max_model_len,
    vocab_size,
    block_size,
    num_kv_blocks,
    max_num_seqs,
    max_num_batched_tokens,
    model_name_bytes,
    placement_bytes,
    hardware_bytes,
    reserved0,
    model_name,
    placement,
    hardware,
    reserved1,
    state,
    reserved2,
    heartbeat_ns,
    reserved3,
    stats,
    steps,
    reserved4,
});

const _: () = {
    use core::mem::offset_of;
    assert!(RING_MAGIC == u64::from_le_bytes(*b"IZARRING"));
    assert!(offset_of!(Header, epoch) == 24);
    assert!(offset_of!(Header, leases_offset) == 48);
    assert!(offset_of!(Header, output_bytes) == 144);
    assert!(offset_of!(Header, max_model_len) == 152);
    assert!(offset_of!(Header, model_name) == 192);
    assert!(offset_of!(Header, state) as u64 == HEADER_STATE);
    assert!(offset_of!(Header, heartbeat_ns) as u64 == HEADER_HEARTBEAT);
    assert!(offset_of!(Header, stats) as u64 == HEADER_STATS);
    assert!(offset_of!(Header, steps) as u64 == HEADER_STEPS);
};

/// What the engine counts, for a front end's metrics. Each word is whole; together they are no snapshot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sequences running now.
    pub num_running: u64,
    /// Sequences waiting now.
    pub num_waiting: u64,
    /// KV blocks owned by sequences now.
    pub kv_blocks_owned: u64,
    /// KV blocks that hold reusable prefixes only, now.
    pub kv_blocks_cached: u64,
    /// Steps executed so far.
    pub num_steps: u64,
    /// Preemptions so far.
    pub num_preemptions: u64,
    /// Prompt tokens looked up in the prefix cache so far.
    pub prefix_query_tokens: u64,
    /// Prompt tokens found in the prefix cache so far.
    pub prefix_hit_tokens: u64,
    /// Prompt tokens computed so far.
    pub prompt_tokens: u64,
    /// Output tokens produced so far.
    pub output_tokens: u64,
    /// Times a sequence's token was not sampled because its mask was not there yet.
    pub num_deferrals: u64,
    /// Zero.
    pub reserved: [u64; 5],
}

record_codec!(EngineStats, 128, {
    num_running,
    num_waiting,
    kv_blocks_owned,
    kv_blocks_cached,
    num_steps,
    num_preemptions,
    prefix_query_tokens,
    prefix_hit_tokens,
    prompt_tokens,
    output_tokens,
    num_deferrals,
    reserved,
});

/// What the engine is up to.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineState {
    /// Loading; submissions wait.
    Starting = 0,
    /// Serving.
    Ready = 1,
    /// Finishing what runs, refusing what is new.
    Draining = 2,
    /// Ended by request.
    Stopped = 3,
    /// Ended by an error.
    Failed = 4,
}

/// Engine-state word: `error << 16 | state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStateWord {
    /// What the engine is up to.
    pub state: EngineState,
    /// Why it failed, if it did.
    pub error: Option<EngineError>,
}

impl EngineStateWord {
    /// The word as stored.
    pub const fn pack(self) -> u64 {
        let error = match self.error {
            Some(error) => error.code(),
            None => 0,
        };
        (error as u64) << ERROR_SHIFT | self.state as u64
    }

    /// The word stored as `word`; `None` if no engine of this version writes it.
    pub const fn unpack(word: u64) -> Option<Self> {
        let state = match word as u8 {
            0 => EngineState::Starting,
            1 => EngineState::Ready,
            2 => EngineState::Draining,
            3 => EngineState::Stopped,
            4 => EngineState::Failed,
            _ => return None,
        };
        let error = match (word >> ERROR_SHIFT) as u16 {
            0 => None,
            code => match EngineError::from_code(code) {
                Some(error) => Some(error),
                None => return None,
            },
        };
        Some(Self { state, error })
    }
}

/// Why bytes are not a ring this crate can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// No ring here (yet): an engine stores the magic last.
    Magic(u64),
    /// Another version of the protocol.
    Version(u32),
    /// The geometry is impossible.
    Geometry(GeometryError),
    /// The offsets are not those that follow from the geometry.
    Layout,
    /// The region is smaller than the header says: (needed, present) bytes.
    TooSmall(u64, u64),
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(got) => write!(
                f,
                "no ring here: magic {got:#018x}, expected {RING_MAGIC:#018x}"
            ),
            Self::Version(got) => write!(
                f,
                "ring has protocol version {got}, this build speaks {RING_VERSION}"
            ),
            Self::Geometry(error) => write!(f, "ring header has an impossible geometry: {error}"),
            Self::Layout => f.write_str("ring header offsets do not follow from its geometry"),
            Self::TooSmall(need, got) => write!(f, "ring needs {need} bytes, region has {got}"),
        }
    }
}

impl core::error::Error for HeaderError {}

impl Header {
    /// The constant part of a header for `layout`; the rest is zero.
    pub(crate) fn new(layout: &RingLayout, epoch: u64, lease_timeout_ns: u64) -> Self {
        let mut header = Self::decode(&[0; HEADER_BYTES as usize]);
        let [
            leases,
            submit,
            cancel,
            recycle,
            masks,
            progress,
            requests,
            results,
            step_log,
            input,
            output,
        ] = layout.sections();
        header.version = RING_VERSION;
        header.header_bytes = HEADER_BYTES as u32;
        header.total_bytes = layout.total_bytes();
        header.epoch = epoch;
        header.num_slots = layout.num_slots();
        header.num_leases = layout.num_leases();
        header.lease_timeout_ns = lease_timeout_ns;
        header.leases_offset = leases;
        header.submit_offset = submit;
        header.cancel_offset = cancel;
        header.recycle_offset = recycle;
        header.masks_offset = masks;
        header.progress_offset = progress;
        header.requests_offset = requests;
        header.results_offset = results;
        header.step_log_offset = step_log;
        header.input_offset = input;
        header.input_bytes = layout.geometry().input_arena_bytes;
        header.output_offset = output;
        header.output_bytes = layout.geometry().output_arena_bytes;
        header
    }

    /// Checks everything constant and returns the layout it describes.
    ///
    /// `region_bytes` is the size of the region the header was read from.
    ///
    /// # Errors
    /// When the bytes are no ring, or not one this build understands.
    pub fn layout(&self, region_bytes: u64) -> Result<RingLayout, HeaderError> {
        if self.magic != RING_MAGIC {
            return Err(HeaderError::Magic(self.magic));
        }
        if self.version != RING_VERSION {
            return Err(HeaderError::Version(self.version));
        }
        let layout = RingLayout::new(RingGeometry {
            num_slots: self.num_slots,
            num_leases: self.num_leases,
            input_arena_bytes: self.input_bytes,
            output_arena_bytes: self.output_bytes,
        })
        .map_err(HeaderError::Geometry)?;
        let sections = [
            self.leases_offset,
            self.submit_offset,
            self.cancel_offset,
            self.recycle_offset,
            self.masks_offset,
            self.progress_offset,
            self.requests_offset,
            self.results_offset,
            self.step_log_offset,
            self.input_offset,
            self.output_offset,
        ];
        if layout.sections() != sections || self.total_bytes != layout.total_bytes() {
            return Err(HeaderError::Layout);
        }
        if region_bytes < layout.total_bytes() {
            return Err(HeaderError::TooSmall(layout.total_bytes(), region_bytes));
        }
        Ok(layout)
    }

    /// Name of the model; `None` if it is not UTF-8 or longer than its field.
    pub fn model_name(&self) -> Option<&str> {
        text(&self.model_name, self.model_name_bytes)
    }

    /// Where steps are planned; `None` as for the model's name.
    pub fn placement(&self) -> Option<&str> {
        text(&self.placement, self.placement_bytes)
    }

    /// What computes; `None` as for the model's name.
    pub fn hardware(&self) -> Option<&str> {
        text(&self.hardware, self.hardware_bytes)
    }
}

fn text(field: &[u8], num_bytes: u32) -> Option<&str> {
    core::str::from_utf8(field.get(..num_bytes as usize)?).ok()
}

/// What the engine is, for a front end that has never seen the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineInfo<'a> {
    /// Most tokens of prompt and output together.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// KV blocks in the pool.
    pub num_kv_blocks: u32,
    /// Most sequences running at once.
    pub max_num_seqs: u32,
    /// Most tokens of one step.
    pub max_num_batched_tokens: u32,
    /// Name of the model; cut at [`MODEL_NAME_BYTES`].
    pub model_name: &'a str,
    /// Where steps are planned, for people; cut at [`PLACEMENT_BYTES`].
    pub placement: &'a str,
    /// What computes, for people; cut at [`HARDWARE_BYTES`].
    pub hardware: &'a str,
}
