//! Products with the residual stream: output projections, the dense feed-forward part, and the head.

use super::{Step, TokenRange, tiles_per_item};
use crate::cpu::acts::{ActsView, MAX_WIDTH};
use crate::cpu::format::GROUP;
use crate::cpu::math::{AddTo, SwiGlu};
use crate::cpu::pack::Matrix;
use crate::cpu::simd::LANES;
use crate::cpu::team::Rank;
use crate::cpu::weights::GatedMlp;

impl Step<'_> {
    /// `residual += matrix × acts`, by runs of tiles.
    pub(super) fn add_product(&self, rank: &Rank<'_>, matrix: &Matrix, acts: &ActsView) {
        let run = tiles_per_item(matrix.num_tiles(), rank.size());
        self.for_each_unit(rank, matrix.num_tiles().div_ceil(run), |unit, tokens| {
            let tiles = unit * run..matrix.num_tiles().min((unit + 1) * run);
            let (scratch, stride) = (self.scratch(rank), tiles.len() * LANES);
            let columns = tiles.start * LANES..matrix.rows.min(tiles.end * LANES);
            for (block, first, count) in tokens.blocks(acts.width) {
                self.product(
                    matrix,
                    tiles.clone(),
                    (acts, block),
                    count,
                    (scratch, stride),
                );
                for (m, sums) in scratch.chunks_exact(stride).take(count).enumerate() {
                    let at = (first + m) * self.hidden + columns.start;
                    // SAFETY: these columns of the token's row are this item's.
                    let row = unsafe { self.residual.slice_mut(at, columns.len()) };
                    self.kernel(AddTo {
                        row,
                        addend: &sums[..columns.len()],
                    });
                }
            }
        });
    }

    pub(super) fn dense_ffn(&self, rank: &Rank<'_>, mlp: &GatedMlp) {
        self.for_each_unit(rank, mlp.gate.rows.div_ceil(GROUP), |group, tokens| {
            for (block, first, count) in tokens.blocks(self.normed.width) {
                let input = (&self.normed, block);
                self.gated_group(rank, mlp, group, input, count, &self.inner, first);
            }
        });
        self.add_product(rank, &mlp.down, &self.inner);
    }

    /// SwiGLU features `32 * group..` of up to 16 tokens: gate and up side by side, then `silu(gate) * up` into `out`.
    #[expect(
        clippy::too_many_arguments,
        reason = "two call sites; a struct would only repeat the names"
    )]
    pub(in crate::cpu) fn gated_group(
        &self,
        rank: &Rank<'_>,
        mlp: &GatedMlp,
        group: usize,
        (acts, block): (&ActsView, usize),
        num_tokens: usize,
        out: &ActsView,
        first_token: usize,
    ) {
        const STRIDE: usize = 2 * GROUP;
        let tiles = group * 2..mlp.gate.num_tiles().min(group * 2 + 2);
        let scratch = &mut self.scratch(rank)[..MAX_WIDTH * STRIDE];
        if tiles.len() == 1 {
            // Half a group: the other half must read zero.
            scratch.fill(0.0);
        }
        self.product(
            &mlp.gate,
            tiles.clone(),
            (acts, block),
            num_tokens,
            (scratch, STRIDE),
        );
        self.product(
            &mlp.up,
            tiles,
            (acts, block),
            num_tokens,
            (&mut scratch[GROUP..], STRIDE),
        );
        self.kernel(SwiGlu {
            projected: scratch,
            stride: STRIDE,
            num_tokens,
            out,
            first_token,
            group,
        });
    }

    /// Final norm of the rows that get logits, then the head over the vocabulary.
    pub(super) fn head(&self, rank: &Rank<'_>) {
        let rows = &self.plan.logit_tokens;
        if rows.is_empty() {
            return;
        }
        rank.for_each(rows.len(), |row| {
            self.norm(
                rows[row] as usize,
                &self.weights.final_norm,
                &self.normed_rows,
                row,
            );
        });
        let matrix = &self.weights.head;
        let run = tiles_per_item(matrix.num_tiles(), rank.size());
        let vocab = self.config.vocab_size;
        rank.for_each(matrix.num_tiles().div_ceil(run), |unit| {
            let tiles = unit * run..matrix.num_tiles().min((unit + 1) * run);
            let (scratch, stride) = (self.scratch(rank), tiles.len() * LANES);
            let columns = tiles.start * LANES..matrix.rows.min(tiles.end * LANES);
            let range = TokenRange {
                first: 0,
                end: rows.len(),
            };
            for (block, first, count) in range.blocks(self.normed_rows.width) {
                self.product(
                    matrix,
                    tiles.clone(),
                    (&self.normed_rows, block),
                    count,
                    (scratch, stride),
                );
                for (m, sums) in scratch.chunks_exact(stride).take(count).enumerate() {
                    let at = (first + m) * vocab + columns.start;
                    // SAFETY: these columns of the row are this item's.
                    let out = unsafe { self.logits.slice_mut(at, columns.len()) };
                    out.copy_from_slice(&sums[..columns.len()]);
                }
            }
        });
    }
}
