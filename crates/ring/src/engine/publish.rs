//! What the engine tells the front end about a request: tokens, states, the end.

use super::{EngineRing, EngineSlot};
use crate::layout::{OUTPUT_BYTES, SlotIdx};
use crate::output::{
    LogprobEntry, LogprobHead, NO_STOP_TOKEN, OUTPUT_HAS_LOGPROBS, ResultRecord, logprob_stride,
};
use crate::request::REQUEST_PROMPT_LOGPROBS;
use crate::sync::{Ordering, fence};
use crate::words::{CountWord, FinishReason, State, StatusWord};

/// One token to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputToken {
    /// Token id.
    pub token: u32,
    /// When it was produced, ns, on the clock of the device that did.
    pub timestamp_ns: u64,
}

/// Log-probabilities that go with a token.
#[derive(Clone, Copy, Debug)]
pub struct TokenLogprobs<'a> {
    /// Rank of the sampled token, 1 for the most likely.
    pub rank: u32,
    /// The sampled token, then the most likely ones, best first. Entries beyond what the request
    /// asked for are not published.
    pub entries: &'a [LogprobEntry],
}

/// What the engine knows about a request that ends, beyond its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotResult {
    /// When it was complete, engine clock, ns.
    pub completed_ns: u64,
    /// Prompt tokens whose KV came from the prefix cache.
    pub num_cached_tokens: u32,
    /// Times it was preempted.
    pub num_preemptions: u32,
    /// The token that stopped it, if one did.
    pub stop_token: Option<u32>,
}

impl<M: AsRef<[EngineSlot]> + AsMut<[EngineSlot]>> EngineRing<M> {
    /// Shows a claimed request as processing or paused.
    ///
    /// A sequence that is preempted before its first token stays in prefill: `DecodePaused` and
    /// `DecodeProcessing` are shown once there is a token. The first
    /// [`publish_token`](Self::publish_token) moves the slot to `DecodeProcessing` by itself.
    ///
    /// # Panics
    /// When the slot is not running or `state` is not one of the three running states.
    pub fn set_state(&mut self, slot: SlotIdx, state: State) {
        let local = self.slot_mut(slot);
        assert!(
            local.is_running(),
            "slot {} is {:?}, not running",
            slot.0,
            local.state
        );
        assert!(
            matches!(
                state,
                State::PrefillProcessing | State::DecodeProcessing | State::DecodePaused
            ),
            "{state:?} is not a running state"
        );
        if local.num_generated == 0 || local.state == state {
            return;
        }
        assert!(
            state != State::PrefillProcessing,
            "slot {} has tokens and cannot return to prefill",
            slot.0
        );
        local.state = state;
        let generation = local.generation;
        self.store_status(
            slot,
            StatusWord {
                generation,
                state,
                finish: None,
            },
        );
    }

    /// Appends a token to a running request's output and makes it readable.
    ///
    /// `logprobs` are published if the request asked for them and are ignored otherwise.
    ///
    /// # Panics
    /// When the slot is not running or already has `max_tokens` tokens.
    pub fn publish_token(
        &mut self,
        slot: SlotIdx,
        token: OutputToken,
        logprobs: Option<TokenLogprobs<'_>>,
    ) {
        self.stage_token(slot, token, logprobs);
        self.show_tokens([slot]);
    }

    /// Appends a token to a running request's output. It becomes readable with [`show_tokens`](Self::show_tokens), before
    /// which the request gets no other.
    ///
    /// # Panics
    /// As [`publish_token`](Self::publish_token).
    pub fn stage_token(
        &mut self,
        slot: SlotIdx,
        token: OutputToken,
        logprobs: Option<TokenLogprobs<'_>>,
    ) {
        let local = self.slot_mut(slot);
        assert!(
            local.is_running(),
            "slot {} is {:?}, not running",
            slot.0,
            local.state
        );
        let index = local.num_generated;
        assert!(
            index < local.record.max_tokens,
            "slot {} already has its {index} tokens",
            slot.0
        );
        local.num_generated = index + 1;
        if index == 0 {
            local.first_token_ns = token.timestamp_ns;
        }
        let record = &self.slot(slot).record;
        let mut flags = 0;
        if let Some(logprobs) = logprobs.filter(|_| record.num_logprobs >= 0) {
            let stride = logprob_stride(record.num_logprobs);
            self.store_logprobs(
                record.logprobs_offset + u64::from(index) * stride,
                stride,
                logprobs,
            );
            flags = OUTPUT_HAS_LOGPROBS;
        }
        let at = record.output_offset + u64::from(index) * OUTPUT_BYTES;
        self.memory
            .store_payload(at, u64::from(flags) << 32 | u64::from(token.token));
        self.memory.store_payload(at + 8, token.timestamp_ns);
    }

    /// Makes the staged tokens of these slots readable, behind one fence: ordering one by one is what costs where the ring is far.
    pub fn show_tokens(&mut self, slots: impl IntoIterator<Item = SlotIdx>) {
        // SYNC token-published: with the relaxed stores of the counts below, pairs with the acquire of a bulk progress read.
        // Makes the output and log-probability records visible before the counts that cover them.
        fence(Ordering::Release);
        for slot in slots {
            let local = self.slot(slot);
            let count = CountWord {
                generation: local.generation,
                num_generated: local.num_generated,
                is_final: false,
            };
            let is_first = local.num_generated == 1;
            self.memory
                .word(self.layout.progress_offset(slot) + 8)
                .store(count.pack(), Ordering::Relaxed);
            if is_first {
                self.set_state(slot, State::DecodeProcessing);
            }
        }
    }

    /// Writes the log-probabilities of the prompt token at `position`, if the request asked for them. They become readable with
    /// the next token published, or at the end; until then they may be written again.
    ///
    /// # Panics
    /// When the slot is not running, or already has a token, or the prompt has no such token after its first.
    pub fn store_prompt_logprobs(
        &mut self,
        slot: SlotIdx,
        position: u32,
        logprobs: TokenLogprobs<'_>,
    ) {
        let local = self.slot(slot);
        assert!(
            local.is_running() && local.num_generated == 0,
            "slot {} is {:?} with {} tokens: its prompt is being read",
            slot.0,
            local.state,
            local.num_generated
        );
        let record = &local.record;
        assert!(
            (1..record.prompt.len).contains(&position),
            "slot {} has no prompt token {position} after its first",
            slot.0
        );
        if record.flags & REQUEST_PROMPT_LOGPROBS != 0 {
            let stride = logprob_stride(record.num_prompt_logprobs as i32);
            let offset = record.prompt_logprobs_offset + u64::from(position - 1) * stride;
            self.store_logprobs(offset, stride, logprobs);
        }
    }

    fn store_logprobs(&self, offset: u64, stride: u64, logprobs: TokenLogprobs<'_>) {
        let room = (stride / 8 - 1) as usize;
        let entries = &logprobs.entries[..logprobs.entries.len().min(room)];
        let head = LogprobHead {
            rank: logprobs.rank,
            num_entries: entries.len() as u32,
        };
        self.store_record(offset, &head.encode());
        for (i, entry) in entries.iter().enumerate() {
            self.store_record(offset + 8 + 8 * i as u64, &entry.encode());
        }
    }

    /// Ends a request. Its slot stays readable until the front end recycles it; if the front end is
    /// gone the slot is empty at once.
    ///
    /// Also ends a submission that was announced but not claimed (an engine that is stopping).
    ///
    /// # Panics
    /// When the slot is empty or already complete.
    pub fn complete(
        &mut self,
        slot: SlotIdx,
        reason: impl Into<FinishReason>,
        result: &SlotResult,
    ) {
        let local = self.slot_mut(slot);
        assert!(
            local.is_running() || local.state == State::PrefillPending,
            "slot {} is {:?} and cannot be completed",
            slot.0,
            local.state
        );
        local.state = State::DecodeCompleted;
        let EngineSlot {
            generation,
            num_generated,
            claimed_ns,
            first_token_ns,
            orphaned,
            ..
        } = *local;
        let record = ResultRecord {
            generation,
            stop_token: result.stop_token.unwrap_or(NO_STOP_TOKEN),
            claimed_ns,
            first_token_ns,
            completed_ns: result.completed_ns,
            num_cached_tokens: result.num_cached_tokens,
            num_preemptions: result.num_preemptions,
            num_generated,
            reserved: [0; 20],
        };
        self.store_record(self.layout.result_offset(slot), &record.encode());
        self.store_count(
            slot,
            CountWord {
                generation,
                num_generated,
                is_final: true,
            },
        );
        let finish = Some(reason.into());
        self.store_status(
            slot,
            StatusWord {
                generation,
                state: State::DecodeCompleted,
                finish,
            },
        );
        if orphaned {
            self.empty(slot);
        }
    }

    pub(super) fn store_count(&self, slot: SlotIdx, count: CountWord) {
        // SYNC token-published: pairs with the acquire of a bulk progress read (`RingMemory::read`
        // or the transport's). Makes the output and log-probability records visible before the
        // count that covers them.
        self.memory
            .word(self.layout.progress_offset(slot) + 8)
            .store(count.pack(), Ordering::Release);
    }
}
