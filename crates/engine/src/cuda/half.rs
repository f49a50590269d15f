//! One half of the double buffer through which plans reach the device and outcomes come back.
//!
//! Step n uses half n % 2, so that the plan of step n + 1 is written and copied while step n runs. Every captured graph
//! is instantiated once for each half. Written by the thread that launches; the device reads `plan` and writes `marks`.

use izar_kernels::{
    CudaError, DeviceBuffer, Event, PinnedBuffer, PlanWriter, StepGate, StepMarks, Stream,
};

use crate::driver::StepWork;

/// Sizes of the largest step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepLimits {
    pub(super) max_num_seqs: usize,
    pub(super) max_num_tokens: usize,
    pub(super) max_blocks_per_seq: usize,
}

/// See the module documentation.
pub(super) struct Half {
    staging: PinnedBuffer<u32>,
    /// The plan, on the device.
    pub(super) plan: DeviceBuffer<u32>,
    /// What the device says about the step.
    pub(super) marks: StepMarks,
    copied: Event,
}

impl Half {
    /// With a gate, the half's steps raise it when they are complete.
    pub(super) fn new(
        stream: &Stream,
        limits: StepLimits,
        gate: Option<&StepGate>,
    ) -> Result<Self, CudaError> {
        let device = stream.device();
        let words = PlanWriter::words(
            limits.max_num_seqs,
            limits.max_num_tokens,
            limits.max_blocks_per_seq,
        );
        Ok(Self {
            staging: PinnedBuffer::new(device, words)?,
            plan: DeviceBuffer::new(device, words)?,
            marks: match gate {
                Some(gate) => StepMarks::with_gate(device, gate)?,
                None => StepMarks::new(device)?,
            },
            copied: Event::untimed(device)?,
        })
    }

    /// Writes the plan of `work`, which is step `step`, and copies it by way of `copies`; what is put into `stream` after
    /// this sees it. The last step that used this half must be complete.
    pub(super) fn send(
        &mut self,
        work: &StepWork,
        step: u64,
        copies: &Stream,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        // SAFETY: the copy of the last plan in this half came before its step, which is complete; no kernel reads staging.
        let words = unsafe { self.staging.as_mut_slice() };
        let len = write_plan(work, step, words);
        // SAFETY: both buffers are as old as `self`, which waits for the device when dropped; the next write to staging comes
        // after the step that this copy precedes.
        unsafe { self.plan.write_async(copies, 0, &self.staging, 0, len)? };
        self.copied.record(copies)?;
        stream.wait(&self.copied)
    }
}

/// Writes the plan of `work` as step `step`; returns its words.
pub(super) fn write_plan(work: &StepWork, step: u64, words: &mut [u32]) -> usize {
    let (num_entries, num_tokens) = (work.entries.len(), work.tokens.len());
    let mut writer = PlanWriter::new(words, num_entries, num_tokens, work.blocks_per_row);
    let mut tokens = work.tokens.as_slice();
    for (idx, entry) in work.entries.iter().enumerate() {
        let (own, rest) = tokens.split_at(entry.num_tokens as usize);
        tokens = rest;
        let blocks = &work.block_tables[idx * work.blocks_per_row..][..entry.num_blocks as usize];
        if entry.is_decode {
            writer.decode(entry.row, entry.start, blocks, entry.samples);
        } else {
            writer.prefill(entry.row, entry.start, own, blocks, entry.samples);
        }
    }
    writer.finish(step)
}
