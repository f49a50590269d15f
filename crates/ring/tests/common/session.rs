//! The front end's conversation about requests: submitting, cancelling, reading, leaving.

use super::FrontEnd;
use izar_ring::*;

impl FrontEnd {
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
