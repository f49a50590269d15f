//! The sampler on the device: rows bound from the driver's bindings, sampled inside the step, results read from pinned
//! memory.
//!
//! It samples bit for bit what [`crate::sampling`] defines, which is what [`crate::sampling::Sampler`] samples. Log-probabilities
//! agree within 1e-5 of their magnitude; their tokens, order and ranks are exact.
//!
//! # Who owns what
//! The state of rows lives on the device ([`DeviceRows`]) and is changed by kernels only. Bindings travel through a
//! pinned arena of two halves, one for each step that can be in flight: a half is written again when the step that
//! read it has been waited for, which the driver's rule of at most two unread steps ensures.

mod encode;

use izar_kernels::{
    CudaError, Device, DeviceBuffer, DeviceRows, FetchMasks, MappedRegion, PinnedBuffer,
    SampleLogprob, SampleRecord, SampleStatus, SampleStep, SamplerError, SamplerSizes, StepInputs,
    StepMarks, Stream,
};
use izar_ring::{EngineError, LogprobEntry, MAX_LOGPROBS};

use self::encode::Encoder;
use crate::driver::{NoToken, RowBinding, RowSample, StepOutput};
use crate::sampling::RowLimits;
use crate::sampling::stop::FinishReason;

/// Words of a row's lists: stop ids, biases and bad words of one request together.
const LIST_CAPACITY: u32 = 8192;
/// Words of an arena's half beside those of the largest binding.
const ARENA_ROOM: usize = 1 << 20;
/// Steps that can be in flight.
const DEPTH: u64 = 2;

/// Sizes of a [`DeviceSampler`].
#[derive(Clone, Debug)]
pub struct DeviceSamplerOptions {
    /// Rows: sequences that run at once.
    pub max_num_seqs: u32,
    /// Prompt and generated tokens of the longest sequence.
    pub max_model_len: u32,
    /// Logits of a row.
    pub vocab_size: u32,
    /// The model's end-of-sequence tokens.
    pub eos_ids: Vec<u32>,
}

impl DeviceSamplerOptions {
    fn sizes(&self) -> SamplerSizes {
        SamplerSizes {
            max_num_seqs: self.max_num_seqs,
            vocab_size: self.vocab_size,
            max_model_len: self.max_model_len,
            list_capacity: LIST_CAPACITY,
        }
    }

    /// Bytes of device memory that the sampler takes, logits not included.
    #[must_use]
    pub fn device_bytes(&self) -> usize {
        DeviceRows::device_bytes(&self.sizes())
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct DeviceSampler {
    rows: DeviceRows,
    encoder: Encoder,
    arena: PinnedBuffer<u32>,
    half_words: usize,
}

impl DeviceSampler {
    /// A sampler with nothing bound to its rows.
    ///
    /// # Errors
    /// A vocabulary too large for the kernel, or no memory.
    pub fn new(
        device: &Device,
        stream: &Stream,
        options: &DeviceSamplerOptions,
    ) -> Result<Self, SamplerError> {
        let sizes = options.sizes();
        let limits = RowLimits {
            vocab_size: options.vocab_size as usize,
            max_model_len: options.max_model_len as usize,
            max_logprobs: MAX_LOGPROBS as usize,
        };
        let encoder = Encoder::new(limits, LIST_CAPACITY as usize);
        let half_words = (encoder.max_words() + ARENA_ROOM).next_multiple_of(4);
        Ok(Self {
            rows: DeviceRows::new(device, stream, sizes, &options.eos_ids)?,
            encoder,
            arena: PinnedBuffer::new(device, DEPTH as usize * half_words)?,
            half_words,
        })
    }

    /// Rows bound with masks find them in `ring`, the start of the ring's region, from now on. Without it they fail.
    pub fn map_ring(&mut self, ring: MappedRegion) {
        self.encoder.map_ring(ring);
    }

    /// `[max_num_seqs]`: the token each row sampled last, or the last one it was bound with.
    #[must_use]
    pub fn last_tokens(&self) -> &DeviceBuffer<u32> {
        self.rows.last_tokens()
    }

    /// The rows, for a scheduler on the device that binds them and reads their samples itself.
    pub(super) fn rows(&self) -> &DeviceRows {
        &self.rows
    }

    /// Words of a row's lists.
    pub(super) const fn list_capacity() -> u32 {
        LIST_CAPACITY
    }

    /// Binds rows before step `step`, in the order of the stream; the rows are distinct. A binding that no row can take
    /// (a broken request) makes its row fail, not this call.
    ///
    /// Launches nothing without bindings. More history than half an arena holds is bound in several launches, each waited
    /// for.
    ///
    /// # Errors
    /// Those of the launch.
    ///
    /// # Panics
    /// If a row is not below `max_num_seqs`.
    pub fn bind(
        &mut self,
        stream: &Stream,
        step: u64,
        bindings: &[RowBinding],
    ) -> Result<(), CudaError> {
        let max_num_seqs = self.rows.sizes().max_num_seqs;
        let start = (step % DEPTH) as usize * self.half_words;
        let mut rest = bindings;
        while !rest.is_empty() {
            if rest.len() < bindings.len() {
                stream.synchronize()?;
            }
            // SAFETY: inside the arena. The half was last read for the step before the previous one, which has been
            // waited for, or by the launch just waited for.
            let words = unsafe {
                std::slice::from_raw_parts_mut(self.arena.as_ptr().add(start), self.half_words)
            };
            let count = self.encoder.encode(rest, words);
            let (now, later) = rest.split_at(count);
            assert!(
                now.iter().all(|binding| binding.row < max_num_seqs),
                "a row beyond {max_num_seqs}"
            );
            // SAFETY: the encoder validated what it wrote; rows are in bounds and, by the caller, distinct.
            unsafe {
                self.rows.bind(stream, &self.arena, start, count as u32)?;
            }
            rest = later;
        }
        Ok(())
    }

    /// Records the fetching of a step's masks into `stream`, which may be captured: after the step's logits, before its sampling.
    /// Notes in `marks` that the logits are there. `reads_early`: see [`FetchMasks::reads_early`].
    ///
    /// # Errors
    /// [`SamplerError`].
    pub fn record_masks(
        &self,
        stream: &Stream,
        inputs: &StepInputs,
        marks: Option<&StepMarks>,
        bucket_samples: u32,
        reads_early: bool,
    ) -> Result<(), SamplerError> {
        self.rows.fetch_masks(
            stream,
            &FetchMasks {
                inputs,
                marks,
                bucket_samples,
                reads_early,
            },
        )
    }

    /// Records the sampling of a step into `stream`, which may be captured. `logits` (`[bucket_samples, vocab_size]`, f32,
    /// `logits_stride` apart) are not changed; `inputs` say how many samples there are and whose.
    ///
    /// # Errors
    /// [`SamplerError`].
    pub fn record(
        &self,
        stream: &Stream,
        logits: &DeviceBuffer<f32>,
        logits_stride: u32,
        inputs: &StepInputs,
        bucket_samples: u32,
    ) -> Result<(), SamplerError> {
        self.rows.sample(
            stream,
            &SampleStep {
                logits,
                logits_stride,
                inputs,
                bucket_samples,
            },
        )
    }

    /// Whether all of the step's `num_samples` results are there: a few loads, no CUDA call.
    #[must_use]
    pub fn is_done(&self, step: u64, num_samples: usize) -> bool {
        (0..num_samples).all(|sample| self.rows.is_ready(step, sample))
    }

    /// Appends the step's results to `output`, in the order of its samples, whose ring slots are `slots`; once. If one is
    /// missing nothing changes, and the answer is false.
    #[must_use]
    pub fn read_results(
        &self,
        step: u64,
        slots: impl ExactSizeIterator<Item = u32>,
        output: &mut StepOutput,
    ) -> bool {
        if !self.is_done(step, slots.len()) {
            return false;
        }
        for (sample, slot) in slots.enumerate() {
            if let Some((record, logprobs)) = self.rows.result(step, sample) {
                let sampled = row_sample(slot, &record, output.logprobs.len());
                output.samples.push(sampled);
                output.logprobs.extend(logprobs.iter().map(logprob_entry));
            }
        }
        true
    }
}

fn row_sample(slot: u32, record: &SampleRecord, first_logprob: usize) -> RowSample {
    let outcome = outcome(record);
    RowSample {
        slot,
        token: outcome.map(|(token, _)| token),
        finish: outcome.ok().and_then(|(_, finish)| finish),
        rank: if outcome.is_ok() { record.rank } else { 0 },
        first_logprob: first_logprob as u32,
        num_logprobs: record.num_logprobs,
    }
}

fn outcome(record: &SampleRecord) -> Result<(u32, Option<FinishReason>), NoToken> {
    let token = record.token;
    let failed = |error: EngineError| Err(NoToken::Failed(error));
    match record.status {
        SampleStatus::TOKEN => Ok((token, None)),
        SampleStatus::EOS => Ok((token, Some(FinishReason::Eos(token)))),
        SampleStatus::STOP_TOKEN => Ok((token, Some(FinishReason::StopToken(token)))),
        SampleStatus::MAX_TOKENS => Ok((token, Some(FinishReason::MaxTokens))),
        SampleStatus::CONTEXT_END => Ok((token, Some(FinishReason::ContextEnd))),
        SampleStatus::DEFERRED => Err(NoToken::Deferred),
        SampleStatus::NON_FINITE => failed(EngineError::NonFiniteLogits),
        SampleStatus::NOTHING_ALLOWED => failed(EngineError::NothingAllowed),
        SampleStatus::ROW_BROKEN => {
            let reason = EngineError::from_code(record.rank as u16);
            failed(reason.unwrap_or(EngineError::EngineFailed))
        }
        _ => failed(EngineError::EngineFailed),
    }
}

pub(super) fn logprob_entry(entry: &SampleLogprob) -> LogprobEntry {
    LogprobEntry {
        token: entry.token,
        logprob: entry.logprob,
    }
}
