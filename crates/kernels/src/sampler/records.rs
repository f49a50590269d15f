//! What host and device tell each other about rows and samples: plain words, mirrored in `cuda/sampler/state.cuh`.

use bytemuck::{Pod, Zeroable};

/// Most log-probabilities of one sample: the sampled token's and 128 of the likeliest.
pub const LOGPROB_ENTRIES: usize = 129;

/// Bits of [`SamplerRow::flags`].
#[derive(Debug, Clone, Copy)]
pub struct RowFlags;

impl RowFlags {
    /// The largest logit always wins.
    pub const GREEDY: u32 = 1;
    /// Nothing usable is bound: every sample fails with [`SamplerRow::error`].
    pub const BROKEN: u32 = 2;
    /// The row's bit mask counts.
    pub const HAS_MASK: u32 = 4;
    /// Prompt tokens are penalised.
    pub const COUNTS_PROMPT: u32 = 8;
    /// Generated tokens are counted and penalised.
    pub const COUNTS_GENERATED: u32 = 16;
    /// End-of-sequence tokens are ordinary ones.
    pub const IGNORE_EOS: u32 = 32;
    /// Every token waits for its own mask, which comes through the ring.
    pub const MASKED: u32 = 64;
}

/// The sampler's state of one sequence, beside its lists, mask and history. 128 bytes.
///
/// A row's lists are words in this order: stop ids; biases, each a token and an f32, those of one token neighbours in
/// the order in which they are added; bad words, each the last token, where its prefix stands (in words from the
/// start of the lists) and the prefix's length; the prefixes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct SamplerRow {
    /// Of [`RowFlags`].
    pub flags: u32,
    /// 1 / temperature.
    pub scale: f32,
    /// Nucleus; 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// Magnitude, as bits, of the smallest scaled logit that min-p keeps.
    pub max_key: u32,
    /// 1 does nothing.
    pub repetition_penalty: f32,
    /// 0 does nothing.
    pub presence_penalty: f32,
    /// 0 does nothing.
    pub frequency_penalty: f32,
    /// Key of the random numbers, low word first.
    pub philox_key: [u32; 2],
    /// No stop token before this many.
    pub min_tokens: u32,
    /// The sequence ends at this many.
    pub max_tokens: u32,
    /// Tokens in the prompt.
    pub prompt_len: u32,
    /// -1: no logprobs.
    pub num_top_logprobs: i32,
    /// In the lists.
    pub num_stop_ids: u32,
    /// In the lists.
    pub num_biases: u32,
    /// In the lists.
    pub num_bad_words: u32,
    /// Tokens generated so far; the device counts on.
    pub num_generated: u32,
    /// The reason a broken row gives.
    pub error: u32,
    /// Of a masked row: the generation that its mask word must carry.
    pub mask_generation: u32,
    /// Of a masked row: the devices' address of that word, which must stay mapped while the row is sampled.
    pub mask_word: u64,
    /// Of a masked row: the devices' address of the two masks, each `vocab_size.div_ceil(64)` words of 8 bytes.
    pub mask_area: u64,
    /// Zero.
    pub reserved: [u32; 8],
}

const _: () = assert!(size_of::<SamplerRow>() == 128);

impl SamplerRow {
    /// A row with nothing bound to it.
    #[must_use]
    pub fn unbound() -> Self {
        Self {
            flags: RowFlags::BROKEN,
            num_top_logprobs: -1,
            ..Self::zeroed()
        }
    }
}

/// A row that changes hands. 192 bytes; places count words from the first record.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct BindingRecord {
    /// The new state.
    pub state: SamplerRow,
    /// The row.
    pub row: u32,
    /// Where the lists are.
    pub lists_at: u32,
    /// Their words.
    pub num_list_words: u32,
    /// Where the mask is, one bit a token, if the row has one.
    pub mask_at: u32,
    /// Where the prompt's tokens are.
    pub prompt_at: u32,
    /// How many to mark as seen.
    pub num_prompt: u32,
    /// Where the generated tokens are.
    pub generated_at: u32,
    /// How many to count.
    pub num_generated: u32,
    /// Where the last generated tokens are.
    pub recent_at: u32,
    /// As many as bad words look back at.
    pub num_recent: u32,
    /// The newest token, the input of a decode that follows.
    pub last_token: u32,
    /// Zero.
    pub reserved: [u32; 5],
}

const _: () = assert!(size_of::<BindingRecord>() == 192);

/// How a sample turned out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRecord {
    /// The token, if there is one.
    pub token: u32,
    /// One of [`SampleStatus`].
    pub status: u32,
    /// Rank among the raw logits, from 1, if logprobs were asked for; the reason of a broken row.
    pub rank: u32,
    /// Log-probabilities written.
    pub num_logprobs: u32,
}

/// Bit of the status in [`Slot::head`]: `rank` and `num_logprobs` count.
const HAS_DETAILS: u32 = 128;

/// What the device writes of a sample, in pinned memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct Slot {
    /// Bits 0 to 31 the token, 32 to 39 the status, the rest the step's number plus one. Zero: nothing.
    pub(super) head: u64,
    rank: u32,
    num_logprobs: u32,
}

const _: () = assert!(size_of::<Slot>() == 16);

impl Slot {
    /// Whether a head is that of step `step`.
    pub(super) fn is_of(head: u64, step: u64) -> bool {
        head != 0 && head >> 40 == (step + 1) & 0xFF_FFFF
    }

    /// The record; `details` are read if they count.
    pub(super) fn record(head: u64, details: impl FnOnce() -> Self) -> SampleRecord {
        let status = (head >> 32) as u32 & 0xFF;
        let (rank, num_logprobs) = match status & HAS_DETAILS {
            0 => (0, 0),
            _ => {
                let slot = details();
                (slot.rank, slot.num_logprobs)
            }
        };
        SampleRecord {
            token: head as u32,
            status: status & !HAS_DETAILS,
            rank,
            num_logprobs,
        }
    }
}

/// Values of [`SampleRecord::status`].
#[derive(Debug, Clone, Copy)]
pub struct SampleStatus;

impl SampleStatus {
    /// A token, and the sequence goes on.
    pub const TOKEN: u32 = 1;
    /// An end-of-sequence token.
    pub const EOS: u32 = 2;
    /// One of the request's stop tokens.
    pub const STOP_TOKEN: u32 = 3;
    /// A token, the last one allowed.
    pub const MAX_TOKENS: u32 = 4;
    /// A token, and the context is full.
    pub const CONTEXT_END: u32 = 5;
    /// No token: a logit is not a number, or all are -∞.
    pub const NON_FINITE: u32 = 16;
    /// No token: the request's constraints left none.
    pub const NOTHING_ALLOWED: u32 = 17;
    /// No token: the row is broken.
    pub const ROW_BROKEN: u32 = 18;
    /// No token yet: its mask is not there, or the token before it was itself put off. The row is as it was.
    pub const DEFERRED: u32 = 19;
}

/// The log-probability of a token: natural logarithm, finite.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct SampleLogprob {
    /// The token.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DETAILS: Slot = Slot {
        head: 0,
        rank: 7,
        num_logprobs: 3,
    };

    #[test]
    fn head_holds_token_status_and_step() {
        let head = 0x12_3457 << 40 | u64::from(SampleStatus::EOS) << 32 | 0xFFFF_FFFE;
        assert!(Slot::is_of(head, 0x12_3456) && Slot::is_of(head, 0xAB00_0012_3456));
        assert!(!Slot::is_of(head, 0x12_3457) && !Slot::is_of(0, 0xFF_FFFF));
        let record = Slot::record(head, || unreachable!("no details"));
        assert_eq!(
            (record.token, record.status),
            (0xFFFF_FFFE, SampleStatus::EOS)
        );
        assert_eq!((record.rank, record.num_logprobs), (0, 0));
    }

    #[test]
    fn details_count_if_the_status_says_so() {
        let record = Slot::record(1 << 40 | 0x81 << 32 | 5, || DETAILS);
        assert_eq!((record.token, record.status), (5, SampleStatus::TOKEN));
        assert_eq!((record.rank, record.num_logprobs), (7, 3));
    }
}
