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
