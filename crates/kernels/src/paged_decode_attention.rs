//! `paged_decode_attention`: one decode step of grouped-query attention over a paged KV cache.
//!
//! `cuda/ops/paged_decode_attention.cu` says how. A sequence's result does not depend on its batch.

use half::bf16;

use crate::device::Device;
use crate::error::{CudaError, check};
use crate::ffi::{self, PagedDecodeAttentionArgs, ReferenceAttentionArgs};
use crate::matrix::Matrix;
use crate::memory::DeviceBuffer;
use crate::stream::Stream;

/// Tokens of a KV block.
const BLOCK_SIZE: usize = 16;
/// Chunks that a sequence is cut into at most.
const MAX_CHUNKS: usize = 32;
/// Warps of a block that attend.
const WARPS_PER_SM: usize = 8;
/// Sequences that one launch takes at most.
const MAX_SEQS: u32 = 1024;
/// Query heads that may share a KV head.
pub(crate) const MAX_GROUP: u32 = 16;

/// Keys and values of one layer: `[num_blocks, 16, num_kv_heads, head_dim]` each.
#[derive(Debug, Clone, Copy)]
pub struct KvCache<'a> {
    /// Keys.
    pub k: &'a DeviceBuffer<bf16>,
    /// Values.
    pub v: &'a DeviceBuffer<bf16>,
    /// KV heads.
    pub num_kv_heads: u32,
    /// Elements of a head: 64, 96 or 128.
    pub head_dim: u32,
}

impl KvCache<'_> {
    /// Blocks of `k`; none if they are not whole, none at all, or not as many as those of `v`.
    pub(crate) fn num_blocks(&self) -> Option<u64> {
        let block = BLOCK_SIZE * self.num_kv_heads as usize * self.head_dim as usize;
        let whole = !self.k.is_empty() && self.k.len() == self.v.len();
        (whole && block > 0 && self.k.len().is_multiple_of(block))
            .then(|| (self.k.len() / block) as u64)
    }
}

/// One step. Rows of `q` and `out` are sequences.
#[derive(Debug, Clone, Copy)]
pub struct PagedDecodeAttention<'a> {
    /// `[num_seqs, num_heads * head_dim]`.
    pub q: Matrix<'a>,
    /// The layer's cache. Block ids in the table must be inside it.
    pub cache: KvCache<'a>,
    /// `[num_seqs, max_blocks_per_seq]`; only entries below a sequence's length are read.
    pub block_table: &'a DeviceBuffer<u32>,
    /// Entries of a row of `block_table`.
    pub max_blocks_per_seq: u32,
    /// Tokens of each sequence in the cache, this step's included; 0 skips the row.
    pub seq_lens: &'a DeviceBuffer<u32>,
    /// `[num_seqs, num_heads * head_dim]`.
    pub out: Matrix<'a>,
    /// Positions that a token sees, itself included.
    pub window: Option<u32>,
    /// What scores are multiplied by, `1 / sqrt(head_dim)` as a rule.
    pub scale: f32,
    /// Whether `seq_lens`, `block_table` and all of the cache but each sequence's last position may be
    /// read before the previous kernel of the stream has finished. True is right if whatever writes them
    /// has finished before that kernel starts: an earlier step, say, or a kernel that one between them
    /// waited for before it let its own successors start.
    pub reads_early: bool,
}

/// Why a step was not launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttentionError {
    /// A size that does not fit the others, or that the kernel has no code for.
    #[error("paged attention: {what} must be {expected}, got {got}")]
    Size {
        /// Which.
        what: &'static str,
        /// What is wanted, in words.
        expected: &'static str,
        /// What was given.
        got: u64,
    },
    /// The launch failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Memory through which chunks of a sequence are joined. One launch at a time may use it.
///
/// A launch has one block on every SM, and blocks wait for each other: all of them must find room.
#[derive(Debug)]
pub struct AttentionWorkspace {
    partials: DeviceBuffer<f32>,
    finished: DeviceBuffer<u32>,
    error: DeviceBuffer<u32>,
    num_sms: u32,
}

impl AttentionWorkspace {
    /// For launches of up to `max_seqs` sequences with `num_heads` heads of `head_dim`.
    ///
    /// # Errors
    /// Those of the allocation.
    pub fn new(
        device: &Device,
        max_seqs: u32,
        num_heads: u32,
        head_dim: u32,
    ) -> Result<Self, CudaError> {
        let parts = max_seqs as usize * num_heads as usize * MAX_CHUNKS;
        let num_sms = device.num_multiprocessors()?;
        let workspace = Self {
            partials: DeviceBuffer::new(device, parts * (head_dim as usize + 4))?,
            finished: DeviceBuffer::new(device, num_sms as usize * WARPS_PER_SM)?,
            error: DeviceBuffer::new(device, 1)?,
            num_sms,
        };
        let stream = Stream::new(device)?;
        workspace.finished.fill_bytes(&stream, 0)?;
        workspace.error.fill_bytes(&stream, 0)?;
        stream.synchronize()?;
        Ok(workspace)
    }

    /// Waits for the stream and says whether every launch so far completed: `false` if a chunk's part did
    /// not come in time, after which results and workspace are void.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    pub fn is_sound(&self, stream: &Stream) -> Result<bool, CudaError> {
        let mut word = [0];
        self.error.read(stream, &mut word)?;
        Ok(word[0] == 0)
    }

    /// Waits for the stream and says whether the workspace is as every launch must leave it.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    pub fn is_clean(&self, stream: &Stream) -> Result<bool, CudaError> {
        let mut words = vec![0; self.finished.len()];
        self.finished.read(stream, &mut words)?;
        Ok(words.iter().all(|&word| word == words[0]))
    }
}

pub(crate) fn require(
    holds: bool,
    what: &'static str,
    expected: &'static str,
    got: u64,
) -> Result<(), AttentionError> {
    if holds {
        Ok(())
    } else {
        Err(AttentionError::Size {
            what,
            expected,
            got,
        })
    }
}

/// Rows of queries and outputs are moved 16 bytes at a time.
pub(crate) fn require_aligned_rows(q: Matrix<'_>, out: Matrix<'_>) -> Result<(), AttentionError> {
    for (what, view) in [
        ("the stride or address of q", q),
        ("the stride or address of out", out),
    ] {
        let bytes = view.address() as u64 | (u64::from(view.stride()) * 2);
        require(
            bytes.is_multiple_of(16),
            what,
            "a multiple of 16 bytes",
            bytes % 16,
        )?;
    }
    Ok(())
}

impl PagedDecodeAttention<'_> {
    fn num_heads(&self) -> u32 {
        self.q.cols() / self.cache.head_dim.max(1)
    }

    fn check(&self) -> Result<(), AttentionError> {
        let KvCache {
            num_kv_heads,
            head_dim,
            ..
        } = self.cache;
        let (seqs, heads) = (self.q.rows(), self.num_heads());
        let size = |n: usize| n as u64;
        require(
            [64, 96, 128].contains(&head_dim),
            "head_dim",
            "64, 96 or 128",
            head_dim.into(),
        )?;
        let whole = self.q.cols().is_multiple_of(head_dim);
        require(
            whole,
            "columns of q",
            "a multiple of head_dim",
            self.q.cols().into(),
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
        require(
            self.out.rows() == seqs,
            "rows of out",
            "those of q",
            self.out.rows().into(),
        )?;
        let columns = self.out.cols();
        require(
            columns == self.q.cols(),
            "columns of out",
            "those of q",
            columns.into(),
        )?;
        require(
            self.cache
                .num_blocks()
                .is_some_and(|blocks| blocks < 1 << 27),
            "the KV cache",
            "whole blocks, as many of k as of v, below 2^31 positions",
            size(self.cache.k.len()),
        )?;
        let entries = u64::from(seqs) * u64::from(self.max_blocks_per_seq);
        let table = size(self.block_table.len());
        require(
            table >= entries,
            "block_table",
            "num_seqs * max_blocks_per_seq or more",
            table,
        )?;
        let lens = size(self.seq_lens.len());
        require(lens >= seqs.into(), "seq_lens", "num_seqs or more", lens)?;
        require_aligned_rows(self.q, self.out)
    }
}

/// Launches one step into `stream`.
///
/// # Errors
/// [`AttentionError`]; nothing is launched then.
pub fn paged_decode_attention(
    stream: &Stream,
    step: &PagedDecodeAttention<'_>,
    workspace: &AttentionWorkspace,
) -> Result<(), AttentionError> {
    step.check()?;
    let PagedDecodeAttention { q, cache, out, .. } = *step;
    require(
        q.rows() <= MAX_SEQS,
        "num_seqs",
        "at most 1024",
        q.rows().into(),
    )?;
    let num_heads = step.num_heads();
    let rows = u64::from(q.rows()) * u64::from(num_heads);
    let words = rows * MAX_CHUNKS as u64 * u64::from(cache.head_dim + 4);
    let room = workspace.partials.len() as u64;
    require(
        words <= room,
        "the workspace",
        "made for as many sequences and heads",
        room,
    )?;
    let args = PagedDecodeAttentionArgs {
        q: q.address(),
        k_cache: cache.k.address_of(0),
        v_cache: cache.v.address_of(0),
        block_table: step.block_table.address_of(0),
        seq_lens: step.seq_lens.address_of(0),
        out: out.address(),
        partials: workspace.partials.address_of(0),
        finished: workspace.finished.address_of(0),
        error: workspace.error.address_of(0),
        num_seqs: q.rows(),
        num_heads,
        num_kv_heads: cache.num_kv_heads,
        head_dim: cache.head_dim,
        num_blocks: cache.num_blocks().unwrap_or(0) as u32,
        max_blocks_per_seq: step.max_blocks_per_seq,
        q_stride: q.stride(),
        out_stride: out.stride(),
        window: step.window.unwrap_or(0),
        scale: step.scale,
        num_sms: workspace.num_sms,
        reads_early: step.reads_early.into(),
    };
    let raw = stream.for_launch()?;
    // SAFETY: shapes were checked against the buffers, which outlive work on them; the kernel clips
    // lengths to the table's rows; block ids are the caller's promise (see `cache`), and a wrong one
    // faults on the device, not in this process.
    check("paged_decode_attention", unsafe {
        ffi::izar_paged_decode_attention(&args, raw)
    })?;
    Ok(())
}

/// The same step in f64, one warp a head: the oracle. `out` is dense; `step.out` is not written.
///
/// # Errors
/// As [`paged_decode_attention`].
///
/// # Panics
/// If `out` is too short.
pub fn reference_attention(
    stream: &Stream,
    step: &PagedDecodeAttention<'_>,
    out: &DeviceBuffer<f64>,
) -> Result<(), AttentionError> {
    step.check()?;
    let PagedDecodeAttention { q, cache, .. } = *step;
    assert!(
        out.len() as u64 >= u64::from(q.rows()) * u64::from(q.cols()),
        "out holds every output"
    );
    let args = ReferenceAttentionArgs {
        q: q.address(),
        k_cache: cache.k.address_of(0),
        v_cache: cache.v.address_of(0),
        block_table: step.block_table.address_of(0),
        seq_lens: step.seq_lens.address_of(0),
        out: out.address_of(0),
        num_seqs: q.rows(),
        num_heads: step.num_heads(),
        num_kv_heads: cache.num_kv_heads,
        head_dim: cache.head_dim,
        max_blocks_per_seq: step.max_blocks_per_seq,
        q_stride: q.stride(),
        window: step.window.unwrap_or(0),
        scale: step.scale,
    };
    let raw = stream.for_launch()?;
    // SAFETY: as in `paged_decode_attention`; `out` holds every output.
    check("reference_attention", unsafe {
        ffi::izar_reference_attention(&args, raw)
    })?;
    Ok(())
}
