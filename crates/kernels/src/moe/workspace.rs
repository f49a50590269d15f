//! Memory of the layer with experts that is running.

use half::bf16;

use crate::device::Device;
use crate::error::CudaError;
use crate::launch_error::{Checks, LaunchError};
use crate::memory::DeviceBuffer;
use crate::stream::Stream;

use super::{BLOCKS_PER_SM, MAX_ROUTER_TOKENS, MAX_UNGATHERED, MoeShape};

/// Experts that the router's kernels have registers for.
const MAX_EXPERTS: u32 = 512;
/// Choices that the lanes of a warp can hold.
const MAX_TOP_K: u32 = 32;
/// Longest token, in elements: the norm after the layer holds it in registers.
const MAX_HIDDEN: u32 = 8192;
/// f32 words that a block may leave for another: a piece of 64 weight rows by 64 rows.
const PART_WORDS: usize = 64 * 64;

/// Memory of the layer that is running. One launch at a time may use it: give each stream its own.
#[derive(Debug)]
pub struct MoeWorkspace {
    pub(super) shape: MoeShape,
    pub(super) max_tokens: u32,
    pub(super) num_blocks: u32,
    pub(super) shares: DeviceBuffer<f32>,
    pub(super) slots: DeviceBuffer<u32>,
    pub(super) sources: DeviceBuffer<u32>,
    pub(super) groups: DeviceBuffer<[u32; 4]>,
    pub(super) columns: DeviceBuffer<u32>,
    pub(super) counts: DeviceBuffer<u32>,
    pub(super) experts: DeviceBuffer<u32>,
    pub(super) places: DeviceBuffer<u32>,
    /// Logits and choices on their way between blocks.
    pub(super) logits: DeviceBuffer<u32>,
    pub(super) choices: DeviceBuffer<u32>,
    pub(super) sorted: DeviceBuffer<bf16>,
    pub(super) inner: DeviceBuffer<bf16>,
    pub(super) outputs: DeviceBuffer<bf16>,
    pub(super) parts: DeviceBuffer<u32>,
    pub(super) error: DeviceBuffer<u32>,
}

impl MoeWorkspace {
    /// For launches of up to `max_tokens` tokens.
    ///
    /// # Errors
    /// Sizes that the kernels have no code for, and those of the allocations.
    pub fn new(
        device: &Device,
        stream: &Stream,
        shape: MoeShape,
        max_tokens: u32,
    ) -> Result<Self, LaunchError> {
        check_shape(&shape)?;
        let rows = max_tokens as usize * shape.top_k as usize;
        let few = max_tokens.min(MAX_ROUTER_TOKENS) as usize;
        // Two an SM: while one drains between tiles the other's loads go on (docs/perf/h200-kernels.md).
        let num_blocks = BLOCKS_PER_SM * device.num_multiprocessors()?;
        // Every expert may leave a group half empty, groups of 8 are the smallest, and one past the last is read.
        let max_groups = rows / 8 + shape.num_experts as usize + 1;
        let groups = DeviceBuffer::new(device, max_groups)?;
        groups.fill_bytes(stream, 0)?;
        // Read only where written by the same launch, but a sanitizer cannot know what no result depends on.
        let zeroed = |len: usize| -> Result<DeviceBuffer<bf16>, CudaError> {
            let buffer = DeviceBuffer::new(device, len)?;
            buffer.fill_bytes(stream, 0)?;
            Ok(buffer)
        };
        let absent = |len: usize| -> Result<DeviceBuffer<u32>, CudaError> {
            let buffer = DeviceBuffer::new(device, len)?;
            buffer.fill_bytes(stream, 0xFF)?;
            Ok(buffer)
        };
        let shares = DeviceBuffer::new(device, rows)?;
        let slots = DeviceBuffer::new(device, rows)?;
        // Those of padding are loaded, whatever they are.
        shares.fill_bytes(stream, 0)?;
        slots.fill_bytes(stream, 0)?;
        let error = DeviceBuffer::new(device, 1)?;
        error.fill_bytes(stream, 0)?;
        let columns = shape.num_experts as usize * MAX_UNGATHERED as usize;
        Ok(Self {
            shape,
            max_tokens,
            num_blocks,
            shares,
            slots,
            sources: DeviceBuffer::new(device, rows)?,
            groups,
            columns: DeviceBuffer::new(device, columns)?,
            counts: DeviceBuffer::new(device, 4)?,
            experts: DeviceBuffer::new(device, rows)?,
            places: DeviceBuffer::new(device, rows)?,
            logits: absent(few * shape.num_experts as usize)?,
            choices: absent(few * shape.top_k as usize)?,
            sorted: zeroed(rows * shape.hidden as usize)?,
            inner: zeroed(rows * shape.intermediate as usize)?,
            outputs: zeroed(rows * shape.hidden as usize)?,
            parts: absent(num_blocks as usize * PART_WORDS)?,
            error,
        })
    }

    /// Bytes of device memory that a workspace takes.
    #[must_use]
    pub fn bytes(shape: &MoeShape, max_tokens: u32, num_sms: u32) -> usize {
        let rows = max_tokens as usize * shape.top_k as usize;
        let row = 2 * (2 * shape.hidden as usize + shape.intermediate as usize);
        let lists = rows * 5 * 4 + (rows / 8 + shape.num_experts as usize) * 16;
        let words = (MAX_ROUTER_TOKENS * (shape.num_experts + shape.top_k)) as usize * 4;
        rows * row + lists + words + (BLOCKS_PER_SM * num_sms) as usize * PART_WORDS * 4
    }

    /// Waits for the stream and says whether every launch so far completed: `false` if what one block waits for from
    /// another did not come in time, after which results and workspace are void.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    pub fn is_sound(&self, stream: &Stream) -> Result<bool, CudaError> {
        let mut word = [0];
        self.error.read(stream, &mut word)?;
        Ok(word[0] == 0)
    }

    /// Waits for the stream and says how many experts the last launch's tokens chose together.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    pub fn num_distinct_experts(&self, stream: &Stream) -> Result<u32, CudaError> {
        let mut counts = [0; 4];
        self.counts.read(stream, &mut counts)?;
        Ok(counts[2])
    }
}

fn check_shape(shape: &MoeShape) -> Result<(), LaunchError> {
    let checks = Checks("moe_ffn");
    checks.require(
        (1..=MAX_EXPERTS).contains(&shape.num_experts),
        "num_experts",
        "from 1 to 512",
        shape.num_experts,
    )?;
    checks.require(
        (1..=MAX_TOP_K.min(shape.num_experts)).contains(&shape.top_k),
        "top_k",
        "from 1 to 32, and no more than there are experts",
        shape.top_k,
    )?;
    checks.require(
        shape.hidden <= MAX_HIDDEN,
        "hidden",
        "at most 8192",
        shape.hidden,
    )?;
    for (what, size) in [
        ("hidden", shape.hidden),
        ("intermediate", shape.intermediate),
    ] {
        let holds = size > 0 && size.is_multiple_of(8);
        checks.require(holds, what, "a multiple of 8", size)?;
    }
    Ok(())
}
