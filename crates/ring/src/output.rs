//! What the engine writes for the front end to read: output tokens, log-probabilities, results.

use crate::codec::record_codec;
use crate::layout::{OUTPUT_BYTES, RESULT_BYTES};

/// Output flag: a log-probability record accompanies the token.
pub const OUTPUT_HAS_LOGPROBS: u32 = 1;

/// One output token as it lies in the output arena.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputRecord {
    /// Token id.
    pub token: u32,
    /// `OUTPUT_*` flags.
    pub flags: u32,
    /// When the engine produced it, on the clock of the device that did, ns.
    pub timestamp_ns: u64,
}

record_codec!(OutputRecord, OUTPUT_BYTES as usize, { token, flags, timestamp_ns });

/// Log-probability of one token.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogprobEntry {
    /// Token id.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

record_codec!(LogprobEntry, 8, { token, logprob });

/// First 8 bytes of a log-probability record; the entries follow: the sampled token, then the most
/// likely ones, best first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogprobHead {
    /// Rank of the sampled token, 1 for the most likely.
    pub rank: u32,
    /// Entries that follow, at most `1 + num_logprobs`.
    pub num_entries: u32,
}

record_codec!(LogprobHead, 8, { rank, num_entries });

/// Bytes of one log-probability record of a request that asked for `num_logprobs` alternatives;
/// record `i` starts `i` times that many bytes after `logprobs_offset`. 0 if it asked for none.
pub const fn logprob_stride(num_logprobs: i32) -> u64 {
    if num_logprobs < 0 {
        0
    } else {
        8 + 8 * (1 + num_logprobs as u64)
    }
}

/// Decodes one log-probability record of [`logprob_stride`] bytes: the head and the entries.
///
/// `None` if `record` is shorter than the entries its head announces.
pub fn decode_logprobs(
    record: &[u8],
) -> Option<(
    LogprobHead,
    impl ExactSizeIterator<Item = LogprobEntry> + '_,
)> {
    let (head, rest) = record.split_first_chunk::<8>()?;
    let head = LogprobHead::decode(head);
    let entries = rest.get(..8 * head.num_entries as usize)?;
    let entries = entries.chunks_exact(8).map(|bytes| {
        let mut entry = [0; 8];
        entry.copy_from_slice(bytes);
        LogprobEntry::decode(&entry)
    });
    Some((head, entries))
}

/// `stop_token` of a [`ResultRecord`] when no token stopped the sequence.
pub const NO_STOP_TOKEN: u32 = u32::MAX;

/// What the engine says about a finished request, beyond its tokens. Written before the slot reads
/// completed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultRecord {
    /// Generation this is about.
    pub generation: u32,
    /// Id of the token that stopped the sequence, or [`NO_STOP_TOKEN`].
    pub stop_token: u32,
    /// When the engine claimed it, engine clock, ns.
    pub claimed_ns: u64,
    /// Timestamp of its first output token, ns; 0 if it has none.
    pub first_token_ns: u64,
    /// When it was complete, engine clock, ns.
    pub completed_ns: u64,
    /// Prompt tokens whose KV came from the prefix cache.
    pub num_cached_tokens: u32,
    /// Times it was preempted.
    pub num_preemptions: u32,
    /// Output tokens, as in the final count word.
    pub num_generated: u32,
    /// Zero.
    pub reserved: [u8; 20],
}

record_codec!(ResultRecord, RESULT_BYTES as usize, {
    generation,
    stop_token,
    claimed_ns,
    first_token_ns,
    completed_ns,
    num_cached_tokens,
    num_preemptions,
    num_generated,
    reserved,
});

impl ResultRecord {
    /// The stop token, if one stopped the sequence.
    pub const fn stop_token(&self) -> Option<u32> {
        if self.stop_token == NO_STOP_TOKEN {
            None
        } else {
            Some(self.stop_token)
        }
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(OutputRecord, timestamp_ns) == 8);
    assert!(offset_of!(ResultRecord, claimed_ns) == 8);
    assert!(offset_of!(ResultRecord, completed_ns) == 24);
    assert!(offset_of!(ResultRecord, num_cached_tokens) == 32);
    assert!(offset_of!(ResultRecord, num_generated) == 40);
};
