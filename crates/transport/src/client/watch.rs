//! Looking at the ring without taking part: every slot's state, and the engine's latest steps.
//!
//! Nothing here is on a request's path or kept between looks; who does not look pays nothing. A look costs a few bulk reads.

use izar_ring::{
    PROGRESS_BYTES, STEP_LOG_LEN, STEP_RECORD_BYTES, SlotIdx, SlotWord, State, StatusWord,
    StepRecord, WORD_BYTES, first_whole_step,
};

use super::RingClient;
use crate::TransportError;

/// What a look at the step log found besides the steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewSteps {
    /// Where to go on next time.
    pub next: u64,
    /// Steps overwritten before they could be read.
    pub num_missed: u64,
}

impl RingClient {
    /// The state of every slot of the ring, those of other front ends included. The slots are not all looked at in the same moment.
    ///
    /// # Errors
    /// If the ring cannot be reached.
    pub fn slot_states(&self, out: &mut Vec<State>) -> Result<(), TransportError> {
        let (transport, layout) = (&*self.shared.transport, self.shared.lease.layout());
        let num_slots = layout.num_slots() as usize;
        let mut submits = vec![0; num_slots * WORD_BYTES as usize];
        let mut progress = vec![0; num_slots * PROGRESS_BYTES as usize];
        // Submit words first: one that is ahead of the status word read after it has not been claimed.
        transport.read(layout.submit_offset(SlotIdx(0)), &mut submits)?;
        transport.read(layout.progress_offset(SlotIdx(0)), &mut progress)?;
        let submits = submits.as_chunks::<{ WORD_BYTES as usize }>().0;
        let progress = progress.as_chunks::<{ PROGRESS_BYTES as usize }>().0;
        out.clear();
        out.extend(submits.iter().zip(progress).map(|(submit, words)| {
            let status = u64::from_le_bytes(words[..8].try_into().expect("eight bytes"));
            state_of(SlotWord::unpack(u64::from_le_bytes(*submit)), status)
        }));
        Ok(())
    }

    /// Appends the steps logged since `next` (0, or what the last look returned) to `out`, oldest first.
    ///
    /// # Errors
    /// If the ring cannot be reached.
    pub fn new_steps(
        &self,
        next: u64,
        out: &mut Vec<StepRecord>,
    ) -> Result<NewSteps, TransportError> {
        let (transport, layout) = (&*self.shared.transport, self.shared.lease.layout());
        // SYNC step-logged: pairs with the engine's release store of the head word.
        let head = transport.read_word(layout.step_log_head())?;
        // A head that has gone back is another ring's.
        let next = if next > head { 0 } else { next };
        let begin = next.max(head.saturating_sub(STEP_LOG_LEN));
        let mut bytes = vec![0; ((head - begin) * STEP_RECORD_BYTES) as usize];
        let wrap = begin.next_multiple_of(STEP_LOG_LEN).clamp(begin, head);
        let (before, after) = bytes.split_at_mut(((wrap - begin) * STEP_RECORD_BYTES) as usize);
        for (index, part) in [(begin, before), (wrap, after)] {
            if !part.is_empty() {
                transport.read(layout.step_record_offset(index), part)?;
            }
        }
        // SYNC step-overwritten: the reads above end with an acquire fence, which pairs with the release fence before the engine
        // overwrites a record.
        let first = first_whole_step(transport.read_word(layout.step_log_head())?);
        let records = bytes.as_chunks::<{ STEP_RECORD_BYTES as usize }>().0;
        let whole = first.clamp(begin, head);
        out.extend(
            records[(whole - begin) as usize..]
                .iter()
                .map(StepRecord::decode),
        );
        Ok(NewSteps {
            next: head,
            num_missed: whole - next,
        })
    }
}

/// What a submit word and a status word say together; what no engine writes counts as empty.
fn state_of(submit: SlotWord, status: u64) -> State {
    match StatusWord::unpack(status) {
        Some(StatusWord {
            state: State::Empty,
            generation,
            ..
        }) if submit.lease != 0 && submit.generation == generation.wrapping_add(1) => {
            State::PrefillPending
        }
        Some(status) => status.state,
        None => State::Empty,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_submitted_and_not_claimed_is_pending() {
        let word = |generation, lease| SlotWord { generation, lease };
        let status = |state, generation| {
            StatusWord {
                generation,
                state,
                finish: None,
            }
            .pack()
        };
        for (submit, status, state) in [
            (word(0, 0), status(State::Empty, 0), State::Empty),
            (word(1, 3), status(State::Empty, 0), State::PrefillPending),
            (
                word(0, 3),
                status(State::Empty, u32::MAX),
                State::PrefillPending,
            ),
            (word(1, 3), status(State::Empty, 1), State::Empty),
            (
                word(1, 3),
                status(State::DecodeProcessing, 1),
                State::DecodeProcessing,
            ),
            (word(1, 3), 99, State::Empty),
        ] {
            assert_eq!(state_of(submit, status), state);
        }
    }
}
