//! What `moe_ffn` asks of its arguments.

use crate::launch_error::{Checks, LaunchError};
use crate::matrix::Matrix;

use super::{MAX_ROUTER_TOKENS, MoeChoice, MoeFfn, MoeShape, MoeWorkspace};

const CHECKS: Checks = Checks("moe_ffn");

impl MoeFfn<'_> {
    pub(super) fn check(&self, workspace: &MoeWorkspace) -> Result<(), LaunchError> {
        let MoeShape {
            num_experts,
            hidden,
            intermediate,
            ..
        } = workspace.shape;
        let tokens = self.x.rows();
        CHECKS.require(
            tokens <= workspace.max_tokens,
            "tokens",
            "at most the workspace's",
            tokens,
        )?;
        dense("x", self.x, [tokens, hidden])?;
        let gate_up = [num_experts * 2 * intermediate, hidden];
        dense("gate_up", self.gate_up, gate_up)?;
        dense("down", self.down, [num_experts * hidden, intermediate])?;
        self.check_choice(tokens, &workspace.shape)?;
        rows("y", self.y, tokens, hidden)?;
        if let Some((norm, normed)) = self.normed {
            dense("norm of y", norm.weight, [1, hidden])?;
            dense("normed", normed, [tokens, hidden])?;
        }
        Ok(())
    }

    fn check_choice(&self, tokens: u32, shape: &MoeShape) -> Result<(), LaunchError> {
        match self.choice {
            MoeChoice::Logits(logits) => dense_any("logits", logits, [tokens, shape.num_experts]),
            MoeChoice::Router {
                residual,
                norm,
                weight,
            } => {
                CHECKS.require(
                    tokens <= MAX_ROUTER_TOKENS,
                    "tokens",
                    "at most 64 with a router",
                    tokens,
                )?;
                rows("residual", residual, tokens, shape.hidden)?;
                dense("norm", norm.weight, [1, shape.hidden])?;
                dense("router", weight, [shape.num_experts, shape.hidden])
            }
        }
    }
}

fn dense_any<T: bytemuck::Pod>(
    what: &'static str,
    matrix: Matrix<'_, T>,
    shape: [u32; 2],
) -> Result<(), LaunchError> {
    let got = [matrix.rows(), matrix.cols()];
    CHECKS.require(
        got == shape && (matrix.stride() == shape[1] || shape[0] == 1),
        what,
        "of the workspace's shape, and dense",
        u64::from(got[0]) * u64::from(got[1]),
    )
}

fn dense(what: &'static str, matrix: Matrix<'_>, shape: [u32; 2]) -> Result<(), LaunchError> {
    dense_any(what, matrix, shape)?;
    aligned(what, matrix)
}

fn rows(what: &'static str, matrix: Matrix<'_>, rows: u32, cols: u32) -> Result<(), LaunchError> {
    CHECKS.require(
        [matrix.rows(), matrix.cols()] == [rows, cols],
        what,
        "[tokens, hidden]",
        matrix.cols(),
    )?;
    aligned(what, matrix)
}

fn aligned(what: &'static str, matrix: Matrix<'_>) -> Result<(), LaunchError> {
    CHECKS.require(matrix.is_aligned(16), what, "16-byte aligned by row", 0u64)
}
