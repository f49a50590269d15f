//! `expand_plan`: from a step's plan to the arrays that its kernels read.
//!
//! The host writes a compact plan with a [`PlanWriter`], copies it to the device in one piece, and the step's first kernel
//! fills [`StepInputs`]. Tokens of decodes come from what the rows sampled last, so a step can be launched before the
//! one before it has ended.

use bytemuck::{Pod, Zeroable};

use crate::device::Device;
use crate::error::{CudaError, check};
use crate::ffi::{self, ExpandPlanArgs};
use crate::memory::DeviceBuffer;
use crate::step_mark::StepMarks;
use crate::stream::Stream;

/// Words of the plan's header.
const HEADER_WORDS: usize = 16;
/// Words of an entry.
const ENTRY_WORDS: usize = 8;
/// Marks an entry that does not sample.
const NO_SAMPLE: u32 = u32::MAX;

/// Counts of the running step, on the device. 64 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct StepMeta {
    /// Entries: sequences in the step.
    pub num_entries: u32,
    /// Tokens of all entries.
    pub num_tokens: u32,
    /// The first `num_decodes` entries are decodes: token index = entry index.
    pub num_decodes: u32,
    /// Entries that sample.
    pub num_samples: u32,
    /// Number of the step.
    pub step: u64,
    unused: [u32; 10],
}

const _: () = assert!(size_of::<StepMeta>() == 64);

/// What the kernels of a step read. Beyond the step's counts is padding: a token of padding has id and position 0 and
/// `kv_slots` `u32::MAX`, an entry of padding has lengths 0, a sample of padding token and row 0.
#[derive(Debug)]
pub struct StepInputs {
    /// One element.
    pub meta: DeviceBuffer<StepMeta>,
    /// `[max_num_tokens]`: the token's id.
    pub token_ids: DeviceBuffer<u32>,
    /// `[max_num_tokens]`: its position in its sequence.
    pub positions: DeviceBuffer<u32>,
    /// `[max_num_tokens]`: where its keys and values go, block * 16 + offset.
    pub kv_slots: DeviceBuffer<u32>,
    /// `[max_num_seqs]`: the entry's first token.
    pub query_starts: DeviceBuffer<u32>,
    /// `[max_num_seqs]`: its tokens.
    pub query_lens: DeviceBuffer<u32>,
    /// `[max_num_seqs]`: tokens of its sequence in the cache once the step has run.
    pub seq_lens: DeviceBuffer<u32>,
    /// `[max_num_seqs]`: `seq_lens` of decodes, 0 for other entries.
    pub decode_seq_lens: DeviceBuffer<u32>,
    /// `[max_num_seqs, max_blocks_per_seq]`: block ids of its sequence; only those below its length are valid.
    pub block_tables: DeviceBuffer<u32>,
    /// `[max_num_seqs]`: the token whose hidden state the sample is drawn from.
    pub sample_tokens: DeviceBuffer<u32>,
    /// `[max_num_seqs]`: the row of sampler state that it belongs to.
    pub sample_rows: DeviceBuffer<u32>,
    max_blocks_per_seq: u32,
}

impl StepInputs {
    /// Room for steps of up to `max_num_tokens` tokens and `max_num_seqs` entries.
    ///
    /// # Errors
    /// Those of the allocations.
    pub fn new(
        device: &Device,
        max_num_tokens: u32,
        max_num_seqs: u32,
        max_blocks_per_seq: u32,
    ) -> Result<Self, CudaError> {
        let (tokens, seqs) = (max_num_tokens as usize, max_num_seqs as usize);
        let new = |len| DeviceBuffer::new(device, len);
        Ok(Self {
            meta: DeviceBuffer::new(device, 1)?,
            token_ids: new(tokens)?,
            positions: new(tokens)?,
            kv_slots: new(tokens)?,
            query_starts: new(seqs)?,
            query_lens: new(seqs)?,
            seq_lens: new(seqs)?,
            decode_seq_lens: new(seqs)?,
            block_tables: new(seqs * max_blocks_per_seq as usize)?,
            sample_tokens: new(seqs)?,
            sample_rows: new(seqs)?,
            max_blocks_per_seq,
        })
    }

    /// Row stride of `block_tables`.
    #[must_use]
    pub fn max_blocks_per_seq(&self) -> u32 {
        self.max_blocks_per_seq
    }
}

/// Writes a plan into a slice of words: [`PlanWriter::new`], entries in order with their tokens and blocks, [`PlanWriter::finish`].
///
/// Words that a plan of `num_entries` entries and `num_tokens` tokens takes: [`PlanWriter::words`].
#[derive(Debug)]
pub struct PlanWriter<'a> {
    words: &'a mut [u32],
    num_entries: usize,
    num_tokens: usize,
    num_decodes: u32,
    num_samples: u32,
    next_entry: usize,
    next_token: usize,
    blocks_per_row: usize,
}

impl<'a> PlanWriter<'a> {
    /// Words of a plan.
    #[must_use]
    pub fn words(num_entries: usize, num_tokens: usize, blocks_per_row: usize) -> usize {
        HEADER_WORDS + num_entries * (ENTRY_WORDS + blocks_per_row) + num_tokens
    }

    /// Begins a plan for exactly so many entries and tokens.
    ///
    /// # Panics
    /// If `words` is shorter than the plan.
    pub fn new(
        words: &'a mut [u32],
        num_entries: usize,
        num_tokens: usize,
        blocks_per_row: usize,
    ) -> Self {
        let len = Self::words(num_entries, num_tokens, blocks_per_row);
        Self {
            words: &mut words[..len],
            num_entries,
            num_tokens,
            num_decodes: 0,
            num_samples: 0,
            next_entry: 0,
            next_token: 0,
            blocks_per_row,
        }
    }

    fn tokens_at(&self) -> usize {
        HEADER_WORDS + self.num_entries * ENTRY_WORDS
    }

    fn tables_at(&self) -> usize {
        self.tokens_at() + self.num_tokens
    }

    /// Adds a decode: one token at `position`, whose id is what `row` sampled last. Decodes come before prefills.
    ///
    /// # Panics
    /// If a prefill was added before, there are more entries than promised, or a block is missing.
    pub fn decode(&mut self, row: u32, position: u32, blocks: &[u32], samples: bool) {
        assert_eq!(
            self.num_decodes as usize, self.next_entry,
            "a decode after a prefill"
        );
        self.num_decodes += 1;
        self.words[self.tokens_at() + self.next_token] = 0;
        self.entry(row, position, 1, blocks, samples);
    }

    /// Adds a chunk of a prompt: `token_ids` from position `start` on.
    ///
    /// # Panics
    /// If there are more entries or tokens than promised, or a block is missing.
    pub fn prefill(
        &mut self,
        row: u32,
        start: u32,
        token_ids: &[u32],
        blocks: &[u32],
        samples: bool,
    ) {
        let at = self.tokens_at() + self.next_token;
        self.words[at..at + token_ids.len()].copy_from_slice(token_ids);
        self.entry(row, start, token_ids.len() as u32, blocks, samples);
    }

    fn entry(&mut self, row: u32, start: u32, num_tokens: u32, blocks: &[u32], samples: bool) {
        let (idx, first_token) = (self.next_entry, self.next_token as u32);
        let end = (start + num_tokens) as usize;
        assert!(
            idx < self.num_entries && self.next_token + num_tokens as usize <= self.num_tokens,
            "more entries or tokens than the plan was begun for"
        );
        assert!(
            num_tokens > 0 && end.div_ceil(16) <= blocks.len(),
            "{} blocks for {end} tokens",
            blocks.len()
        );
        let sample = if samples { self.num_samples } else { NO_SAMPLE };
        self.num_samples += u32::from(samples);
        let words = [
            row,
            start,
            num_tokens,
            first_token,
            blocks.len() as u32,
            sample,
            0,
            0,
        ];
        let at = HEADER_WORDS + idx * ENTRY_WORDS;
        self.words[at..at + ENTRY_WORDS].copy_from_slice(&words);
        let at = self.tables_at() + idx * self.blocks_per_row;
        self.words[at..at + self.blocks_per_row][..blocks.len()].copy_from_slice(blocks);
        self.next_entry += 1;
        self.next_token += num_tokens as usize;
    }

    /// Ends the plan of step `step` and returns its length in words.
    ///
    /// # Panics
    /// If there are fewer entries or tokens than promised.
    pub fn finish(self, step: u64) -> usize {
        assert_eq!(
            (self.next_entry, self.next_token),
            (self.num_entries, self.num_tokens),
            "entries and tokens of the plan"
        );
        let (tokens_at, tables_at) = (self.tokens_at() as u32, self.tables_at() as u32);
        let header = [
            self.num_entries as u32,
            self.num_tokens as u32,
            self.num_decodes,
            self.num_samples,
            step as u32,
            (step >> 32) as u32,
            tokens_at,
            tables_at,
            self.blocks_per_row as u32,
        ];
        self.words[..header.len()].copy_from_slice(&header);
        self.words[header.len()..HEADER_WORDS].fill(0);
        self.words.len()
    }
}

/// One expansion, for a bucket of `bucket_tokens` tokens and `bucket_seqs` entries.
#[derive(Debug, Clone, Copy)]
pub struct ExpandPlan<'a> {
    /// What a [`PlanWriter`] wrote; the step must fit the bucket.
    pub plan: &'a DeviceBuffer<u32>,
    /// `[max_num_seqs]`: the token each row sampled last.
    pub last_tokens: &'a DeviceBuffer<u32>,
    /// Filled.
    pub inputs: &'a StepInputs,
    /// Where to note that the step has started.
    pub marks: Option<&'a StepMarks>,
    /// Tokens of the bucket.
    pub bucket_tokens: u32,
    /// Entries of the bucket.
    pub bucket_seqs: u32,
}

/// Why a plan was not expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExpandPlanError {
    /// The bucket is larger than the arrays.
    #[error(
        "expand_plan: a bucket of {tokens} tokens and {seqs} entries, but room for {max_tokens} and {max_seqs}"
    )]
    Bucket {
        /// Tokens of the bucket.
        tokens: u32,
        /// Entries of the bucket.
        seqs: u32,
        /// Tokens there is room for.
        max_tokens: usize,
        /// Entries there is room for.
        max_seqs: usize,
    },
    /// The launch failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Launches one expansion into `stream`.
///
/// # Errors
/// [`ExpandPlanError`]; nothing is launched then.
pub fn expand_plan(stream: &Stream, step: &ExpandPlan<'_>) -> Result<(), ExpandPlanError> {
    let ExpandPlan {
        plan,
        last_tokens,
        inputs,
        marks,
        bucket_tokens,
        bucket_seqs,
    } = *step;
    let (max_tokens, max_seqs) = (
        inputs.token_ids.len(),
        inputs.seq_lens.len().min(last_tokens.len()),
    );
    if bucket_tokens as usize > max_tokens || bucket_seqs as usize > max_seqs || bucket_seqs == 0 {
        return Err(ExpandPlanError::Bucket {
            tokens: bucket_tokens,
            seqs: bucket_seqs,
            max_tokens,
            max_seqs,
        });
    }
    let args = ExpandPlanArgs {
        plan: plan.address_of(0),
        last_tokens: last_tokens.address_of(0),
        meta: inputs.meta.address_of(0),
        token_ids: inputs.token_ids.address_of(0),
        positions: inputs.positions.address_of(0),
        kv_slots: inputs.kv_slots.address_of(0),
        query_starts: inputs.query_starts.address_of(0),
        query_lens: inputs.query_lens.address_of(0),
        seq_lens: inputs.seq_lens.address_of(0),
        decode_seq_lens: inputs.decode_seq_lens.address_of(0),
        block_tables: inputs.block_tables.address_of(0),
        sample_tokens: inputs.sample_tokens.address_of(0),
        sample_rows: inputs.sample_rows.address_of(0),
        marks: marks.map_or(std::ptr::null_mut(), StepMarks::address),
        bucket_tokens,
        bucket_seqs,
        max_blocks_per_seq: inputs.max_blocks_per_seq,
        unused: 0,
    };
    let raw = stream.for_launch()?;
    // SAFETY: the bucket fits the arrays; the plan was written by a `PlanWriter`, which keeps to its own sizes, and that it
    // fits the bucket is the caller's promise, whose breach faults on the device.
    check("expand_plan", unsafe { ffi::izar_expand_plan(&args, raw) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_is_laid_out_as_the_kernel_reads_it() {
        let mut words = vec![9; 100];
        let mut writer = PlanWriter::new(&mut words, 2, 4, 3);
        writer.decode(5, 32, &[7, 8, 6], true);
        writer.prefill(1, 0, &[11, 12, 13], &[3], false);
        let len = writer.finish(1 << 32);
        assert_eq!(len, PlanWriter::words(2, 4, 3));
        let header = [2, 4, 1, 1, 0, 1, 32, 36, 3, 0];
        assert_eq!(words[..10], header);
        assert_eq!(words[16..24], [5, 32, 1, 0, 3, 0, 0, 0]);
        assert_eq!(words[24..32], [1, 0, 3, 1, 1, NO_SAMPLE, 0, 0]);
        assert_eq!(words[32..36], [0, 11, 12, 13]);
        assert_eq!((&words[36..39], words[39]), (&[7, 8, 6][..], 3));
        assert_eq!(words[len..], vec![9; 100 - len]);
    }

    #[test]
    #[should_panic(expected = "2 blocks for 33 tokens")]
    fn missing_block_is_noticed() {
        PlanWriter::new(&mut [0; 100], 1, 1, 3).decode(0, 32, &[1, 2], true);
    }

    #[test]
    #[should_panic(expected = "a decode after a prefill")]
    fn decodes_come_first() {
        let mut words = [0; 100];
        let mut writer = PlanWriter::new(&mut words, 2, 2, 1);
        writer.prefill(0, 0, &[1], &[0], false);
        writer.decode(1, 0, &[1], true);
    }
}
