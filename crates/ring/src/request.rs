//! The request record: what a front end writes before it submits a slot.

use crate::codec::record_codec;

/// Elements in the input arena: where they start and how many there are.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Byte offset from the start of the region, a multiple of 8. Not looked at when `len` is 0.
    pub offset: u64,
    /// Number of elements.
    pub len: u32,
    /// Zero.
    pub reserved: u32,
}

record_codec!(Span, 16, { offset, len, reserved });

/// Request flag: end-of-sequence tokens do not stop the sequence.
pub const REQUEST_IGNORE_EOS: u32 = 1;
/// Request flag: `seed` counts; without it the engine picks one.
pub const REQUEST_HAS_SEED: u32 = 2;
/// Request flag: every output token waits for a mask of its own, which the front end delivers while the request runs.
pub const REQUEST_MASKED: u32 = 4;
/// Request flag: log-probabilities of the prompt's tokens are wanted.
pub const REQUEST_PROMPT_LOGPROBS: u32 = 8;
/// Every flag this version knows.
pub const REQUEST_FLAGS: u32 = 15;

/// Most alternatives per token a request can ask log-probabilities for.
pub const MAX_LOGPROBS: i32 = 128;

/// One request, as it lies in the ring. All offsets count from the start of the region.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestRecord {
    /// Generation of the slot this record is for.
    pub generation: u32,
    /// `REQUEST_*` flags.
    pub flags: u32,
    /// The front end's name for the request, for logs; the engine does not interpret it.
    pub request_id: u64,
    /// When the request arrived, front-end clock, ns.
    pub arrival_ns: u64,
    /// Seed of the request's random numbers, if flagged.
    pub seed: u64,
    /// Prompt token ids, `u32` each; at least one.
    pub prompt: Span,
    /// Token ids that stop the sequence, `u32` each.
    pub stop_ids: Span,
    /// Token sequences that must not appear: `u32` words, lists of `[length, ids…]` back to back.
    pub bad_words: Span,
    /// If not empty, the only token ids allowed, `u32` each.
    pub allowed_ids: Span,
    /// Pairs [`LogitBias`].
    pub logit_bias: Span,
    /// If flagged, the mask area: [`MASK_BUFFERS`](crate::MASK_BUFFERS) masks of [`mask_words`] 8-byte words, one bit per
    /// vocabulary entry, low bit first; 0 forbids the token. The front end goes on writing here.
    pub masks: Span,
    /// Where output token records go, a multiple of 16.
    pub output_offset: u64,
    /// Where log-probability records go, a multiple of 8; ignored when `num_logprobs` is -1.
    pub logprobs_offset: u64,
    /// Output records (and log-probability records) there is room for.
    pub output_capacity: u32,
    /// -1: none. 0: of the sampled token only. n: also of the n most likely tokens.
    pub num_logprobs: i32,
    /// Most tokens to produce, 1 to `output_capacity`.
    pub max_tokens: u32,
    /// No stop or end-of-sequence token before this many tokens.
    pub min_tokens: u32,
    /// 0: greedy.
    pub temperature: f32,
    /// Nucleus, in (0, 1]; 1: off.
    pub top_p: f32,
    /// 0: off.
    pub top_k: u32,
    /// In [0, 1], relative to the most likely token; 0: off.
    pub min_p: f32,
    /// Above 0; 1: off. Applies to prompt and output tokens.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens already produced; 0: off.
    pub presence_penalty: f32,
    /// Subtracted per time a token was produced; 0: off.
    pub frequency_penalty: f32,
    /// Smaller runs sooner.
    pub priority: i32,
    /// If flagged, where log-probability records of the prompt go, a multiple of 8: one for each token but the first.
    pub prompt_logprobs_offset: u64,
    /// If flagged, the most likely tokens wanted for each token of the prompt, besides the token itself.
    pub num_prompt_logprobs: u32,
    /// Zero.
    pub reserved: [u8; 52],
}

record_codec!(RequestRecord, 256, {
    generation,
    flags,
    request_id,
    arrival_ns,
    seed,
    prompt,
    stop_ids,
    bad_words,
    allowed_ids,
    logit_bias,
    masks,
    output_offset,
    logprobs_offset,
    output_capacity,
    num_logprobs,
    max_tokens,
    min_tokens,
    temperature,
    top_p,
    top_k,
    min_p,
    repetition_penalty,
    presence_penalty,
    frequency_penalty,
    priority,
    prompt_logprobs_offset,
    num_prompt_logprobs,
    reserved,
});

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(RequestRecord, request_id) == 8);
    assert!(offset_of!(RequestRecord, prompt) == 32);
    assert!(offset_of!(RequestRecord, stop_ids) == 48);
    assert!(offset_of!(RequestRecord, bad_words) == 64);
    assert!(offset_of!(RequestRecord, allowed_ids) == 80);
    assert!(offset_of!(RequestRecord, logit_bias) == 96);
    assert!(offset_of!(RequestRecord, masks) == 112);
    assert!(offset_of!(RequestRecord, output_offset) == 128);
    assert!(offset_of!(RequestRecord, output_capacity) == 144);
    assert!(offset_of!(RequestRecord, temperature) == 160);
    assert!(offset_of!(RequestRecord, priority) == 188);
    assert!(offset_of!(RequestRecord, prompt_logprobs_offset) == 192);
    assert!(offset_of!(RequestRecord, reserved) == 204);
};

impl Default for RequestRecord {
    /// Greedy, no penalties, no limits; prompt, output range and `max_tokens` are still to be filled in.
    fn default() -> Self {
        UNFILLED
    }
}

const NO_SPAN: Span = Span {
    offset: 0,
    len: 0,
    reserved: 0,
};
/// Greedy, no penalties, no limits; prompt, output range and `max_tokens` are still to be filled in.
pub(crate) const UNFILLED: RequestRecord = RequestRecord {
    generation: 0,
    flags: 0,
    request_id: 0,
    arrival_ns: 0,
    seed: 0,
    prompt: NO_SPAN,
    stop_ids: NO_SPAN,
    bad_words: NO_SPAN,
    allowed_ids: NO_SPAN,
    logit_bias: NO_SPAN,
    masks: NO_SPAN,
    output_offset: 0,
    logprobs_offset: 0,
    output_capacity: 0,
    num_logprobs: -1,
    max_tokens: 0,
    min_tokens: 0,
    temperature: 0.0,
    top_p: 1.0,
    top_k: 0,
    min_p: 0.0,
    repetition_penalty: 1.0,
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
    priority: 0,
    prompt_logprobs_offset: 0,
    num_prompt_logprobs: 0,
    reserved: [0; 52],
};

/// Words of 8 bytes that one token mask takes.
pub const fn mask_words(vocab_size: u32) -> u32 {
    vocab_size.div_ceil(64)
}

/// One pair of a logit-bias span.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitBias {
    /// Token id.
    pub token: u32,
    /// Added to the token's logit before anything else; finite.
    pub bias: f32,
}

record_codec!(LogitBias, 8, { token, bias });

/// `u32` words that [`encode_bad_words`] needs for these lists.
pub fn bad_words_len<'a>(lists: impl IntoIterator<Item = &'a [u32]>) -> usize {
    lists.into_iter().map(|list| 1 + list.len()).sum()
}

/// Writes lists of token ids in the ring's form, `[length, ids…]` back to back, and returns how many
/// words that took; `None` if `out` is too short ([`bad_words_len`] tells).
pub fn encode_bad_words<'a>(
    lists: impl IntoIterator<Item = &'a [u32]>,
    out: &mut [u32],
) -> Option<usize> {
    let mut at = 0;
    for list in lists {
        *out.get_mut(at)? = u32::try_from(list.len()).ok()?;
        out.get_mut(at + 1..at + 1 + list.len())?
            .copy_from_slice(list);
        at += 1 + list.len();
    }
    Some(at)
}

/// The lists of a bad-word span. Stops at the first list that does not fit, so that words changed
/// behind the engine's back cannot lead it out of the span.
#[derive(Clone, Debug)]
pub struct BadWords<'a> {
    rest: &'a [u32],
}

impl<'a> BadWords<'a> {
    /// Reads `words`, lists of `[length, ids…]` back to back.
    pub const fn new(words: &'a [u32]) -> Self {
        Self { rest: words }
    }

    /// Words not read yet; empty after the last list if the lists added up.
    pub const fn rest(&self) -> &'a [u32] {
        self.rest
    }
}

impl<'a> Iterator for BadWords<'a> {
    type Item = &'a [u32];

    fn next(&mut self) -> Option<&'a [u32]> {
        let (&len, rest) = self.rest.split_first()?;
        let list = rest.get(..len as usize)?;
        self.rest = &rest[list.len()..];
        Some(list)
    }
}
