//! A [`Submission`] as the ring wants it: one request record, and lists in the input arena.

use izar_ring::{
    LogitBias, MASK_BUFFERS, MAX_LOGPROBS, MAX_OUTPUT_TOKENS, REQUEST_HAS_SEED, REQUEST_IGNORE_EOS,
    REQUEST_MASKED, REQUEST_PROMPT_LOGPROBS, RequestRecord, Span, bad_words_len, encode_bad_words,
    mask_words,
};

use super::outcome::SubmitError;
use super::submission::Submission;
use crate::{Transport, TransportError};

/// Every list starts on a multiple of this.
const ALIGN: usize = 8;

/// The lists of a submission other than the prompt, encoded, with their places relative to the input extent.
pub(super) struct Encoded {
    record: RequestRecord,
    prompt_bytes: usize,
    lists: Vec<u8>,
    /// Behind the lists: room for masks, which are not written yet.
    mask_bytes: usize,
}

/// What [`Encoded::write`] needs to know beyond the submission.
pub(super) struct Placement {
    pub(super) generation: u32,
    pub(super) request_id: u64,
    pub(super) arrival_ns: u64,
    /// Start of the input extent, byte offset in the region.
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) logprobs: u64,
    pub(super) prompt_logprobs: u64,
}

/// Checks what the engine could not even be asked, and encodes the rest.
pub(super) fn encode(submission: &Submission<'_>) -> Result<Encoded, SubmitError> {
    if submission.prompt.is_empty() {
        return Err(SubmitError::Invalid("the prompt has no tokens"));
    }
    if submission.max_tokens == 0 || submission.max_tokens > MAX_OUTPUT_TOKENS {
        return Err(SubmitError::Invalid(
            "max_tokens must be at least 1 and below 2^24",
        ));
    }
    let wanted = submission.logprobs.max(submission.prompt_logprobs);
    if wanted.is_some_and(|n| n > MAX_LOGPROBS as u32) {
        return Err(SubmitError::Invalid(
            "more log probabilities per token than the ring carries (128)",
        ));
    }
    if submission.bad_words.iter().any(|word| word.is_empty()) {
        return Err(SubmitError::Invalid("an empty bad word"));
    }
    if submission.allowed_token_ids.is_some_and(<[u32]>::is_empty) {
        return Err(SubmitError::Invalid("no token is allowed"));
    }
    let prompt_bytes = size_of_val(submission.prompt).next_multiple_of(ALIGN);
    let mut encoded = Encoded {
        record: scalars(submission),
        prompt_bytes,
        lists: Vec::new(),
        mask_bytes: 0,
    };
    encoded.record.stop_ids = encoded.append_ids(submission.stop_token_ids);
    encoded.record.allowed_ids =
        encoded.append_ids(submission.allowed_token_ids.unwrap_or_default());
    if !submission.bad_words.is_empty() {
        let mut words = vec![0; bad_words_len(submission.bad_words.iter().copied())];
        encode_bad_words(submission.bad_words.iter().copied(), &mut words).expect("sized for it");
        encoded.record.bad_words = encoded.append_ids(&words);
    }
    encoded.record.logit_bias = encoded.append(submission.logit_bias.len(), |lists| {
        for &(token, bias) in submission.logit_bias {
            lists.extend_from_slice(&LogitBias { token, bias }.encode());
        }
    });
    encoded.reserve_masks(submission.masked_vocab_size);
    Ok(encoded)
}

/// Everything of fixed size that is known before a slot is.
fn scalars(submission: &Submission<'_>) -> RequestRecord {
    let sampling = &submission.sampling;
    let ignore_eos = if submission.ignore_eos {
        REQUEST_IGNORE_EOS
    } else {
        0
    };
    let has_seed = if sampling.seed.is_some() {
        REQUEST_HAS_SEED
    } else {
        0
    };
    let is_masked = if submission.masked_vocab_size > 0 {
        REQUEST_MASKED
    } else {
        0
    };
    let has_prompt_logprobs = if submission.prompt_logprobs.is_some() {
        REQUEST_PROMPT_LOGPROBS
    } else {
        0
    };
    RequestRecord {
        flags: ignore_eos | has_seed | is_masked | has_prompt_logprobs,
        num_prompt_logprobs: submission.prompt_logprobs.unwrap_or(0),
        seed: sampling.seed.unwrap_or(0),
        output_capacity: submission.max_tokens,
        num_logprobs: submission.logprobs.map_or(-1, |n| n as i32),
        max_tokens: submission.max_tokens,
        min_tokens: submission.min_tokens,
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        priority: submission.priority,
        ..RequestRecord::default()
    }
}

impl Encoded {
    /// Appends one list of `len` elements; its span is relative to the input extent for now.
    fn append(&mut self, len: usize, put: impl FnOnce(&mut Vec<u8>)) -> Span {
        let offset = (self.prompt_bytes + self.lists.len()) as u64;
        put(&mut self.lists);
        self.lists
            .resize(self.lists.len().next_multiple_of(ALIGN), 0);
        Span {
            offset,
            len: len as u32,
            reserved: 0,
        }
    }

    fn append_ids(&mut self, ids: &[u32]) -> Span {
        self.append(ids.len(), |lists| {
            lists.extend_from_slice(bytemuck::cast_slice(ids))
        })
    }

    /// Leaves room for masks at the end of the input extent.
    fn reserve_masks(&mut self, vocab_size: u32) {
        let len = MASK_BUFFERS * mask_words(vocab_size);
        self.mask_bytes = len as usize * size_of::<u64>();
        self.record.masks = Span {
            offset: self.input_bytes() - self.mask_bytes as u64,
            len,
            reserved: 0,
        };
    }

    /// Where the mask area starts in the input extent.
    pub(super) fn masks_at(&self) -> u64 {
        self.record.masks.offset
    }

    /// As in the request record: -1 none, else how many alternatives.
    pub(super) fn num_logprobs(&self) -> i32 {
        self.record.num_logprobs
    }

    /// Bytes of input arena it takes.
    pub(super) fn input_bytes(&self) -> u64 {
        (self.prompt_bytes + self.lists.len() + self.mask_bytes) as u64
    }

    /// Writes payload and record; the submit word is the caller's to write afterwards.
    pub(super) fn write(
        mut self,
        prompt: &[u32],
        to: &Placement,
        transport: &dyn Transport,
        record_offset: u64,
    ) -> Result<(), TransportError> {
        let record = &mut self.record;
        record.generation = to.generation;
        record.request_id = to.request_id;
        record.arrival_ns = to.arrival_ns;
        record.output_offset = to.output;
        record.logprobs_offset = to.logprobs;
        record.prompt_logprobs_offset = to.prompt_logprobs;
        record.prompt = Span {
            offset: to.input,
            len: prompt.len() as u32,
            reserved: 0,
        };
        for span in [
            &mut record.stop_ids,
            &mut record.bad_words,
            &mut record.allowed_ids,
            &mut record.logit_bias,
            &mut record.masks,
        ] {
            span.offset += to.input;
        }
        transport.write(to.input, bytemuck::cast_slice(prompt))?;
        if !self.lists.is_empty() {
            transport.write(to.input + self.prompt_bytes as u64, &self.lists)?;
        }
        transport.write(record_offset, &self.record.encode())
    }
}
