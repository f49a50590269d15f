//! Planning a step.
//!
//! One pass over the running sequences in order of service gives each its tokens and blocks; who finds no block
//! preempts the last in order, which has not been planned yet. Then the waiting queue is admitted as far as rows, token
//! budget and blocks go, unless somebody was just preempted.
//!
//! The token budget is dealt out decodes first: prefill chunks share what is left when every running decode has its
//! token. Prefills are dealt with in order of service, each taking all it can use, so first tokens come in order.

use crate::memory::State;
use crate::outcome::PlanError;
use crate::plan::{Plan, PlanEntry, PlanHeader, entry_flags};
use crate::sequence::{Sequence, WAITING};

/// What one planning pass keeps in hand.
pub(crate) struct Pass<'p, 'a> {
    pub(crate) plan: &'p mut Plan<'a>,
    chunked: bool,
    /// Tokens that prefill chunks may still take.
    pub(crate) prefill_tokens: u32,
    /// Prefill entries so far, kept at the far end of the plan's array, first one last.
    num_prefills: usize,
    max_entries: usize,
}

impl Pass<'_, '_> {
    /// Tokens of a prefill with `remaining` tokens to compute that this step can take.
    pub(crate) fn chunk(&self, remaining: u32) -> u32 {
        if remaining <= self.prefill_tokens {
            remaining
        } else if self.chunked {
            self.prefill_tokens
        } else {
            0
        }
    }

    fn emit(&mut self, entry: PlanEntry) {
        let header = &mut self.plan.header;
        header.num_tokens += entry.num_tokens;
        header.num_samples += entry.samples() as u32;
        if entry.is_prefill() {
            self.num_prefills += 1;
            self.plan.entries[self.max_entries - self.num_prefills] = entry;
            self.prefill_tokens -= entry.num_tokens;
        } else {
            self.plan.entries[header.num_decodes as usize] = entry;
            header.num_decodes += 1;
        }
    }

    /// Puts the prefills behind the decodes, in order of service.
    fn arrange(&mut self) {
        let num_decodes = self.plan.header.num_decodes as usize;
        let prefills = self.max_entries - self.num_prefills..self.max_entries;
        self.plan.entries[prefills.clone()].reverse();
        self.plan.entries.copy_within(prefills, num_decodes);
        self.plan.header.num_entries = (num_decodes + self.num_prefills) as u32;
    }
}

impl State<'_> {
    /// Plans the next step, assuming that in the step in flight, if there is one, nobody stops. `now_ns` is any clock.
    ///
    /// Every plan that is not empty must be run, whole and in the order of steps, whatever `cancel` or
    /// `complete_step` say meanwhile: later plans count on its KV.
    ///
    /// # Errors
    /// [`PlanError`]; neither state nor plan changed.
    pub fn plan(&mut self, now_ns: u64, plan: &mut Plan<'_>) -> Result<(), PlanError> {
        self.check_plannable(plan)?;
        let step = self.core.planned_step + 1;
        *plan.header = PlanHeader {
            step,
            planned_ns: now_ns,
            ..PlanHeader::default()
        };
        let num_decoding = self.core.num_running - self.core.num_prefilling;
        let mut pass = Pass {
            plan,
            chunked: self.config.chunked_prefill,
            prefill_tokens: self.config.max_num_batched_tokens - num_decoding,
            num_prefills: 0,
            max_entries: self.config.max_num_seqs as usize,
        };
        self.plan_running(&mut pass);
        if pass.plan.header.num_preempted == 0 {
            self.admit(&mut pass);
        }
        pass.arrange();
        if !plan.is_empty() {
            self.core.planned_step = step;
            self.core.num_computed_tokens += plan.header.num_tokens as u64;
            self.register_planned(plan);
        }
        Ok(())
    }

    fn check_plannable(&self, plan: &Plan<'_>) -> Result<(), PlanError> {
        let incomplete_step = self.core.completed_step + 1;
        if self.core.planned_step > incomplete_step {
            return Err(PlanError::TooFarAhead { incomplete_step });
        }
        let expected = self.config.max_num_seqs;
        let room = plan.entries.len().min(plan.preempted.len());
        if room < expected as usize {
            return Err(PlanError::TooSmall { expected });
        }
        Ok(())
    }

    fn plan_running(&mut self, pass: &mut Pass<'_, '_>) {
        let mut idx = 0;
        while idx < self.core.num_running {
            let slot = self.running[idx as usize];
            idx += 1;
            let seq = &self.sequences[slot as usize];
            if seq.ends_in_flight() {
                continue;
            }
            let wanted = if seq.is_prefilling() {
                pass.chunk(seq.prefill_end - seq.num_computed)
            } else {
                1
            };
            let num_tokens = self.make_room(slot, wanted, pass);
            if num_tokens > 0 {
                let flags = self.decode_flags(slot);
                self.extend(slot, num_tokens, flags, 0, pass);
            }
        }
    }

    fn decode_flags(&self, slot: u32) -> u32 {
        let seq = &self.sequences[slot as usize];
        if !seq.is_prefilling() && seq.known_len == seq.num_computed {
            entry_flags::BACKFILL
        } else {
            0
        }
    }

    /// Makes sure there are blocks for up to `wanted` more tokens of a running sequence, and says for how many. A chunk
    /// is cut to the blocks there are; where there are none, the last in order is preempted, perhaps the sequence
    /// itself (then the answer is 0).
    fn make_room(&mut self, slot: u32, wanted: u32, pass: &mut Pass<'_, '_>) -> u32 {
        loop {
            let seq = &self.sequences[slot as usize];
            let num_blocks = seq.num_blocks as u64 + self.pool.num_available() as u64;
            let room = (num_blocks << self.config.block_shift()) - seq.num_computed as u64;
            if room >= wanted as u64 {
                return wanted;
            }
            if room > 0 {
                return room as u32;
            }
            let victim = self.running[self.core.num_running as usize - 1];
            self.preempt(victim, pass);
            if victim == slot {
                return 0;
            }
        }
    }

    /// Sends the last running sequence back to the waiting queue. It keeps its tokens (one that a step in flight samples
    /// included) and computes their KV again, but for what it finds in the prefix cache.
    fn preempt(&mut self, victim: u32, pass: &mut Pass<'_, '_>) {
        self.release_memory(victim);
        self.core.num_running -= 1;
        let seq = &mut self.sequences[victim as usize];
        seq.phase = WAITING;
        let ends = seq.ends_in_flight();
        seq.num_preemptions += !ends as u32;
        self.waiting.push(self.sequences, victim);
        if ends {
            // Nothing to compute again: it only waits for its last token.
            return;
        }
        self.core.num_preemptions += 1;
        let header = &mut pass.plan.header;
        pass.plan.preempted[header.num_preempted as usize] = victim;
        header.num_preempted += 1;
    }

    /// Plans the next `num_tokens` tokens of a running sequence, for which there are blocks. `num_held` blocks were just
    /// taken from the prefix cache.
    pub(crate) fn extend(
        &mut self,
        slot: u32,
        num_tokens: u32,
        mut flags: u32,
        num_held: u32,
        pass: &mut Pass<'_, '_>,
    ) {
        let Sequence {
            row,
            num_blocks: had,
            num_computed: start,
            ..
        } = self.sequences[slot as usize];
        let num_blocks = self.config.blocks_for(start + num_tokens);
        for idx in had..num_blocks {
            let place = self.table_idx(row, idx);
            self.block_tables[place] = self.pool.take();
        }
        let seq = &mut self.sequences[slot as usize];
        if seq.is_prefilling() {
            flags |= entry_flags::PREFILL;
        }
        seq.num_blocks = num_blocks;
        seq.num_computed = start + num_tokens;
        seq.last_step = pass.plan.header.step;
        let mut output_idx = 0;
        if seq.num_computed == seq.len {
            output_idx = seq.len - seq.prompt_len;
            seq.len += 1;
            flags |= entry_flags::SAMPLES;
        }
        if flags & entry_flags::PREFILL != 0 && !seq.is_prefilling() {
            self.core.num_prefilling -= 1;
        }
        let num_new_blocks = num_blocks - had + num_held;
        pass.emit(PlanEntry {
            slot,
            row,
            start,
            num_tokens,
            flags,
            num_blocks,
            num_new_blocks,
            output_idx,
        });
    }

    /// Makes the blocks that this plan fills hittable, from the next plan on.
    fn register_planned(&mut self, plan: &Plan<'_>) {
        for entry in plan.entries() {
            self.register_full_blocks(entry.slot);
        }
    }
}
