//! Claiming a submission: copy once, check everything, then believe only the copy.

use core::ops::Range;

use super::{EngineRing, EngineSlot, Request, SlotResult};
use crate::error::BadRequest;
use crate::layout::{INPUT_ALIGN, OUTPUT_ALIGN, OUTPUT_BYTES, SlotIdx};
use crate::output::logprob_stride;
use crate::request::{
    BadWords, MAX_LOGPROBS, REQUEST_FLAGS, REQUEST_HAS_SEED, REQUEST_IGNORE_EOS, REQUEST_MASKED,
    REQUEST_PROMPT_LOGPROBS, RequestRecord, Span, mask_words,
};
use crate::words::{CountWord, MASK_BUFFERS, MAX_OUTPUT_TOKENS, State, StatusWord};

impl<M: AsRef<[EngineSlot]> + AsMut<[EngineSlot]>> EngineRing<M> {
    /// Takes a submission that [`scan`](Self::scan) announced: validates a copy of its record and
    /// shows the slot as `PREFILL_PROCESSING`. `now_ns` is the engine clock.
    ///
    /// The token ids in the arena are checked against the vocabulary here, but they stay where the
    /// front end can write: one that breaks the protocol can change them afterwards, so code that
    /// indexes by a token id must still not read out of bounds.
    ///
    /// # Errors
    /// When the record is wrong: the slot is complete with that error and nothing more is to be done
    /// for it.
    ///
    /// # Panics
    /// When the slot has no announced submission, or the engine has not been
    /// [described](Self::describe) yet.
    pub fn claim(&mut self, slot: SlotIdx, now_ns: u64) -> Result<Request, BadRequest> {
        assert!(
            self.vocab_size > 0,
            "describe the engine before claiming requests"
        );
        assert!(
            self.slot(slot).state == State::PrefillPending,
            "slot {} has no announced submission",
            slot.0
        );
        self.slot_mut(slot).claimed_ns = now_ns;
        if self.slot(slot).orphaned {
            self.empty(slot);
            return Err(BadRequest::LeaseRevoked);
        }
        // The scan that announced it acquired the submit word (SYNC slot-submitted).
        let record = RequestRecord::decode(&self.memory.record(self.layout.request_offset(slot)));
        if let Err(bad) = self.validate(slot, &record) {
            self.complete(
                slot,
                bad,
                &SlotResult {
                    completed_ns: now_ns,
                    ..SlotResult::default()
                },
            );
            return Err(bad);
        }
        let local = self.slot_mut(slot);
        local.record = record;
        local.state = State::PrefillProcessing;
        let generation = local.generation;
        self.store_count(
            slot,
            CountWord {
                generation,
                num_generated: 0,
                is_final: false,
            },
        );
        self.store_status(
            slot,
            StatusWord {
                generation,
                state: State::PrefillProcessing,
                finish: None,
            },
        );
        Ok(self.request(slot))
    }

    /// The request claimed in `slot`.
    pub fn request(&self, slot: SlotIdx) -> Request {
        let local = self.slot(slot);
        let record = &local.record;
        Request {
            slot,
            generation: local.generation,
            request_id: record.request_id,
            arrival_ns: record.arrival_ns,
            claimed_ns: local.claimed_ns,
            prompt_len: record.prompt.len,
            max_tokens: record.max_tokens,
            min_tokens: record.min_tokens,
            temperature: record.temperature,
            top_p: record.top_p,
            top_k: record.top_k,
            min_p: record.min_p,
            repetition_penalty: record.repetition_penalty,
            presence_penalty: record.presence_penalty,
            frequency_penalty: record.frequency_penalty,
            seed: (record.flags & REQUEST_HAS_SEED != 0).then_some(record.seed),
            ignore_eos: record.flags & REQUEST_IGNORE_EOS != 0,
            num_logprobs: u32::try_from(record.num_logprobs).ok(),
            priority: record.priority,
            is_masked: record.flags & REQUEST_MASKED != 0,
            num_prompt_logprobs: (record.flags & REQUEST_PROMPT_LOGPROBS != 0)
                .then_some(record.num_prompt_logprobs),
        }
    }

    fn validate(&self, slot: SlotIdx, record: &RequestRecord) -> Result<(), BadRequest> {
        ensure(
            record.generation == self.slot(slot).generation,
            BadRequest::Generation,
        )?;
        ensure(record.flags & !REQUEST_FLAGS == 0, BadRequest::Flags)?;
        validate_sampling(record)?;
        let lease = self.layout.lease_of(slot);
        let output = self.layout.lease_output(lease);
        validate_output(record, &output)?;
        validate_prompt_logprobs(record, &output)?;
        self.validate_input(record, &self.layout.lease_input(lease))
    }

    fn validate_input(&self, record: &RequestRecord, arena: &Range<u64>) -> Result<(), BadRequest> {
        let spans = [
            (record.prompt, 4, BadRequest::Prompt),
            (record.stop_ids, 4, BadRequest::StopIds),
            (record.bad_words, 4, BadRequest::BadWords),
            (record.allowed_ids, 4, BadRequest::AllowedIds),
            (record.logit_bias, 8, BadRequest::LogitBias),
            (record.masks, 8, BadRequest::TokenMask),
        ];
        for (span, element_bytes, bad) in spans {
            ensure(span_is_inside(span, element_bytes, arena), bad)?;
        }
        ensure(record.prompt.len > 0, BadRequest::Prompt)?;
        let masks_len = match record.flags & REQUEST_MASKED {
            0 => 0,
            _ => MASK_BUFFERS * mask_words(self.vocab_size),
        };
        ensure(record.masks.len == masks_len, BadRequest::TokenMask)?;
        let known = |&token: &u32| token < self.vocab_size;
        ensure(
            self.ids(record.prompt).iter().all(known),
            BadRequest::PromptToken,
        )?;
        ensure(
            self.ids(record.stop_ids).iter().all(known),
            BadRequest::StopIds,
        )?;
        ensure(
            self.ids(record.allowed_ids).iter().all(known),
            BadRequest::AllowedIds,
        )?;
        let mut lists = BadWords::new(self.ids(record.bad_words));
        ensure(
            lists.all(|list| !list.is_empty() && list.iter().all(known)),
            BadRequest::BadWords,
        )?;
        ensure(lists.rest().is_empty(), BadRequest::BadWords)?;
        let biases = self.biases(record.logit_bias);
        ensure(
            biases
                .iter()
                .all(|pair| known(&pair.token) && pair.bias.is_finite()),
            BadRequest::LogitBias,
        )
    }
}

fn ensure(holds: bool, bad: BadRequest) -> Result<(), BadRequest> {
    if holds { Ok(()) } else { Err(bad) }
}

fn validate_sampling(record: &RequestRecord) -> Result<(), BadRequest> {
    ensure(
        record.temperature.is_finite() && record.temperature >= 0.0,
        BadRequest::Temperature,
    )?;
    ensure(record.top_p > 0.0 && record.top_p <= 1.0, BadRequest::TopP)?;
    ensure((0.0..=1.0).contains(&record.min_p), BadRequest::MinP)?;
    ensure(
        record.repetition_penalty.is_finite() && record.repetition_penalty > 0.0,
        BadRequest::RepetitionPenalty,
    )?;
    ensure(
        record.presence_penalty.is_finite() && record.frequency_penalty.is_finite(),
        BadRequest::Penalty,
    )
}

fn validate_output(record: &RequestRecord, arena: &Range<u64>) -> Result<(), BadRequest> {
    let capacity = u64::from(record.output_capacity);
    let tokens_fit = range_is_inside(
        record.output_offset,
        capacity * OUTPUT_BYTES,
        OUTPUT_ALIGN,
        arena,
    );
    ensure(
        tokens_fit && record.output_capacity <= MAX_OUTPUT_TOKENS,
        BadRequest::Output,
    )?;
    ensure(
        (1..=record.output_capacity).contains(&record.max_tokens),
        BadRequest::MaxTokens,
    )?;
    ensure(
        record.min_tokens <= record.max_tokens,
        BadRequest::MinTokens,
    )?;
    ensure(
        (-1..=MAX_LOGPROBS).contains(&record.num_logprobs),
        BadRequest::Logprobs,
    )?;
    if record.num_logprobs >= 0 {
        let bytes = capacity * logprob_stride(record.num_logprobs);
        ensure(
            range_is_inside(record.logprobs_offset, bytes, INPUT_ALIGN, arena),
            BadRequest::Logprobs,
        )?;
    }
    Ok(())
}

fn validate_prompt_logprobs(record: &RequestRecord, arena: &Range<u64>) -> Result<(), BadRequest> {
    if record.flags & REQUEST_PROMPT_LOGPROBS == 0 {
        return Ok(());
    }
    ensure(
        record.num_prompt_logprobs <= MAX_LOGPROBS as u32,
        BadRequest::PromptLogprobs,
    )?;
    let num_records = u64::from(record.prompt.len.saturating_sub(1));
    let bytes = num_records * logprob_stride(record.num_prompt_logprobs as i32);
    ensure(
        range_is_inside(record.prompt_logprobs_offset, bytes, INPUT_ALIGN, arena),
        BadRequest::PromptLogprobs,
    )
}

fn span_is_inside(span: Span, element_bytes: u64, arena: &Range<u64>) -> bool {
    span.len == 0
        || range_is_inside(
            span.offset,
            u64::from(span.len) * element_bytes,
            INPUT_ALIGN,
            arena,
        )
}

fn range_is_inside(offset: u64, bytes: u64, align: u64, arena: &Range<u64>) -> bool {
    let end = offset.checked_add(bytes);
    offset.is_multiple_of(align) && offset >= arena.start && end.is_some_and(|end| end <= arena.end)
}
