//! Admission: waiting sequences become running ones.

use crate::memory::State;
use crate::plan::entry_flags;
use crate::pool::NONE;
use crate::schedule::Pass;
use crate::sequence::{RUNNING, Sequence};

impl State<'_> {
    /// Admits from the waiting queue, in order, until something runs out.
    pub(crate) fn admit(&mut self, pass: &mut Pass<'_, '_>) {
        while let (Some(slot), Some(row)) = (self.waiting.first(), self.rows.peek()) {
            if pass.prefill_tokens == 0 {
                return;
            }
            let seq = &self.sequences[slot as usize];
            if seq.known_len < seq.len {
                // Preempted while a step in flight samples its next token: that must be known before it resumes.
                return;
            }
            let order = seq.order;
            let num_available = self.pool.num_available();
            if order == self.core.blocked_order && num_available <= self.core.blocked_available {
                return;
            }
            let (num_hits, num_shared) = self.find_prefix(slot, row);
            if self.blocks_to_start(slot) - num_shared > num_available {
                self.core.blocked_order = order;
                self.core.blocked_available = num_available;
                return;
            }
            let seq = &self.sequences[slot as usize];
            let num_tokens = pass.chunk(seq.len - num_hits * self.config.block_size);
            if num_tokens == 0 {
                return;
            }
            let flags = self.start(slot, row, num_hits, pass);
            self.extend(slot, num_tokens, flags, num_hits, pass);
        }
    }

    /// Blocks a waiting sequence must find before it is admitted: for all its tokens and the one sampled next, so that it
    /// is not preempted right away.
    fn blocks_to_start(&self, slot: u32) -> u32 {
        let Sequence { len, max_len, .. } = self.sequences[slot as usize];
        self.config.blocks_for((len + 1).min(max_len - 1))
    }

    /// Writes the blocks that hold the beginning of a waiting sequence into a free row. Returns how many there are, and
    /// how many of them somebody uses. At least one token is left to compute.
    fn find_prefix(&mut self, slot: u32, row: u32) -> (u32, u32) {
        let Sequence {
            len,
            num_hashes,
            computes_all,
            ..
        } = self.sequences[slot as usize];
        if computes_all != 0 {
            return (0, 0);
        }
        let max_hits = ((len - 1) >> self.config.block_shift()).min(num_hashes);
        let mut num_shared = 0;
        for idx in 0..max_hits {
            let block = self.pool.lookup(self.hashes.get(slot, idx));
            if block == NONE {
                return (idx, num_shared);
            }
            num_shared += (self.pool.num_refs(block) > 0) as u32;
            let place = self.table_idx(row, idx);
            self.block_tables[place] = block;
        }
        (max_hits, num_shared)
    }

    /// Makes a waiting sequence a running one, with the blocks that `find_prefix` found. Returns the flags of its entry.
    fn start(&mut self, slot: u32, row: u32, num_hits: u32, pass: &mut Pass<'_, '_>) -> u32 {
        self.waiting.remove(self.sequences, slot);
        self.rows.take();
        for idx in 0..num_hits {
            self.pool.hold(self.block_tables[self.table_idx(row, idx)]);
        }
        self.insert_running(slot);
        self.core.num_prefilling += 1;
        pass.plan.header.num_admitted += 1;
        let seq = &mut self.sequences[slot as usize];
        seq.phase = RUNNING;
        seq.row = row;
        seq.num_blocks = num_hits;
        seq.num_registered = num_hits;
        seq.num_computed = num_hits * self.config.block_size;
        seq.prefill_end = seq.len;
        if seq.first_planned_ns != u64::MAX {
            return entry_flags::RESUMED;
        }
        seq.first_planned_ns = pass.plan.header.planned_ns;
        seq.num_cached_tokens = seq.num_computed;
        if self.config.prefix_caching {
            self.core.prefix_query_tokens += seq.prompt_len as u64;
            self.core.prefix_hit_tokens += seq.num_computed as u64;
        }
        entry_flags::FIRST
    }

    /// Puts a slot into the running list at its place in order of service.
    fn insert_running(&mut self, slot: u32) {
        let key = self.sequences[slot as usize].key();
        let mut idx = self.core.num_running as usize;
        self.core.num_running += 1;
        while idx > 0 && self.sequences[self.running[idx - 1] as usize].key() > key {
            self.running[idx] = self.running[idx - 1];
            idx -= 1;
        }
        self.running[idx] = slot;
    }
}
