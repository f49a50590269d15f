//! Activations of a step: one set, used by every step in turn.
//!
//! A token is a row. Buffers are as large as the largest step; a bucket's kernels use the first rows. What padding rows
//! hold is whatever was computed there.

use half::bf16;
use izar_kernels::{CudaError, Device, DeviceBuffer, Matrix, Stream};
use izar_model::ModelConfig;

use super::half::StepLimits;

/// Rows of logits, at least, as far as a step has tokens: what prompts are scored by.
const MIN_LOGIT_ROWS: usize = 64;
/// Rows of logits start at multiples of this many, for vector accesses.
const LOGIT_ALIGNMENT: usize = 8;

/// See the module documentation.
pub(super) struct Activations {
    /// Residual stream `[tokens, hidden]`.
    pub(super) residual: Rows,
    /// Normed residual `[tokens, hidden]`.
    pub(super) normed: Rows,
    /// Queries, keys and values `[tokens, (heads + 2 * kv_heads) * head_dim]`.
    pub(super) qkv: Rows,
    /// Attention's output `[tokens, heads * head_dim]`.
    pub(super) attended: Rows,
    /// Gates, then ups `[tokens, 2 * intermediate]`; where the projection has no SwiGLU of its own.
    pub(super) gate_up: Rows,
    /// SwiGLU's output `[tokens, intermediate]`.
    pub(super) inner: Rows,
    /// Residual of the tokens that sample `[logit_rows, hidden]`.
    pub(super) sampled: Rows,
    /// `[logit_rows, vocab]`, rows a multiple of [`LOGIT_ALIGNMENT`] apart.
    pub(super) logits: DeviceBuffer<f32>,
    vocab_size: u32,
}

/// A buffer of rows.
pub(super) struct Rows {
    buffer: DeviceBuffer<bf16>,
    width: u32,
}

impl Rows {
    fn new(device: &Device, rows: usize, width: usize) -> Result<Self, CudaError> {
        Ok(Self {
            buffer: DeviceBuffer::new(device, rows * width)?,
            width: width as u32,
        })
    }

    /// The first `rows` rows.
    pub(super) fn first(&self, rows: u32) -> Matrix<'_> {
        self.part(rows, 0, self.width)
    }

    /// Columns `first..first + width` of the first `rows` rows.
    pub(super) fn part(&self, rows: u32, first: u32, width: u32) -> Matrix<'_> {
        Matrix::strided(&self.buffer, first as usize, rows, width, self.width)
            .expect("a bucket is no larger than the largest step")
    }

    fn bytes(&self) -> u64 {
        2 * self.buffer.len() as u64
    }
}

impl Activations {
    pub(super) fn new(
        device: &Device,
        config: &ModelConfig,
        limits: StepLimits,
    ) -> Result<Self, CudaError> {
        let tokens = |width| Rows::new(device, limits.max_num_tokens, width);
        let qkv = config.q_size() + 2 * config.kv_size();
        let stride = config.vocab_size.next_multiple_of(LOGIT_ALIGNMENT);
        let logit_rows = (limits.max_num_seqs).max(MIN_LOGIT_ROWS.min(limits.max_num_tokens));
        Ok(Self {
            residual: tokens(config.hidden_size)?,
            normed: tokens(config.hidden_size)?,
            qkv: tokens(qkv)?,
            attended: tokens(config.q_size())?,
            gate_up: tokens(2 * config.intermediate_size)?,
            inner: tokens(config.intermediate_size)?,
            sampled: Rows::new(device, logit_rows, config.hidden_size)?,
            logits: DeviceBuffer::new(device, logit_rows * stride)?,
            vocab_size: config.vocab_size as u32,
        })
    }

    /// Rows that logits can be computed of at once.
    pub(super) fn logit_rows(&self) -> u32 {
        self.logits.len() as u32 / self.logits_stride()
    }

    /// The first `rows` rows of logits.
    pub(super) fn logits(&self, rows: u32) -> Matrix<'_, f32> {
        Matrix::strided(&self.logits, 0, rows, self.vocab_size, self.logits_stride())
            .expect("a bucket is no larger than the largest step")
    }

    /// Elements from one row of logits to the next.
    pub(super) fn logits_stride(&self) -> u32 {
        self.vocab_size.next_multiple_of(LOGIT_ALIGNMENT as u32)
    }

    /// Bytes of the activations, without the logits.
    pub(super) fn bytes(&self) -> u64 {
        self.all().into_iter().map(Rows::bytes).sum()
    }

    /// Sets every byte.
    pub(super) fn fill_bytes(&self, stream: &Stream, byte: u8) -> Result<(), CudaError> {
        for rows in self.all() {
            rows.buffer.fill_bytes(stream, byte)?;
        }
        self.logits.fill_bytes(stream, byte)
    }

    fn all(&self) -> [&Rows; 7] {
        [
            &self.residual,
            &self.normed,
            &self.qkv,
            &self.attended,
            &self.gate_up,
            &self.inner,
            &self.sampled,
        ]
    }

    /// Bytes of the logits.
    pub(super) fn logit_bytes(&self) -> u64 {
        4 * self.logits.len() as u64
    }
}
