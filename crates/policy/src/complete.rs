//! Completion: the outcome of a step.

use crate::memory::State;
use crate::outcome::{Cause, CompleteError, Departure, StepResult, Verdict};
use crate::sequence::RUNNING;

impl State<'_> {
    /// Takes in the outcome of the oldest step in flight: one result for each entry that samples and that
    /// [`State::accepts`] (others are ignored). Calls `departed` for each sequence that left; its blocks are free at once,
    /// those that the step in flight was planned with included.
    ///
    /// # Errors
    /// [`CompleteError`]; the state is unchanged.
    pub fn complete_step(
        &mut self,
        step: u64,
        results: &[StepResult],
        mut departed: impl FnMut(Departure),
    ) -> Result<(), CompleteError> {
        let expected = self.core.completed_step + 1;
        if step != expected || step > self.core.planned_step {
            return Err(CompleteError::OutOfOrder {
                expected,
                got: step,
            });
        }
        self.core.completed_step = step;
        let mut any_left = false;
        for result in results {
            if self.accepts(step, result.slot)
                && let Some(departure) = self.take_result(result)
            {
                any_left = true;
                departed(departure);
            }
        }
        self.rows.drain(step);
        if any_left {
            self.drop_departed();
        }
        Ok(())
    }

    fn take_result(&mut self, result: &StepResult) -> Option<Departure> {
        let slot = result.slot;
        if result.verdict == Verdict::Fail {
            self.forget_blocks(slot);
            return Some(self.leave(slot, Cause::Failed));
        }
        if result.verdict == Verdict::Defer {
            self.defer(slot);
            return None;
        }
        self.learn_token(slot, result.token);
        let seq = &self.sequences[slot as usize];
        if result.verdict == Verdict::Stop {
            Some(self.leave(slot, Cause::Stopped))
        } else if seq.known_len >= seq.max_len {
            Some(self.leave(slot, Cause::Length))
        } else {
            None
        }
    }

    /// Puts a sequence back to where it was before the step: its newest token is computed and sampled again. Samples of
    /// steps planned meanwhile are no longer its own, and a block they were given beyond it comes back.
    fn defer(&mut self, slot: u32) {
        self.core.num_deferrals += 1;
        let next_step = self.core.planned_step + 1;
        let seq = &mut self.sequences[slot as usize];
        let was_ending = seq.ends_in_flight();
        seq.len = seq.known_len;
        seq.first_step = next_step;
        if seq.phase != RUNNING {
            // Preempted when it seemed to end in flight, and not counted then: it has to be computed again after all.
            seq.num_preemptions += was_ending as u32;
            self.core.num_preemptions += was_ending as u64;
            return;
        }
        seq.num_computed = seq.len - 1;
        seq.prefill_end = seq.num_computed;
        let (row, had) = (seq.row, seq.num_blocks);
        let num_blocks = self.config.blocks_for(seq.len);
        seq.num_blocks = num_blocks;
        for idx in num_blocks..had {
            self.pool
                .release(self.block_tables[self.table_idx(row, idx)]);
        }
    }

    fn learn_token(&mut self, slot: u32, token: u32) {
        self.sequences[slot as usize].known_len += 1;
        if self.config.prefix_caching {
            self.hash_token(slot, token);
            if self.sequences[slot as usize].phase == RUNNING {
                self.register_full_blocks(slot);
            }
        }
    }

    /// Makes what a failed sequence may have cached unhittable: its KV may be what failed.
    fn forget_blocks(&mut self, slot: u32) {
        for idx in 0..self.sequences[slot as usize].num_hashes {
            self.pool.forget(self.hashes.get(slot, idx));
        }
    }
}
