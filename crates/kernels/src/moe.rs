//! `moe_ffn`: the feed-forward part of a mixture-of-experts layer, for any number of tokens.
//!
//! ```text
//! route (softmax, top k, sort by expert) │ gather rows │ gate and up, SwiGLU │ down │ y += weighted sum
//! ```
//!
//! Groups of rows with one expert are multiplied together; how many groups there are is known to the device alone, so one
//! captured launch serves every routing. Up to 16 tokens nothing is gathered: all tokens are multiplied by each chosen
//! expert, and only the rows that chose it are kept. A token's result does not depend on the other tokens, nor on how many
//! there are. `cuda/ops/moe_route.cu`, `moe_permute.cu` and `expert_projection.cu` say how.

use std::ffi::c_void;

use half::bf16;

use crate::device::Device;
use crate::device_word::DeviceWord;
use crate::error::{CudaError, check};
use crate::ffi;
use crate::launch_error::{Checks, LaunchError};
use crate::matrix::Matrix;
use crate::memory::DeviceBuffer;
use crate::stream::Stream;

/// Experts that the router kernel has registers for.
const MAX_EXPERTS: u32 = 512;
/// Choices that the lanes of a warp can hold.
const MAX_TOP_K: u32 = 32;
/// Up to here every expert multiplies all tokens.
const MAX_UNGATHERED: u32 = 16;
/// Blocks of a projection on each SM.
const BLOCKS_PER_SM: u32 = 2;
/// f32 words that a block may leave for another: a piece of 64 weight rows by 64 rows.
const PART_WORDS: usize = 64 * 64;

/// Mirrors `IzarMoeRouteArgs`.
#[repr(C)]
pub(crate) struct RouteArgs {
    logits: *const c_void,
    tokens_here: *const c_void,
    shares: *mut c_void,
    slots: *mut c_void,
    sources: *mut c_void,
    groups: *mut c_void,
    columns: *mut c_void,
    counts: *mut c_void,
    experts: *mut c_void,
    places: *mut c_void,
    num_tokens: u32,
    num_experts: u32,
    top_k: u32,
    tile_tokens: u32,
    normalise: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<RouteArgs>() == 104);

/// Mirrors `IzarMoeGatherArgs`.
#[repr(C)]
pub(crate) struct GatherArgs {
    x: *const c_void,
    sorted: *mut c_void,
    sources: *const c_void,
    counts: *const c_void,
    max_rows: u32,
    width: u32,
    x_stride: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<GatherArgs>() == 48);

/// Mirrors `IzarMoeCombineArgs`.
#[repr(C)]
pub(crate) struct CombineArgs {
    outputs: *const c_void,
    y: *mut c_void,
    shares: *const c_void,
    slots: *const c_void,
    tokens_here: *const c_void,
    num_tokens: u32,
    top_k: u32,
    width: u32,
    y_stride: u32,
}

const _: () = assert!(size_of::<CombineArgs>() == 56);

/// Mirrors `IzarExpertProjectionArgs`.
#[repr(C)]
pub(crate) struct ExpertProjectionArgs {
    weight: *const c_void,
    x: *const c_void,
    y: *mut c_void,
    groups: *const c_void,
    columns: *const c_void,
    counts: *const c_void,
    parts: *mut c_void,
    error: *mut c_void,
    num_experts: u32,
    num_rows: u32,
    depth: u32,
    num_x_rows: u32,
    tile_tokens: u32,
    num_blocks: u32,
    swiglu: u32,
    waits_for_groups: u32,
}

const _: () = assert!(size_of::<ExpertProjectionArgs>() == 96);

/// Sizes of a layer's experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeShape {
    /// Experts, at most 512.
    pub num_experts: u32,
    /// Experts a token goes to, at most 32.
    pub top_k: u32,
    /// Elements of a token, a multiple of 8.
    pub hidden: u32,
    /// Elements inside an expert, a multiple of 8.
    pub intermediate: u32,
    /// Sum of a token's shares is 1 (`norm_topk_prob`).
    pub normalise: bool,
}

/// One layer's feed-forward part.
#[derive(Debug, Clone, Copy)]
pub struct MoeFfn<'a> {
    /// The router's output, `[tokens, experts]` f32, dense.
    pub logits: Matrix<'a, f32>,
    /// `[tokens, hidden]`, dense.
    pub x: Matrix<'a>,
    /// `[experts * 2 * intermediate, hidden]`, dense: by expert, gates first.
    pub gate_up: Matrix<'a>,
    /// `[experts * hidden, intermediate]`, dense: by expert.
    pub down: Matrix<'a>,
    /// `[tokens, hidden]`: what the result is added to.
    pub y: Matrix<'a>,
    /// Tokens of this step; rows beyond are padding, which loads no expert and is not written.
    pub tokens_here: DeviceWord<'a>,
}

/// Memory of the layer that is running. One launch at a time may use it: give each stream its own.
#[derive(Debug)]
pub struct MoeWorkspace {
    shape: MoeShape,
    max_tokens: u32,
    num_blocks: u32,
    shares: DeviceBuffer<f32>,
    slots: DeviceBuffer<u32>,
    sources: DeviceBuffer<u32>,
    groups: DeviceBuffer<[u32; 4]>,
    columns: DeviceBuffer<u32>,
    counts: DeviceBuffer<u32>,
    experts: DeviceBuffer<u32>,
    places: DeviceBuffer<u32>,
    sorted: DeviceBuffer<bf16>,
    inner: DeviceBuffer<bf16>,
    outputs: DeviceBuffer<bf16>,
    parts: DeviceBuffer<u32>,
    error: DeviceBuffer<u32>,
}

/// Rows of a group: enough for most experts of a step with that many tokens to be one group, few enough to keep the
/// tensor cores' work small.
fn tile_tokens(num_tokens: u32, shape: &MoeShape) -> u32 {
    if num_tokens <= MAX_UNGATHERED {
        return num_tokens.next_power_of_two().max(8);
    }
    // Twice the mean leaves few experts a second group.
    let mean = (num_tokens * shape.top_k).div_ceil(shape.num_experts);
    (2 * mean).next_power_of_two().clamp(16, 64)
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
        let checks = Checks("moe_ffn");
        let MoeShape {
            num_experts,
            top_k,
            hidden,
            intermediate,
            ..
        } = shape;
        checks.require(
            (1..=MAX_EXPERTS).contains(&num_experts),
            "num_experts",
            "from 1 to 512",
            num_experts,
        )?;
        checks.require(
            (1..=MAX_TOP_K.min(num_experts)).contains(&top_k),
            "top_k",
            "from 1 to 32, and no more than there are experts",
            top_k,
        )?;
        for (what, size) in [("hidden", hidden), ("intermediate", intermediate)] {
            let holds = size > 0 && size.is_multiple_of(8);
            checks.require(holds, what, "a multiple of 8", size)?;
        }
        let rows = max_tokens as usize * top_k as usize;
        // Two an SM: while one drains between tiles the other's loads go on (docs/perf/h200-kernels.md).
        let num_blocks = BLOCKS_PER_SM * device.num_multiprocessors()?;
        // Every expert may leave a group half empty, groups of 8 are the smallest, and one past the last is read.
        let max_groups = rows / 8 + num_experts as usize + 1;
        let groups = DeviceBuffer::new(device, max_groups)?;
        groups.fill_bytes(stream, 0)?;
        let parts = DeviceBuffer::new(device, num_blocks as usize * PART_WORDS)?;
        parts.fill_bytes(stream, 0xFF)?;
        let error = DeviceBuffer::new(device, 1)?;
        error.fill_bytes(stream, 0)?;
        // Read only where written by the same launch, but a sanitizer cannot know what no result depends on.
        let zeroed = |len: usize| -> Result<DeviceBuffer<bf16>, CudaError> {
            let buffer = DeviceBuffer::new(device, len)?;
            buffer.fill_bytes(stream, 0)?;
            Ok(buffer)
        };
        Ok(Self {
            shape,
            max_tokens,
            num_blocks,
            shares: DeviceBuffer::new(device, rows)?,
            slots: DeviceBuffer::new(device, rows)?,
            sources: DeviceBuffer::new(device, rows)?,
            groups,
            columns: DeviceBuffer::new(device, num_experts as usize * MAX_UNGATHERED as usize)?,
            counts: DeviceBuffer::new(device, 4)?,
            experts: DeviceBuffer::new(device, rows)?,
            places: DeviceBuffer::new(device, rows)?,
            sorted: zeroed(rows * hidden as usize)?,
            inner: zeroed(rows * intermediate as usize)?,
            outputs: zeroed(rows * hidden as usize)?,
            parts,
            error,
        })
    }

    /// Bytes of device memory that a workspace takes.
    #[must_use]
    pub fn bytes(shape: &MoeShape, max_tokens: u32, num_sms: u32) -> usize {
        let rows = max_tokens as usize * shape.top_k as usize;
        let row = 2 * (2 * shape.hidden as usize + shape.intermediate as usize);
        let lists = rows * 5 * 4 + (rows / 8 + shape.num_experts as usize) * 16;
        rows * row + lists + (BLOCKS_PER_SM * num_sms) as usize * PART_WORDS * 4
    }

    /// Waits for the stream and says whether every launch so far completed: `false` if a block's part did not come in
    /// time, after which results and workspace are void.
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

    fn project(
        &self,
        stream: &Stream,
        weight: Matrix<'_>,
        (x, num_x_rows): (*const c_void, u32),
        y: *mut c_void,
        options: ProjectionOptions,
    ) -> Result<(), CudaError> {
        let args = ExpertProjectionArgs {
            weight: weight.address(),
            x,
            y,
            groups: self.groups.address_of(0),
            columns: match options.is_ungathered {
                true => self.columns.address_of(0),
                false => std::ptr::null(),
            },
            counts: self.counts.address_of(0),
            parts: self.parts.address_of(0),
            error: self.error.address_of(0),
            num_experts: self.shape.num_experts,
            num_rows: weight.rows() / self.shape.num_experts,
            depth: weight.cols(),
            num_x_rows,
            tile_tokens: options.tile_tokens,
            num_blocks: self.num_blocks,
            swiglu: options.swiglu.into(),
            waits_for_groups: options.is_ungathered.into(),
        };
        let raw = stream.for_launch()?;
        // SAFETY: the caller checked the shapes; the workspace has rows for every choice and parts for every block; buffers
        // outlive work on them.
        check("expert_projection", unsafe {
            ffi::izar_expert_projection(&args, raw)
        })
    }
}

#[derive(Clone, Copy)]
struct ProjectionOptions {
    tile_tokens: u32,
    /// `x` holds tokens, not sorted rows, and the kernel before writes the groups.
    is_ungathered: bool,
    swiglu: bool,
}

impl MoeFfn<'_> {
    fn check(&self, workspace: &MoeWorkspace) -> Result<(), LaunchError> {
        let checks = Checks("moe_ffn");
        let MoeShape {
            num_experts,
            hidden,
            intermediate,
            ..
        } = workspace.shape;
        let tokens = self.x.rows();
        checks.require(
            tokens <= workspace.max_tokens,
            "tokens",
            "at most the workspace's",
            tokens,
        )?;
        let is = |what: &'static str, got: [u32; 3], wanted: [u32; 2], stride: u32| {
            checks.require(
                got == [wanted[0], wanted[1], stride],
                what,
                "of the workspace's shape, and dense",
                u64::from(got[0]) * u64::from(got[1]),
            )
        };
        let (logits, x, gate_up, down) = (self.logits, self.x, self.gate_up, self.down);
        is(
            "logits",
            [logits.rows(), logits.cols(), logits.stride()],
            [tokens, num_experts],
            num_experts,
        )?;
        is(
            "x",
            [x.rows(), x.cols(), x.stride()],
            [tokens, hidden],
            hidden,
        )?;
        is(
            "gate_up",
            [gate_up.rows(), gate_up.cols(), gate_up.stride()],
            [num_experts * 2 * intermediate, hidden],
            hidden,
        )?;
        is(
            "down",
            [down.rows(), down.cols(), down.stride()],
            [num_experts * hidden, intermediate],
            intermediate,
        )?;
        let y = self.y;
        checks.require(
            y.rows() == tokens && y.cols() == hidden,
            "y",
            "[tokens, hidden]",
            y.cols(),
        )?;
        for (what, is_aligned) in [
            ("x", x.is_aligned(16)),
            ("gate_up", gate_up.is_aligned(16)),
            ("down", down.is_aligned(16)),
            ("y", y.is_aligned(16)),
        ] {
            checks.require(is_aligned, what, "16-byte aligned by row", 0u64)?;
        }
        Ok(())
    }
}

/// Launches one layer's feed-forward part into `stream`: `y += sum of the chosen experts' outputs by share`.
///
/// # Errors
/// [`LaunchError`]; after an argument's error nothing was launched.
pub fn moe_ffn(
    stream: &Stream,
    ffn: &MoeFfn<'_>,
    workspace: &MoeWorkspace,
) -> Result<(), LaunchError> {
    ffn.check(workspace)?;
    let shape = workspace.shape;
    let num_tokens = ffn.x.rows();
    let num_rows = num_tokens * shape.top_k;
    let is_ungathered = num_tokens <= MAX_UNGATHERED;
    let tile_tokens = tile_tokens(num_tokens, &shape);
    route(stream, ffn, workspace, tile_tokens, is_ungathered)?;
    let x = if is_ungathered {
        (ffn.x.address().cast_const(), num_tokens)
    } else {
        gather(stream, ffn, workspace)?;
        (workspace.sorted.address_of(0).cast_const(), num_rows)
    };
    let inner = workspace.inner.address_of(0);
    let options = ProjectionOptions {
        tile_tokens,
        is_ungathered,
        swiglu: true,
    };
    workspace.project(stream, ffn.gate_up, x, inner, options)?;
    let options = ProjectionOptions {
        is_ungathered: false,
        swiglu: false,
        ..options
    };
    let outputs = workspace.outputs.address_of(0);
    workspace.project(stream, ffn.down, (inner, num_rows), outputs, options)?;
    combine(stream, ffn, workspace)
}

fn route(
    stream: &Stream,
    ffn: &MoeFfn<'_>,
    workspace: &MoeWorkspace,
    tile_tokens: u32,
    is_ungathered: bool,
) -> Result<(), LaunchError> {
    let args = RouteArgs {
        logits: ffn.logits.address(),
        tokens_here: ffn.tokens_here.address(),
        shares: workspace.shares.address_of(0),
        slots: workspace.slots.address_of(0),
        sources: workspace.sources.address_of(0),
        groups: workspace.groups.address_of(0),
        columns: match is_ungathered {
            true => workspace.columns.address_of(0),
            false => std::ptr::null_mut(),
        },
        counts: workspace.counts.address_of(0),
        experts: workspace.experts.address_of(0),
        places: workspace.places.address_of(0),
        num_tokens: ffn.x.rows(),
        num_experts: workspace.shape.num_experts,
        top_k: workspace.shape.top_k,
        tile_tokens,
        normalise: workspace.shape.normalise.into(),
        reserved: 0,
    };
    let raw = stream.for_launch()?;
    // SAFETY: shapes were checked; every list has room for all choices of max_tokens tokens.
    check("moe_route", unsafe { ffi::izar_moe_route(&args, raw) })?;
    Ok(())
}

fn gather(stream: &Stream, ffn: &MoeFfn<'_>, workspace: &MoeWorkspace) -> Result<(), LaunchError> {
    let args = GatherArgs {
        x: ffn.x.address(),
        sorted: workspace.sorted.address_of(0),
        sources: workspace.sources.address_of(0),
        counts: workspace.counts.address_of(0),
        max_rows: ffn.x.rows() * workspace.shape.top_k,
        width: ffn.x.cols(),
        x_stride: ffn.x.stride(),
        reserved: 0,
    };
    let raw = stream.for_launch()?;
    // SAFETY: shapes were checked; sources hold tokens of the step.
    check("moe_gather", unsafe { ffi::izar_moe_gather(&args, raw) })?;
    Ok(())
}

fn combine(stream: &Stream, ffn: &MoeFfn<'_>, workspace: &MoeWorkspace) -> Result<(), LaunchError> {
    let args = CombineArgs {
        outputs: workspace.outputs.address_of(0),
        y: ffn.y.address(),
        shares: workspace.shares.address_of(0),
        slots: workspace.slots.address_of(0),
        tokens_here: ffn.tokens_here.address(),
        num_tokens: ffn.y.rows(),
        top_k: workspace.shape.top_k,
        width: ffn.y.cols(),
        y_stride: ffn.y.stride(),
    };
    let raw = stream.for_launch()?;
    // SAFETY: shapes were checked; slots hold sorted rows of the step.
    check("moe_combine", unsafe { ffi::izar_moe_combine(&args, raw) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{MoeShape, tile_tokens};

    #[test]
    fn groups_are_as_large_as_the_kernels_take_and_hold_all_ungathered_tokens() {
        let shape = |num_experts, top_k| MoeShape {
            num_experts,
            top_k,
            hidden: 64,
            intermediate: 64,
            normalise: true,
        };
        for shape in [shape(128, 8), shape(8, 2), shape(512, 32), shape(1, 1)] {
            for tokens in 1..=9000 {
                let tile = tile_tokens(tokens, &shape);
                assert!([8, 16, 32, 64].contains(&tile), "{tokens}: {tile}");
                assert!(tokens > 16 || tile >= tokens, "{tokens}: {tile}");
            }
        }
    }
}
