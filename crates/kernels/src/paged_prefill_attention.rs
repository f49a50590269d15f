//! `paged_prefill_attention`: ragged chunks of prompts, causal, against their paged KV cache.
//!
//! `cuda/ops/paged_prefill_attention.cu` says how. A token's result depends on its position and what
//! the cache holds before it alone: not on how its prompt was cut into chunks, not on its step.

use crate::device_word::DeviceWord;
use crate::error::check;
use crate::ffi::{self, PagedPrefillAttentionArgs};
use crate::matrix::Matrix;
use crate::memory::DeviceBuffer;
use crate::paged_decode_attention::{
    AttentionError, KvCache, MAX_GROUP, require, require_aligned_rows,
};
use crate::stream::Stream;

/// Entries that one launch takes at most.
const MAX_ENTRIES: u32 = 1024;

/// One step's chunks. Rows of `q` and `out` are tokens; an entry is a chunk of one sequence.
///
/// Shapes bound what a launch can do; how much of it is done comes from device memory at run time.
#[derive(Debug, Clone, Copy)]
pub struct PagedPrefillAttention<'a> {
    /// `[num_tokens, num_heads * head_dim]`, queries with their positions applied.
    pub q: Matrix<'a>,
    /// The layer's cache, the chunks' own keys and values in it. Block ids in the tables must be inside it.
    pub cache: KvCache<'a>,
    /// `[max_entries, max_blocks_per_seq]`; only entries below a sequence's length are read.
    pub block_tables: &'a DeviceBuffer<u32>,
    /// Entries of a row of `block_tables`.
    pub max_blocks_per_seq: u32,
    /// `[max_entries]`: an entry's first row of `q`.
    pub query_starts: &'a DeviceBuffer<u32>,
    /// `[max_entries]`: its rows; 0 skips it.
    pub query_lens: &'a DeviceBuffer<u32>,
    /// `[max_entries]`: its tokens in the cache, this chunk's included.
    pub seq_lens: &'a DeviceBuffer<u32>,
    /// The first entry that is taken.
    pub first_entry: DeviceWord<'a>,
    /// One past the last entry that is taken.
    pub end_entry: DeviceWord<'a>,
    /// Entries that the arrays hold.
    pub max_entries: u32,
    /// `[num_tokens, num_heads * head_dim]`; rows of no entry are not written.
    pub out: Matrix<'a>,
    /// Positions that a token sees, itself included.
    pub window: Option<u32>,
    /// What scores are multiplied by, `1 / sqrt(head_dim)` as a rule.
    pub scale: f32,
}

impl PagedPrefillAttention<'_> {
    fn num_heads(&self) -> u32 {
        self.q.cols() / self.cache.head_dim.max(1)
    }

    fn check(&self) -> Result<(), AttentionError> {
        let head_dim = self.cache.head_dim;
        require(
            [64, 96, 128].contains(&head_dim),
            "head_dim",
            "64, 96 or 128",
            head_dim.into(),
        )?;
        self.check_heads()?;
        self.check_entries()?;
        let num_blocks = self.cache.num_blocks();
        require(
            num_blocks.is_some_and(|blocks| blocks < 1 << 27),
            "the KV cache",
            "whole blocks, as many of k as of v, below 2^31 positions",
            self.cache.k.len() as u64,
        )?;
        require(
            self.scale > 0.0,
            "scale",
            "above 0",
            self.scale.to_bits().into(),
        )?;
        require_aligned_rows(self.q, self.out)
    }

    fn check_heads(&self) -> Result<(), AttentionError> {
        let KvCache {
            num_kv_heads,
            head_dim,
            ..
        } = self.cache;
        let (columns, heads) = (self.q.cols(), self.num_heads());
        require(
            columns.is_multiple_of(head_dim),
            "columns of q",
            "a multiple of head_dim",
            columns.into(),
        )?;
        let grouped = num_kv_heads > 0
            && heads.is_multiple_of(num_kv_heads)
            && heads / num_kv_heads <= MAX_GROUP;
        require(
            grouped,
            "num_heads",
            "1 to 16 times num_kv_heads",
            heads.into(),
        )?;
        let (rows, out) = (self.q.rows(), self.out);
        require(
            out.rows() == rows,
            "rows of out",
            "those of q",
            out.rows().into(),
        )?;
        require(
            out.cols() == columns,
            "columns of out",
            "those of q",
            out.cols().into(),
        )
    }

    fn check_entries(&self) -> Result<(), AttentionError> {
        let entries = self.max_entries;
        require(
            (1..=MAX_ENTRIES).contains(&entries),
            "max_entries",
            "1 to 1024",
            entries.into(),
        )?;
        let table = self.block_tables.len() as u64;
        require(
            table >= u64::from(entries) * u64::from(self.max_blocks_per_seq),
            "block_tables",
            "max_entries * max_blocks_per_seq or more",
            table,
        )?;
        for (what, array) in [
            ("query_starts", self.query_starts),
            ("query_lens", self.query_lens),
            ("seq_lens", self.seq_lens),
        ] {
            let len = array.len() as u64;
            require(len >= entries.into(), what, "max_entries or more", len)?;
        }
        Ok(())
    }
}

/// Launches one step into `stream`.
///
/// # Errors
/// [`AttentionError`]; nothing is launched then.
pub fn paged_prefill_attention(
    stream: &Stream,
    step: &PagedPrefillAttention<'_>,
) -> Result<(), AttentionError> {
    step.check()?;
    let PagedPrefillAttention { q, cache, out, .. } = *step;
    let args = PagedPrefillAttentionArgs {
        q: q.address(),
        k_cache: cache.k.address_of(0),
        v_cache: cache.v.address_of(0),
        block_tables: step.block_tables.address_of(0),
        query_starts: step.query_starts.address_of(0),
        query_lens: step.query_lens.address_of(0),
        seq_lens: step.seq_lens.address_of(0),
        first_entry: step.first_entry.address(),
        end_entry: step.end_entry.address(),
        out: out.address(),
        num_tokens: q.rows(),
        max_entries: step.max_entries,
        num_heads: step.num_heads(),
        num_kv_heads: cache.num_kv_heads,
        head_dim: cache.head_dim,
        num_blocks: cache.num_blocks().unwrap_or(0) as u32,
        max_blocks_per_seq: step.max_blocks_per_seq,
        q_stride: q.stride(),
        out_stride: out.stride(),
        window: step.window.unwrap_or(0),
        scale: step.scale,
        num_sms: stream.device().num_multiprocessors()?,
    };
    let raw = stream.for_launch()?;
    // SAFETY: shapes were checked against the buffers, which outlive work on them; the kernel clips
    // rows and lengths to them; block ids are the caller's promise (see `cache`), and one that lies
    // outside reads as zeros.
    check("paged_prefill_attention", unsafe {
        ffi::izar_paged_prefill_attention(&args, raw)
    })?;
    Ok(())
}
