//! `moe_ffn`: the feed-forward part of a mixture-of-experts layer, for any number of tokens.
//!
//! ```text
//! up to 64 tokens: norm, router, top k, sort │ gather rows (from 17 on) │ gate and up, SwiGLU │ down │ y += weighted sum, norm
//! beyond, logits given:    top k │ sort │ gather rows                   │ gate and up, SwiGLU │ down │ y += weighted sum, norm
//! ```
//!
//! Groups of rows with one expert are multiplied together; how many groups there are is known to the device alone, so one
//! captured launch serves every routing. Up to 16 tokens nothing is gathered: all tokens are multiplied by each chosen
//! expert, and only the rows that chose it are kept. A token's result does not depend on the other tokens, nor, below 256
//! tokens and from there on, on how many there are. `cuda/ops/moe_select.cu`, `moe_route.cu`, `moe_permute.cu`,
//! `expert_projection.cu` and, from 256 tokens on, `expert_gemm.cu` say how.

mod args;
mod check;
mod workspace;

use std::ffi::c_void;

use crate::device_word::DeviceWord;
use crate::error::{CudaError, check};
use crate::ffi;
use crate::launch_error::LaunchError;
use crate::matrix::Matrix;
use crate::stream::Stream;

pub(crate) use args::{
    CombineArgs, ExpertGemmArgs, ExpertProjectionArgs, GatherArgs, RouteArgs, SelectArgs,
};
pub use workspace::MoeWorkspace;

/// Most tokens that `moe_ffn` projects on the router itself.
pub const MAX_ROUTER_TOKENS: u32 = 64;
/// Up to here every expert multiplies all tokens.
const MAX_UNGATHERED: u32 = 16;
/// From here on the tensor cores are what counts (docs/perf/h200-kernels.md).
const GEMM_TOKENS: u32 = 256;
/// Most rows of a group then.
const GEMM_TILE_TOKENS: u32 = 192;
/// Blocks of `expert_projection` on each SM; of `expert_gemm` there is one.
const BLOCKS_PER_SM: u32 = 2;

/// Sizes of a layer's experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeShape {
    /// Experts, at most 512.
    pub num_experts: u32,
    /// Experts a token goes to, at most 32.
    pub top_k: u32,
    /// Elements of a token, a multiple of 8, at most 8192.
    pub hidden: u32,
    /// Elements inside an expert, a multiple of 8.
    pub intermediate: u32,
    /// Sum of a token's shares is 1 (`norm_topk_prob`).
    pub normalise: bool,
}

/// What decides on the experts.
#[derive(Debug, Clone, Copy)]
pub enum MoeChoice<'a> {
    /// The router's output, `[tokens, experts]` f32, dense.
    Logits(Matrix<'a, f32>),
    /// For at most [`MAX_ROUTER_TOKENS`] tokens: the residual stream, which is normalised into the layer's `x` and projected.
    Router {
        /// `[tokens, hidden]`: the residual stream.
        residual: Matrix<'a>,
        /// How it is normalised.
        norm: Norm<'a>,
        /// `[experts, hidden]`, dense.
        weight: Matrix<'a>,
    },
}

/// A root-mean-square norm.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// `[1, hidden]`. Written by neither of the two kernels before in the stream.
    pub weight: Matrix<'a>,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// One layer's feed-forward part.
#[derive(Debug, Clone, Copy)]
pub struct MoeFfn<'a> {
    /// What decides on the experts.
    pub choice: MoeChoice<'a>,
    /// `[tokens, hidden]`, dense: what the experts multiply. Written with [`MoeChoice::Router`].
    pub x: Matrix<'a>,
    /// `[experts * 2 * intermediate, hidden]`, dense: by expert, gates first.
    pub gate_up: Matrix<'a>,
    /// `[experts * hidden, intermediate]`, dense: by expert.
    pub down: Matrix<'a>,
    /// `[tokens, hidden]`: what the result is added to.
    pub y: Matrix<'a>,
    /// The norm of the finished `y`, and the dense `[tokens, hidden]` it goes to; may be `x`.
    pub normed: Option<(Norm<'a>, Matrix<'a>)>,
    /// Tokens of this step; rows beyond are padding, which loads no expert and is not written. Written by none of the
    /// kernels before in the stream that may still run when the one just before starts.
    pub tokens_here: DeviceWord<'a>,
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
    let launch = Launch {
        stream,
        ffn,
        workspace,
        tiling: Tiling::of(ffn, &workspace.shape),
    };
    launch.choose()?;
    launch.project()?;
    launch.combine()?;
    Ok(())
}

/// How rows are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tiling {
    /// Most rows of a group.
    tile_tokens: u32,
    /// The experts multiply tokens, not rows sorted by expert: a group has room for all tokens.
    is_ungathered: bool,
    /// By `expert_gemm`, not `expert_projection`.
    is_gemm: bool,
}

impl Tiling {
    fn of(ffn: &MoeFfn<'_>, shape: &MoeShape) -> Self {
        Self::of_tokens(
            ffn.x.rows(),
            matches!(ffn.choice, MoeChoice::Router { .. }),
            shape,
        )
    }

    /// Groups large enough for most experts to be one group, and small enough to keep the tensor cores' work small.
    fn of_tokens(num_tokens: u32, is_selected: bool, shape: &MoeShape) -> Self {
        if is_selected && num_tokens <= MAX_UNGATHERED {
            return Self {
                tile_tokens: num_tokens.next_power_of_two().max(8),
                is_ungathered: true,
                is_gemm: false,
            };
        }
        if num_tokens >= GEMM_TOKENS {
            return Self {
                tile_tokens: GEMM_TILE_TOKENS,
                is_ungathered: false,
                is_gemm: true,
            };
        }
        // Twice the mean leaves few experts a second group.
        let mean = (num_tokens * shape.top_k).div_ceil(shape.num_experts);
        Self {
            tile_tokens: (2 * mean).next_power_of_two().clamp(16, 64),
            is_ungathered: false,
            is_gemm: false,
        }
    }
}

struct Launch<'a> {
    stream: &'a Stream,
    ffn: &'a MoeFfn<'a>,
    workspace: &'a MoeWorkspace,
    tiling: Tiling,
}

impl Launch<'_> {
    fn choose(&self) -> Result<(), CudaError> {
        match self.ffn.choice {
            MoeChoice::Logits(logits) => self.route(logits),
            MoeChoice::Router {
                residual,
                norm,
                weight,
            } => self.select(residual, norm, weight),
        }
    }

    fn route(&self, logits: Matrix<'_, f32>) -> Result<(), CudaError> {
        let Self { ffn, workspace, .. } = self;
        let args = RouteArgs {
            logits: logits.address(),
            tokens_here: ffn.tokens_here.address(),
            shares: workspace.shares.address_of(0),
            slots: workspace.slots.address_of(0),
            sources: workspace.sources.address_of(0),
            groups: workspace.groups.address_of(0),
            counts: workspace.counts.address_of(0),
            experts: workspace.experts.address_of(0),
            places: workspace.places.address_of(0),
            num_tokens: ffn.x.rows(),
            num_experts: workspace.shape.num_experts,
            top_k: workspace.shape.top_k,
            tile_tokens: self.tiling.tile_tokens,
            normalise: workspace.shape.normalise.into(),
            reserved: 0,
        };
        let raw = self.stream.for_launch()?;
        // SAFETY: shapes were checked; every list has room for all choices of max_tokens tokens.
        check("moe_route", unsafe { ffi::izar_moe_route(&args, raw) })
    }

    fn select(
        &self,
        residual: Matrix<'_>,
        norm: Norm<'_>,
        weight: Matrix<'_>,
    ) -> Result<(), CudaError> {
        let Self { ffn, workspace, .. } = self;
        let args = SelectArgs {
            x: residual.address(),
            norm: norm.weight.address(),
            router: weight.address(),
            normed: ffn.x.address(),
            tokens_here: ffn.tokens_here.address(),
            shares: workspace.shares.address_of(0),
            slots: workspace.slots.address_of(0),
            sources: workspace.sources.address_of(0),
            groups: workspace.groups.address_of(0),
            columns: match self.tiling.is_ungathered {
                true => workspace.columns.address_of(0),
                false => std::ptr::null_mut(),
            },
            counts: workspace.counts.address_of(0),
            logits: workspace.logits.address_of(0),
            choices: workspace.choices.address_of(0),
            error: workspace.error.address_of(0),
            num_tokens: ffn.x.rows(),
            num_experts: workspace.shape.num_experts,
            top_k: workspace.shape.top_k,
            tile_tokens: self.tiling.tile_tokens,
            hidden: workspace.shape.hidden,
            x_stride: residual.stride(),
            normalise: workspace.shape.normalise.into(),
            epsilon: norm.epsilon,
        };
        let raw = self.stream.for_launch()?;
        // SAFETY: shapes and the number of tokens were checked; every list has room for all choices of max_tokens tokens,
        // and columns for every expert's group.
        check("moe_select", unsafe { ffi::izar_moe_select(&args, raw) })
    }

    fn project(&self) -> Result<(), CudaError> {
        let Self { ffn, workspace, .. } = self;
        let num_rows = ffn.x.rows() * workspace.shape.top_k;
        let x = if self.tiling.is_ungathered {
            (ffn.x.address().cast_const(), ffn.x.rows())
        } else {
            self.gather()?;
            (workspace.sorted.address_of(0).cast_const(), num_rows)
        };
        let (inner, outputs) = (
            workspace.inner.address_of(0),
            workspace.outputs.address_of(0),
        );
        let inner_rows = (inner.cast_const(), num_rows);
        if self.tiling.is_gemm {
            self.multiply_experts(ffn.gate_up, x, inner, true)?;
            return self.multiply_experts(ffn.down, inner_rows, outputs, false);
        }
        self.project_experts(ffn.gate_up, x, inner, true)?;
        self.project_experts(ffn.down, inner_rows, outputs, false)
    }

    fn gather(&self) -> Result<(), CudaError> {
        let Self { ffn, workspace, .. } = self;
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
        let raw = self.stream.for_launch()?;
        // SAFETY: shapes were checked; sources hold tokens of the step.
        check("moe_gather", unsafe { ffi::izar_moe_gather(&args, raw) })
    }

    /// `is_first`: the gates and ups, which read what was chosen and, ungathered, come right after the kernel that chose.
    fn project_experts(
        &self,
        weight: Matrix<'_>,
        (x, num_x_rows): (*const c_void, u32),
        y: *mut c_void,
        is_first: bool,
    ) -> Result<(), CudaError> {
        let workspace = self.workspace;
        let is_ungathered = is_first && self.tiling.is_ungathered;
        let args = ExpertProjectionArgs {
            weight: weight.address(),
            x,
            y,
            groups: workspace.groups.address_of(0),
            columns: match is_ungathered {
                true => workspace.columns.address_of(0),
                false => std::ptr::null(),
            },
            counts: workspace.counts.address_of(0),
            parts: workspace.parts.address_of(0),
            error: workspace.error.address_of(0),
            num_experts: workspace.shape.num_experts,
            num_rows: weight.rows() / workspace.shape.num_experts,
            depth: weight.cols(),
            num_x_rows,
            tile_tokens: self.tiling.tile_tokens,
            num_blocks: workspace.num_blocks,
            swiglu: is_first.into(),
            waits_for_groups: is_ungathered.into(),
        };
        let raw = self.stream.for_launch()?;
        // SAFETY: shapes were checked; the workspace has rows for every choice and parts for every block; buffers outlive
        // work on them.
        check("expert_projection", unsafe {
            ffi::izar_expert_projection(&args, raw)
        })
    }

    /// `is_first`: the gates and ups.
    fn multiply_experts(
        &self,
        weight: Matrix<'_>,
        (x, num_x_rows): (*const c_void, u32),
        y: *mut c_void,
        is_first: bool,
    ) -> Result<(), CudaError> {
        let workspace = self.workspace;
        let args = ExpertGemmArgs {
            weight: weight.address(),
            x,
            y,
            groups: workspace.groups.address_of(0),
            counts: workspace.counts.address_of(0),
            num_experts: workspace.shape.num_experts,
            num_rows: weight.rows() / workspace.shape.num_experts,
            depth: weight.cols(),
            num_x_rows,
            num_blocks: workspace.num_blocks / BLOCKS_PER_SM,
            swiglu: is_first.into(),
        };
        let raw = self.stream.for_launch()?;
        // SAFETY: shapes were checked; the workspace has rows for every choice; buffers outlive work on them.
        check("expert_gemm", unsafe { ffi::izar_expert_gemm(&args, raw) })
    }

    fn combine(&self) -> Result<(), CudaError> {
        let Self { ffn, workspace, .. } = self;
        let args = CombineArgs {
            outputs: workspace.outputs.address_of(0),
            y: ffn.y.address(),
            shares: workspace.shares.address_of(0),
            slots: workspace.slots.address_of(0),
            tokens_here: ffn.tokens_here.address(),
            norm: ffn.normed.map_or(std::ptr::null(), |(norm, _)| {
                norm.weight.address().cast_const()
            }),
            normed: ffn
                .normed
                .map_or(std::ptr::null_mut(), |(_, to)| to.address()),
            num_tokens: ffn.y.rows(),
            top_k: workspace.shape.top_k,
            width: ffn.y.cols(),
            y_stride: ffn.y.stride(),
            epsilon: ffn.normed.map_or(0.0, |(norm, _)| norm.epsilon),
            reserved: 0,
        };
        let raw = self.stream.for_launch()?;
        // SAFETY: shapes were checked; slots hold sorted rows of the step.
        check("moe_combine", unsafe { ffi::izar_moe_combine(&args, raw) })
    }
}

#[cfg(test)]
mod tests {
    use super::{MoeShape, Tiling};

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
                for is_selected in [tokens <= 64, false] {
                    let tiling = Tiling::of_tokens(tokens, is_selected, &shape);
                    let tile = tiling.tile_tokens;
                    assert!([8, 16, 32, 64, 192].contains(&tile), "{tokens}: {tile}");
                    assert!(!tiling.is_ungathered || tile >= tokens, "{tokens}: {tile}");
                }
            }
        }
    }
}
