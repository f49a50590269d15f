//! A front end in a few lines: it claims a lease, allocates a fixed share of the arenas per slot and
//! speaks the protocol through `RingMemory`'s one-sided operations only. What it takes to get a request
//! in and a slot back is here; the rest is in `session.rs`.

use izar_ring::*;

/// Bytes of input arena and of output arena each slot of a test ring gets.
pub const SHARE: u64 = 64;

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

    pub fn recycle(&mut self, slot: SlotIdx, generation: u32) {
        self.store_recycle(slot, generation);
        self.ring_doorbell();
    }
}
