//! `sample` and `bind_rows`: from logits to tokens, and the state of the sequences that are sampled.
//!
//! [`DeviceRows`] owns one row of state for every sequence that can run at once. Rows change hands by
//! [`DeviceRows::bind`], which reads [`BindingRecord`]s from pinned memory, and advance by [`DeviceRows::sample`], which
//! also writes [`SampleRecord`]s to pinned memory: the host sees results without a copy.
//!
//! What a row's numbers mean is defined by the crate izar-engine, which fills them in; this module checks sizes only.

mod records;

pub use records::{
    BindingRecord, LOGPROB_ENTRIES, RowFlags, SampleLogprob, SampleRecord, SampleStatus, SamplerRow,
};

use records::Slot;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Device;
use crate::error::{CudaError, check};
use crate::expand_plan::{StepInputs, StepMeta};
use crate::ffi;
use crate::memory::DeviceBuffer;
use crate::pinned::PinnedBuffer;
use crate::step_mark::StepMarks;
use crate::stream::Stream;

/// Blocks of the cluster that samples a row.
const CLUSTER: u32 = 7;
/// Slices start at multiples of this many tokens.
const SLICE_UNIT: u32 = 128;
/// Tokens of a slice that fit in a block's shared memory.
const MAX_SLICE: u32 = 51_200;
/// Logits of a row that a cluster takes.
pub(crate) const MAX_VOCAB: u32 = CLUSTER * MAX_SLICE;
/// Steps whose results may be unread.
const DEPTH: usize = 2;

/// What the state is sized for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerSizes {
    /// Rows: sequences that run at once.
    pub max_num_seqs: u32,
    /// Logits of a row.
    pub vocab_size: u32,
    /// Prompt and generated tokens of the longest sequence.
    pub max_model_len: u32,
    /// Words of a row's lists together; also the most tokens that bad words can look back at.
    pub list_capacity: u32,
}

/// Why sampling was not set up or launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    /// A vocabulary that the kernel has no room for.
    #[error("sample: a vocabulary of {0} tokens; 1 to 358400 can be sampled on the device")]
    Vocabulary(u32),
    /// Fewer logits than the bucket's samples have.
    #[error(
        "sample: {samples} rows of {vocab_size} logits, {stride} apart, in a buffer of {len}, with state for {max_num_seqs} rows"
    )]
    Logits {
        /// Samples of the bucket.
        samples: u32,
        /// Logits of a row.
        vocab_size: u32,
        /// Row stride.
        stride: u32,
        /// Elements of the buffer.
        len: usize,
        /// Rows of state.
        max_num_seqs: u32,
    },
    /// More samples than there are inputs or rows for, or none.
    #[error(
        "fetch_masks: {samples} samples, with inputs for {room} and state for {max_num_seqs} rows"
    )]
    Samples {
        /// Samples of the bucket.
        samples: u32,
        /// Samples that the inputs have room for.
        room: usize,
        /// Rows of state.
        max_num_seqs: u32,
    },
    /// A CUDA call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Mirrors `izar::sampler::Rows`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RowsArgs {
    rows: *mut c_void,
    lists: *mut c_void,
    masks: *mut c_void,
    seen: *mut c_void,
    counts: *mut c_void,
    recent: *mut c_void,
    last_tokens: *mut c_void,
    grammar: *mut c_void,
    mask_states: *mut c_void,
    vocab_size: u32,
    mask_words: u32,
    list_capacity: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<RowsArgs>() == 88);

/// Mirrors `IzarSampleArgs`.
#[repr(C)]
pub(crate) struct SampleArgs {
    rows: RowsArgs,
    logits: *const c_void,
    num_samples: *const c_void,
    step: *const c_void,
    sample_rows: *const c_void,
    eos_ids: *const c_void,
    records: *mut c_void,
    logprobs: *mut c_void,
    logits_stride: u32,
    num_eos_ids: u32,
    max_model_len: u32,
    max_samples: u32,
    slice_len: u32,
    num_grid_samples: u32,
    max_clusters: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<SampleArgs>() == 176);

/// Mirrors `IzarFetchMasksArgs`.
#[repr(C)]
pub(crate) struct FetchMasksArgs {
    rows: RowsArgs,
    num_samples: *const c_void,
    sample_rows: *const c_void,
    sample_tokens: *const c_void,
    positions: *const c_void,
    marks: *mut c_void,
    num_grid_samples: u32,
    reads_early: u32,
}

const _: () = assert!(size_of::<FetchMasksArgs>() == 136);

/// The sampler's memory on the device, and where results appear on the host.
#[derive(Debug)]
pub struct DeviceRows {
    sizes: SamplerSizes,
    rows: DeviceBuffer<SamplerRow>,
    lists: DeviceBuffer<u32>,
    masks: DeviceBuffer<u32>,
    seen: DeviceBuffer<u32>,
    counts: DeviceBuffer<u32>,
    recent: DeviceBuffer<u32>,
    last_tokens: DeviceBuffer<u32>,
    grammar: DeviceBuffer<u32>,
    mask_states: DeviceBuffer<u32>,
    eos_ids: DeviceBuffer<u32>,
    num_eos_ids: u32,
    /// Clusters that are resident at once.
    max_clusters: u32,
    /// `[2, max_num_seqs]`.
    slots: PinnedBuffer<Slot>,
    /// `[2, max_num_seqs, LOGPROB_ENTRIES]`.
    logprobs: PinnedBuffer<SampleLogprob>,
}

/// One step's sampling, for a bucket of `bucket_samples` samples.
#[derive(Debug, Clone, Copy)]
pub struct SampleStep<'a> {
    /// `[bucket_samples, vocab_size]`, f32.
    pub logits: &'a DeviceBuffer<f32>,
    /// From one row to the next, in elements. Multiples of 4 are faster.
    pub logits_stride: u32,
    /// Gives the number of samples, their rows (distinct) and the step's number.
    pub inputs: &'a StepInputs,
    /// Most samples there can be.
    pub bucket_samples: u32,
}

/// What brings the masks of a step's masked rows to the device, for a bucket of `bucket_samples` samples.
#[derive(Debug, Clone, Copy)]
pub struct FetchMasks<'a> {
    /// Gives the number of samples, their rows (distinct) and the tokens that they are drawn after.
    pub inputs: &'a StepInputs,
    /// Where to note that the logits are there ([`crate::Mark::Sampling`]).
    pub marks: Option<&'a StepMarks>,
    /// Most samples there can be.
    pub bucket_samples: u32,
    /// Look before the kernel ahead in the stream has ended, too. The inputs must then have been written, and the rows
    /// sampled last, by kernels before that one.
    pub reads_early: bool,
}

impl DeviceRows {
    /// Rows with nothing bound to them. `eos_ids` are the model's end-of-sequence tokens.
    ///
    /// # Errors
    /// [`SamplerError::Vocabulary`], and those of the allocations.
    pub fn new(
        device: &Device,
        stream: &Stream,
        sizes: SamplerSizes,
        eos_ids: &[u32],
    ) -> Result<Self, SamplerError> {
        if !(1..=MAX_VOCAB).contains(&sizes.vocab_size) {
            return Err(SamplerError::Vocabulary(sizes.vocab_size));
        }
        let [seqs, vocab, lists] = [
            sizes.max_num_seqs,
            sizes.vocab_size,
            sizes.list_capacity.max(1),
        ]
        .map(|size| size as usize);
        // A model's configuration may name tokens beyond its logits; those cannot be sampled.
        let mut eos_ids: Vec<u32> = eos_ids.to_vec();
        eos_ids.retain(|&id| id < sizes.vocab_size);
        let num_eos_ids = eos_ids.len() as u32;
        eos_ids.push(0); // no empty allocation
        let mut max_clusters = 0;
        device.make_current()?;
        // SAFETY: writes one word.
        check("sample", unsafe {
            ffi::izar_sample_clusters(slice_len(sizes.vocab_size), &mut max_clusters)
        })?;
        let new = |len| DeviceBuffer::<u32>::new(device, len);
        let state = Self {
            rows: DeviceBuffer::from_slice(stream, &vec![SamplerRow::unbound(); seqs])?,
            lists: new(seqs * lists)?,
            masks: new(seqs * vocab.div_ceil(32))?,
            seen: new(seqs * vocab.div_ceil(32))?,
            counts: new(seqs * vocab)?,
            recent: new(seqs * lists)?,
            last_tokens: new(seqs)?,
            grammar: new(seqs * vocab.div_ceil(32))?,
            mask_states: new(seqs)?,
            eos_ids: DeviceBuffer::from_slice(stream, &eos_ids)?,
            num_eos_ids,
            max_clusters: max_clusters.max(1),
            slots: PinnedBuffer::new(device, DEPTH * seqs)?,
            logprobs: PinnedBuffer::new(device, DEPTH * seqs * LOGPROB_ENTRIES)?,
            sizes: SamplerSizes {
                list_capacity: lists as u32,
                ..sizes
            },
        };
        state.last_tokens.fill_bytes(stream, 0)?;
        state.mask_states.fill_bytes(stream, 0)?;
        stream.synchronize()?;
        Ok(state)
    }

    /// Bytes of device memory that rows of these sizes take.
    #[must_use]
    pub fn device_bytes(sizes: &SamplerSizes) -> usize {
        let words = 2 * sizes.list_capacity as usize
            + 3 * (sizes.vocab_size as usize).div_ceil(32)
            + sizes.vocab_size as usize
            + 2;
        sizes.max_num_seqs as usize * (words * 4 + size_of::<SamplerRow>())
    }

    /// What the state is sized for.
    #[must_use]
    pub fn sizes(&self) -> &SamplerSizes {
        &self.sizes
    }

    /// `[max_num_seqs]`: the token each row sampled last, or the last one it was bound with.
    #[must_use]
    pub fn last_tokens(&self) -> &DeviceBuffer<u32> {
        &self.last_tokens
    }

    pub(crate) fn args(&self) -> RowsArgs {
        RowsArgs {
            rows: self.rows.address_of(0),
            lists: self.lists.address_of(0),
            masks: self.masks.address_of(0),
            seen: self.seen.address_of(0),
            counts: self.counts.address_of(0),
            recent: self.recent.address_of(0),
            last_tokens: self.last_tokens.address_of(0),
            grammar: self.grammar.address_of(0),
            mask_states: self.mask_states.address_of(0),
            vocab_size: self.sizes.vocab_size,
            mask_words: self.sizes.vocab_size.div_ceil(32),
            list_capacity: self.sizes.list_capacity,
            reserved: 0,
        }
    }

    /// Launches the binding of the `count` rows whose [`BindingRecord`]s start at word `at` of `arena`. Places in the
    /// records count words from there.
    ///
    /// # Errors
    /// Those of the launch.
    ///
    /// # Panics
    /// If the records are not inside the arena or not at a multiple of 16 bytes.
    ///
    /// # Safety
    /// The records name distinct rows below `max_num_seqs`; everything they refer to lies in the arena and fits the row;
    /// all token ids are below `vocab_size`. Nothing of it changes until the launch has run. What a masked row points at stays
    /// mapped until its last sampling has run.
    pub unsafe fn bind(
        &self,
        stream: &Stream,
        arena: &PinnedBuffer<u32>,
        at: usize,
        count: u32,
    ) -> Result<(), CudaError> {
        let words = count as usize * size_of::<BindingRecord>() / 4;
        assert!(
            at.is_multiple_of(4) && at + words <= arena.len(),
            "{count} bindings at word {at} of {}",
            arena.len()
        );
        if count == 0 {
            return Ok(());
        }
        let raw = stream.for_launch()?;
        let rows = self.args();
        // SAFETY: the records lie in the arena; all else is the caller's promise.
        check("bind_rows", unsafe {
            ffi::izar_bind_rows(arena.address_of(at), count, &rows, raw)
        })
    }

    /// Launches the fetching of a step's masks, which comes between its logits and its sampling if a row is
    /// [`RowFlags::MASKED`]. A mask that is not there then is not there for the sampling.
    ///
    /// # Errors
    /// [`SamplerError`]; nothing is launched then.
    pub fn fetch_masks(&self, stream: &Stream, step: &FetchMasks<'_>) -> Result<(), SamplerError> {
        let FetchMasks {
            inputs,
            marks,
            bucket_samples,
            reads_early,
        } = *step;
        let max_num_seqs = self.sizes.max_num_seqs;
        let room = inputs.sample_rows.len().min(inputs.sample_tokens.len());
        if bucket_samples == 0 || bucket_samples > max_num_seqs || bucket_samples as usize > room {
            return Err(SamplerError::Samples {
                samples: bucket_samples,
                room,
                max_num_seqs,
            });
        }
        let meta = inputs.meta.address_of(0);
        let args = FetchMasksArgs {
            rows: self.args(),
            num_samples: meta.wrapping_byte_add(std::mem::offset_of!(StepMeta, num_samples)),
            sample_rows: inputs.sample_rows.address_of(0),
            sample_tokens: inputs.sample_tokens.address_of(0),
            positions: inputs.positions.address_of(0),
            marks: marks.map_or(std::ptr::null_mut(), StepMarks::address),
            num_grid_samples: bucket_samples,
            reads_early: reads_early.into(),
        };
        let raw = stream.for_launch()?;
        // SAFETY: all buffers have the sizes the kernel expects and outlive work on them; what masked rows point at was
        // promised to `bind`.
        check("fetch_masks", unsafe { ffi::izar_fetch_masks(&args, raw) })?;
        Ok(())
    }

    /// Launches the sampling of a step.
    ///
    /// # Errors
    /// [`SamplerError`]; nothing is launched then.
    pub fn sample(&self, stream: &Stream, step: &SampleStep<'_>) -> Result<(), SamplerError> {
        let SamplerSizes {
            max_num_seqs,
            vocab_size,
            max_model_len,
            ..
        } = self.sizes;
        let (samples, stride) = (step.bucket_samples, step.logits_stride);
        let last = u64::from(samples.saturating_sub(1)) * u64::from(stride) + u64::from(vocab_size);
        if samples == 0
            || samples > max_num_seqs
            || samples as usize > step.inputs.sample_rows.len()
            || stride < vocab_size
            || last > step.logits.len() as u64
        {
            return Err(SamplerError::Logits {
                samples,
                vocab_size,
                stride,
                len: step.logits.len(),
                max_num_seqs,
            });
        }
        let meta = step.inputs.meta.address_of(0);
        let args = SampleArgs {
            rows: self.args(),
            logits: step.logits.address_of(0),
            num_samples: meta.wrapping_byte_add(std::mem::offset_of!(StepMeta, num_samples)),
            step: meta.wrapping_byte_add(std::mem::offset_of!(StepMeta, step)),
            sample_rows: step.inputs.sample_rows.address_of(0),
            eos_ids: self.eos_ids.address_of(0),
            records: self.slots.address_of(0),
            logprobs: self.logprobs.address_of(0),
            logits_stride: stride,
            num_eos_ids: self.num_eos_ids,
            max_model_len,
            max_samples: max_num_seqs,
            slice_len: slice_len(vocab_size),
            num_grid_samples: samples,
            max_clusters: self.max_clusters,
            reserved: 0,
        };
        let raw = stream.for_launch()?;
        // SAFETY: all buffers have the sizes the kernel expects and outlive work on them.
        check("sample", unsafe { ffi::izar_sample(&args, raw) })?;
        Ok(())
    }

    /// The devices' address of the records, `[2, max_num_seqs]`.
    pub(crate) fn records(&self) -> *mut c_void {
        self.slots.address_of(0)
    }

    /// The devices' address of the log-probabilities, `[2, max_num_seqs, LOGPROB_ENTRIES]`.
    #[must_use]
    pub fn logprobs_address(&self) -> u64 {
        self.logprobs.address_of(0) as u64
    }

    fn place(&self, step: u64, sample: usize) -> usize {
        let max = self.sizes.max_num_seqs as usize;
        assert!(sample < max, "sample {sample} of {max}");
        (step % DEPTH as u64) as usize * max + sample
    }

    fn head(&self, place: usize) -> &AtomicU64 {
        // SAFETY: inside the buffer, aligned, alive as long as `self`; host and device access this word atomically only.
        unsafe {
            let slot = self.slots.as_ptr().add(place);
            AtomicU64::from_ptr(&raw mut (*slot).head)
        }
    }

    /// Whether sample `sample` of step `step` is there. At most two steps may be unread.
    ///
    /// # Panics
    /// If `sample` is not below `max_num_seqs`.
    #[must_use]
    pub fn is_ready(&self, step: u64, sample: usize) -> bool {
        let head = self.head(self.place(step, sample));
        // Relaxed: only `result` reads what comes with it.
        Slot::is_of(head.load(Ordering::Relaxed), step)
    }

    /// Sample `sample` of step `step` with its logprobs; nothing if it is not there yet. It can be taken once.
    ///
    /// # Panics
    /// If `sample` is not below `max_num_seqs`.
    #[must_use]
    pub fn result(&self, step: u64, sample: usize) -> Option<(SampleRecord, &[SampleLogprob])> {
        let place = self.place(step, sample);
        // SYNC sample-ready: pairs with the release store in `publish` (sample.cu), system scope.
        let head = self.head(place).load(Ordering::Acquire);
        if !Slot::is_of(head, step) {
            return None;
        }
        // SAFETY: inside the buffer; written before the head just seen, and not again until the step after the next is
        // launched, before which the caller reads.
        let record = Slot::record(head, || unsafe { self.slots.as_ptr().add(place).read() });
        // A head has the low bits of the step's number only. Relaxed: the device writes it next in a later launch.
        self.head(place).store(0, Ordering::Relaxed);
        let len = (record.num_logprobs as usize).min(LOGPROB_ENTRIES);
        // SAFETY: as above.
        let logprobs = unsafe {
            let first = self.logprobs.as_ptr().add(place * LOGPROB_ENTRIES);
            std::slice::from_raw_parts(first, len)
        };
        Some((record, logprobs))
    }
}

/// Tokens of a block's slice.
pub(crate) fn slice_len(vocab_size: u32) -> u32 {
    vocab_size.div_ceil(CLUSTER).next_multiple_of(SLICE_UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_every_vocabulary_and_fit_the_shared_memory() {
        for vocab_size in [
            1,
            127,
            128,
            1025,
            32_000,
            151_936,
            200_064,
            CLUSTER * MAX_SLICE,
        ] {
            let slice = slice_len(vocab_size);
            assert!(
                slice * CLUSTER >= vocab_size && slice <= MAX_SLICE,
                "{vocab_size}"
            );
            assert_eq!(slice % SLICE_UNIT, 0);
        }
    }
}
