//! A front end in a few lines, for tests: it claims a lease, allocates a fixed share of the arenas per
//! slot and speaks the protocol through `RingMemory`'s one-sided operations only.

#![allow(dead_code, reason = "each test binary uses its own part")]

use izar_ring::*;

/// Bytes of input arena and of output arena each slot of a test ring gets.
pub const SHARE: u64 = 64;

/// Two small leases of two slots each, enough room for [`SHARE`] per slot.
pub const SMALL: RingGeometry = RingGeometry {
    num_slots: 4,
    num_leases: 2,
    input_arena_bytes: 8192,
    output_arena_bytes: 8192,
};

/// The small ring's options.
pub const OPTIONS: RingOptions = RingOptions {
    geometry: SMALL,
    lease_timeout_ns: 1_000,
    epoch: 7,
};

/// A description with a vocabulary of 100 tokens.
pub const INFO: EngineInfo<'static> = EngineInfo {
    max_model_len: 64,
    vocab_size: 100,
    block_size: 16,
    num_kv_blocks: 8,
    max_num_seqs: 4,
    max_num_batched_tokens: 32,
    model_name: "test",
};

/// A front end that holds a lease.
pub struct FrontEnd {
    pub memory: RingMemory,
    pub layout: RingLayout,
    pub lease: LeaseIdx,
    pub tag: u32,
    doorbell: u64,
}

impl FrontEnd {
    /// Takes the lease if the engine has drained it.
    pub fn claim(memory: &RingMemory, layout: &RingLayout, lease: LeaseIdx) -> Option<Self> {
        let base = layout.lease_offset(lease);
        // SYNC lease-drained: pairs with the engine's release store of the verdict.
        let verdict = LeaseVerdict::unpack(memory.read_word(base + LEASE_VERDICT).unwrap());
        let was = memory.read_word(base + LEASE_CLAIM).unwrap();
        let claim = LeaseClaim::unpack(was).next(verdict)?;
        // SYNC lease-claimed: pairs with the acquire load in `EngineRing::notice_claim`.
        if memory
            .compare_and_swap(base + LEASE_CLAIM, was, claim.pack())
            .unwrap()
            != was
        {
            return None;
        }
        let doorbell = memory.read_word(base + LEASE_DOORBELL).unwrap();
        Some(Self {
            memory: memory.clone(),
            layout: *layout,
            lease,
            tag: claim.generation,
            doorbell,
        })
    }

    /// The `index`-th slot of the lease.
    pub fn slot(&self, index: u32) -> SlotIdx {
        SlotIdx(self.layout.lease_slots(self.lease).start + index)
    }

    pub fn input_offset(&self, slot: SlotIdx) -> u64 {
        let first = self.layout.lease_slots(self.lease).start;
        self.layout.lease_input(self.lease).start + u64::from(slot.0 - first) * SHARE
    }

    pub fn output_offset(&self, slot: SlotIdx) -> u64 {
        let first = self.layout.lease_slots(self.lease).start;
        self.layout.lease_output(self.lease).start + u64::from(slot.0 - first) * SHARE
    }

    /// The generation a submission in `slot` would have now, if the slot is empty.
    pub fn next_generation(&self, slot: SlotIdx) -> Option<u32> {
        // SYNC slot-emptied: pairs with the engine's release store of EMPTY.
        let status = self
            .memory
            .read_word(self.layout.progress_offset(slot))
            .unwrap();
        let status = StatusWord::unpack(status).unwrap();
        (status.state == State::Empty).then(|| status.generation.wrapping_add(1))
    }

    /// A greedy request of two prompt tokens and up to two output tokens.
    pub fn record(&self, slot: SlotIdx, generation: u32) -> RequestRecord {
        RequestRecord {
            generation,
            request_id: 1000 + u64::from(generation),
            prompt: Span {
                offset: self.input_offset(slot),
                len: 2,
                reserved: 0,
            },
            output_offset: self.output_offset(slot),
            output_capacity: 2,
            max_tokens: 2,
            ..RequestRecord::default()
        }
    }

    /// Writes a record and its prompt without submitting it.
    pub fn write_request(&self, slot: SlotIdx, record: &RequestRecord, prompt: [u32; 2]) {
        let bytes = (u64::from(prompt[1]) << 32 | u64::from(prompt[0])).to_le_bytes();
        self.memory.write(self.input_offset(slot), &bytes).unwrap();
        self.memory
            .write(self.layout.request_offset(slot), &record.encode())
            .unwrap();
    }

    pub fn store_submit(&self, slot: SlotIdx, generation: u32) {
        let word = SlotWord {
            generation,
            lease: self.tag,
        }
        .pack();
        // SYNC slot-submitted: pairs with the acquire load in `EngineRing::scan`.
        self.memory
            .write_flag(self.layout.submit_offset(slot), word)
            .unwrap();
    }

    pub fn store_cancel(&self, slot: SlotIdx, generation: u32) {
        let word = SlotWord {
            generation,
            lease: self.tag,
        }
        .pack();
        // SYNC slot-cancelled: pairs with the acquire load in `EngineRing::scan`.
        self.memory
            .write_flag(self.layout.cancel_offset(slot), word)
            .unwrap();
    }

    pub fn store_recycle(&self, slot: SlotIdx, generation: u32) {
        let word = SlotWord {
            generation,
            lease: self.tag,
        }
        .pack();
        // SYNC slot-read-out: pairs with the acquire load in `EngineRing::scan`.
        self.memory
            .write_flag(self.layout.recycle_offset(slot), word)
            .unwrap();
    }

    pub fn ring_doorbell(&mut self) {
        self.doorbell = self.doorbell.wrapping_add(1);
        let offset = self.layout.lease_offset(self.lease) + LEASE_DOORBELL;
        // SYNC doorbell-rung: pairs with the acquire load in `EngineRing::scan`.
        self.memory.write_flag(offset, self.doorbell).unwrap();
    }

    pub fn beat(&self, value: u64) {
        let offset = self.layout.lease_offset(self.lease) + LEASE_HEARTBEAT;
        self.memory.write_flag(offset, value).unwrap();
    }

    /// Submits the plain request in an empty slot and returns its generation.
    pub fn submit(&mut self, slot: SlotIdx) -> u32 {
        let generation = self.next_generation(slot).expect("slot is empty");
        self.write_request(slot, &self.record(slot, generation), [3, 4]);
        self.store_submit(slot, generation);
        self.ring_doorbell();
        generation
    }

    pub fn cancel(&mut self, slot: SlotIdx, generation: u32) {
        self.store_cancel(slot, generation);
        self.ring_doorbell();
    }

    pub fn recycle(&mut self, slot: SlotIdx, generation: u32) {
        self.store_recycle(slot, generation);
        self.ring_doorbell();
    }

    /// Lets the lease go.
    pub fn release(mut self) {
        let claim = LeaseClaim {
            generation: self.tag,
            held: false,
        };
        let offset = self.layout.lease_offset(self.lease) + LEASE_CLAIM;
        // SYNC lease-claimed: pairs with the acquire load in `EngineRing::notice_claim`.
        self.memory.write_flag(offset, claim.pack()).unwrap();
        self.ring_doorbell();
    }

    pub fn observe(&self, slot: SlotIdx, generation: u32) -> Observation {
        let mut bytes = [0; 16];
        // SYNC token-published, slot-completed, slot-emptied: pairs with the engine's release stores.
        self.memory
            .read(self.layout.progress_offset(slot), &mut bytes)
            .unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        observe(word(0), word(8), generation)
    }

    pub fn token(&self, slot: SlotIdx, index: u32) -> OutputRecord {
        let mut bytes = [0; 16];
        self.memory
            .read(
                self.output_offset(slot) + u64::from(index) * OUTPUT_BYTES,
                &mut bytes,
            )
            .unwrap();
        OutputRecord::decode(&bytes)
    }

    pub fn result(&self, slot: SlotIdx) -> ResultRecord {
        let mut bytes = [0; RESULT_BYTES as usize];
        self.memory
            .read(self.layout.result_offset(slot), &mut bytes)
            .unwrap();
        ResultRecord::decode(&bytes)
    }
}

/// What a scan or a reaping reports.
pub fn events(f: impl FnOnce(&mut dyn FnMut(SlotEvent))) -> Vec<SlotEvent> {
    let mut events = Vec::new();
    f(&mut |event| events.push(event));
    events
}

/// Heap memory for a ring; outlives what is made of it by being declared first.
#[cfg(not(loom))]
pub struct Heap {
    bytes: std::ptr::NonNull<u8>,
    layout: std::alloc::Layout,
}

#[cfg(not(loom))]
impl Heap {
    pub fn new(bytes: u64) -> Self {
        let layout =
            std::alloc::Layout::from_size_align(bytes as usize, PAGE_BYTES as usize).unwrap();
        // SAFETY: the size is not zero.
        let bytes = unsafe { std::alloc::alloc_zeroed(layout) };
        Self {
            bytes: std::ptr::NonNull::new(bytes).unwrap(),
            layout,
        }
    }

    /// The ring memory; must not outlive `self`.
    pub fn memory(&self) -> RingMemory {
        // SAFETY: page aligned, zeroed, mapped until `self` goes, which tests declare before every
        // user; only ring code touches it, and the tests follow the protocol.
        unsafe { RingMemory::new(self.bytes, self.layout.size()) }
    }
}

#[cfg(not(loom))]
impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { std::alloc::dealloc(self.bytes.as_ptr(), self.layout) };
    }
}

/// A described, ready engine over the small ring.
pub fn engine(memory: RingMemory) -> EngineRing {
    let mut ring = EngineRing::create(memory, &OPTIONS, slot_table(SMALL.num_slots)).unwrap();
    ring.describe(&INFO);
    ring.set_engine_state(EngineState::Ready, None);
    ring
}

pub fn output(token: u32) -> OutputToken {
    OutputToken {
        token,
        timestamp_ns: 10_000 + u64::from(token),
    }
}
