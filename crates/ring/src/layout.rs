//! Where everything lies: the geometry a ring is created with and the offsets that follow from it.
//!
//! Pure arithmetic, used by both sides. Offsets are bytes from the start of the region. A section starts
//! on a page; inside it, words of different writers are at least [`LINE_BYTES`] apart.

use core::fmt;
use core::ops::Range;

/// Distance between words of different writers, in bytes (two 64-byte lines: prefetchers pull pairs).
pub const LINE_BYTES: u64 = 128;
/// Alignment of every section, in bytes.
pub const PAGE_BYTES: u64 = 4096;
/// Size of the header section, in bytes.
pub const HEADER_BYTES: u64 = 4096;
/// Size of one lease, in bytes.
pub const LEASE_BYTES: u64 = 512;
/// Size of one submit, cancel, recycle or mask word, in bytes.
pub const WORD_BYTES: u64 = 8;
/// Size of one slot's progress (status word, count word), in bytes.
pub const PROGRESS_BYTES: u64 = 16;
/// Size of one request record, in bytes.
pub const REQUEST_BYTES: u64 = 256;
/// Size of one result record, in bytes.
pub const RESULT_BYTES: u64 = 64;
/// Size of the step log's first line, which holds its head word, in bytes.
pub const STEP_LOG_HEAD_BYTES: u64 = 128;
/// Size of one step record, in bytes.
pub const STEP_RECORD_BYTES: u64 = 96;
/// Steps the log holds.
pub const STEP_LOG_LEN: u64 = 1024;
/// Size of one output token record, in bytes.
pub const OUTPUT_BYTES: u64 = 16;
/// Alignment of everything in the input arena and of log-probability records, in bytes.
pub const INPUT_ALIGN: u64 = 8;
/// Alignment of output token records, in bytes.
pub const OUTPUT_ALIGN: u64 = 16;
/// Most slots a ring may have.
pub const MAX_SLOTS: u32 = 65_536;
/// Most leases a ring may have.
pub const MAX_LEASES: u32 = 64;
/// Slots of the default geometry; their progress fills exactly 64 KiB.
pub const DEFAULT_NUM_SLOTS: u32 = 4096;

/// Index of a ring slot.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIdx(pub u32);

/// Index of a lease.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseIdx(pub u32);

/// What a ring is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingGeometry {
    /// Number of slots, 1 to [`MAX_SLOTS`].
    pub num_slots: u32,
    /// Number of leases, 1 to [`MAX_LEASES`]: how many front ends can be connected at once. Slots and
    /// arenas are divided evenly between them.
    pub num_leases: u32,
    /// Size of the input arena in bytes, at least one page per lease.
    pub input_arena_bytes: u64,
    /// Size of the output arena in bytes, at least one page per lease.
    pub output_arena_bytes: u64,
}

impl Default for RingGeometry {
    /// One front end, 4096 slots, arenas of 64 MiB and 256 MiB (lazily committed by the mapping).
    fn default() -> Self {
        Self {
            num_slots: DEFAULT_NUM_SLOTS,
            num_leases: 1,
            input_arena_bytes: 64 << 20,
            output_arena_bytes: 256 << 20,
        }
    }
}

/// Why a geometry cannot be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// `num_slots` is 0 or above [`MAX_SLOTS`].
    NumSlots(u32),
    /// `num_leases` is 0, above [`MAX_LEASES`] or above `num_slots`.
    NumLeases(u32),
    /// An arena gives some lease less than one page, or the region would not fit in 2^48 bytes.
    ArenaBytes(u64),
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NumSlots(got) => write!(f, "a ring has 1 to {MAX_SLOTS} slots, not {got}"),
            Self::NumLeases(got) => {
                write!(
                    f,
                    "a ring has 1 to {MAX_LEASES} leases and no more than slots, not {got}"
                )
            }
            Self::ArenaBytes(got) => {
                write!(
                    f,
                    "an arena needs at least {PAGE_BYTES} bytes per lease and at most 2^47 in all, not {got}"
                )
            }
        }
    }
}

impl core::error::Error for GeometryError {}

/// The byte map of one geometry. Two sides that agree on the geometry agree on every offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    geometry: RingGeometry,
    leases: u64,
    submit: u64,
    cancel: u64,
    recycle: u64,
    masks: u64,
    progress: u64,
    requests: u64,
    results: u64,
    step_log: u64,
    input: u64,
    output: u64,
    total: u64,
}

const fn page_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}

impl RingLayout {
    /// Lays the sections out one after another.
    ///
    /// # Errors
    /// When a count or a size is out of the ranges stated at [`RingGeometry`].
    pub const fn new(geometry: RingGeometry) -> Result<Self, GeometryError> {
        let RingGeometry {
            num_slots,
            num_leases,
            input_arena_bytes,
            output_arena_bytes,
        } = geometry;
        if num_slots == 0 || num_slots > MAX_SLOTS {
            return Err(GeometryError::NumSlots(num_slots));
        }
        if num_leases == 0 || num_leases > MAX_LEASES || num_leases > num_slots {
            return Err(GeometryError::NumLeases(num_leases));
        }
        let least = PAGE_BYTES * num_leases as u64;
        if input_arena_bytes < least || input_arena_bytes > 1 << 46 {
            return Err(GeometryError::ArenaBytes(input_arena_bytes));
        }
        if output_arena_bytes < least || output_arena_bytes > 1 << 46 {
            return Err(GeometryError::ArenaBytes(output_arena_bytes));
        }
        let geometry = RingGeometry {
            input_arena_bytes: page_up(input_arena_bytes),
            output_arena_bytes: page_up(output_arena_bytes),
            ..geometry
        };
        let slots = num_slots as u64;
        let leases = HEADER_BYTES;
        let submit = leases + page_up(num_leases as u64 * LEASE_BYTES);
        let cancel = submit + page_up(slots * WORD_BYTES);
        let recycle = cancel + page_up(slots * WORD_BYTES);
        let masks = recycle + page_up(slots * WORD_BYTES);
        let progress = masks + page_up(slots * WORD_BYTES);
        let requests = progress + page_up(slots * PROGRESS_BYTES);
        let results = requests + page_up(slots * REQUEST_BYTES);
        let step_log = results + page_up(slots * RESULT_BYTES);
        let input = step_log + page_up(STEP_LOG_HEAD_BYTES + STEP_LOG_LEN * STEP_RECORD_BYTES);
        let output = input + geometry.input_arena_bytes;
        let total = output + geometry.output_arena_bytes;
        Ok(Self {
            geometry,
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
            total,
        })
    }

    /// The geometry this was computed from, arena sizes rounded up to whole pages.
    pub const fn geometry(&self) -> RingGeometry {
        self.geometry
    }

    /// Number of slots.
    pub const fn num_slots(&self) -> u32 {
        self.geometry.num_slots
    }

    /// Number of leases.
    pub const fn num_leases(&self) -> u32 {
        self.geometry.num_leases
    }

    /// Bytes the whole region takes; a multiple of the page size.
    pub const fn total_bytes(&self) -> u64 {
        self.total
    }

    /// The section offsets in the order of the byte map: leases, submit, cancel, recycle, masks,
    /// progress, requests, results, step log, input arena, output arena.
    pub const fn sections(&self) -> [u64; 11] {
        [
            self.leases,
            self.submit,
            self.cancel,
            self.recycle,
            self.masks,
            self.progress,
            self.requests,
            self.results,
            self.step_log,
            self.input,
            self.output,
        ]
    }

    /// The dense progress array, for one bulk read ([`PROGRESS_BYTES`] a slot).
    pub const fn progress_range(&self) -> Range<u64> {
        self.progress..self.progress + self.geometry.num_slots as u64 * PROGRESS_BYTES
    }

    /// The whole input arena.
    pub const fn input_arena(&self) -> Range<u64> {
        self.input..self.input + self.geometry.input_arena_bytes
    }

    /// The whole output arena.
    pub const fn output_arena(&self) -> Range<u64> {
        self.output..self.output + self.geometry.output_arena_bytes
    }

    const fn slot(&self, section: u64, slot: SlotIdx, stride: u64) -> u64 {
        assert!(
            slot.0 < self.geometry.num_slots,
            "slot index beyond num_slots"
        );
        section + slot.0 as u64 * stride
    }

    /// Submit word of a slot; a front end stores a [`SlotWord`](crate::SlotWord) here with release
    /// after the request record and its arena payload (SYNC slot-submitted).
    pub const fn submit_offset(&self, slot: SlotIdx) -> u64 {
        self.slot(self.submit, slot, WORD_BYTES)
    }

    /// Cancel word of a slot (SYNC slot-cancelled).
    pub const fn cancel_offset(&self, slot: SlotIdx) -> u64 {
        self.slot(self.cancel, slot, WORD_BYTES)
    }

    /// Recycle word of a slot; stored with release after the last read of what the slot produced
    /// (SYNC slot-read-out).
    pub const fn recycle_offset(&self, slot: SlotIdx) -> u64 {
        self.slot(self.recycle, slot, WORD_BYTES)
    }

    /// Mask word of a slot; stored with release after the mask that it promises (SYNC mask-delivered).
    pub const fn mask_offset(&self, slot: SlotIdx) -> u64 {
        self.slot(self.masks, slot, WORD_BYTES)
    }

    /// Status word of a slot; its count word follows 8 bytes on.
    pub const fn progress_offset(&self, slot: SlotIdx) -> u64 {
        self.slot(self.progress, slot, PROGRESS_BYTES)
    }

    /// Request record of a slot.
    pub const fn request_offset(&self, slot: SlotIdx) -> u64 {
        self.slot(self.requests, slot, REQUEST_BYTES)
    }

    /// Result record of a slot.
    pub const fn result_offset(&self, slot: SlotIdx) -> u64 {
        self.slot(self.results, slot, RESULT_BYTES)
    }

    /// Head word of the step log: steps logged so far (SYNC step-logged).
    pub const fn step_log_head(&self) -> u64 {
        self.step_log
    }

    /// The record of the `index`th step logged, counted from 0; its place is shared with every [`STEP_LOG_LEN`]th one.
    pub const fn step_record_offset(&self, index: u64) -> u64 {
        self.step_log + STEP_LOG_HEAD_BYTES + index % STEP_LOG_LEN * STEP_RECORD_BYTES
    }

    /// Start of a lease's three lines.
    pub const fn lease_offset(&self, lease: LeaseIdx) -> u64 {
        assert!(
            lease.0 < self.geometry.num_leases,
            "lease index beyond num_leases"
        );
        self.leases + lease.0 as u64 * LEASE_BYTES
    }

    /// Slots a lease owns.
    pub const fn lease_slots(&self, lease: LeaseIdx) -> Range<u32> {
        let share = self.share(self.geometry.num_slots as u64, lease);
        share.start as u32..share.end as u32
    }

    /// Part of the input arena a lease owns; starts on a page.
    pub const fn lease_input(&self, lease: LeaseIdx) -> Range<u64> {
        self.lease_pages(self.input, self.geometry.input_arena_bytes, lease)
    }

    /// Part of the output arena a lease owns; starts on a page.
    pub const fn lease_output(&self, lease: LeaseIdx) -> Range<u64> {
        self.lease_pages(self.output, self.geometry.output_arena_bytes, lease)
    }

    /// The lease that owns a slot.
    pub const fn lease_of(&self, slot: SlotIdx) -> LeaseIdx {
        assert!(
            slot.0 < self.geometry.num_slots,
            "slot index beyond num_slots"
        );
        let (slots, leases) = (
            self.geometry.num_slots as u64,
            self.geometry.num_leases as u64,
        );
        LeaseIdx((((slot.0 as u64 + 1) * leases - 1) / slots) as u32)
    }

    const fn lease_pages(&self, arena: u64, bytes: u64, lease: LeaseIdx) -> Range<u64> {
        let pages = self.share(bytes / PAGE_BYTES, lease);
        arena + pages.start * PAGE_BYTES..arena + pages.end * PAGE_BYTES
    }

    /// The lease's share of `count` things: `floor(i * count / leases)` up to the next lease's start.
    const fn share(&self, count: u64, lease: LeaseIdx) -> Range<u64> {
        assert!(
            lease.0 < self.geometry.num_leases,
            "lease index beyond num_leases"
        );
        let leases = self.geometry.num_leases as u64;
        lease.0 as u64 * count / leases..(lease.0 as u64 + 1) * count / leases
    }
}
