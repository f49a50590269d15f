//! Mixture of experts: route every token, gather each expert's tokens, and run the experts as batched SwiGLU blocks.
//!
//! ```text
//! route: softmax over all experts, top k │ rank 0 lays out the experts' rows │ gather │ gate and up │ down │ weighted sum
//! ```
//!
//! Every (token, choice) pair owns a row. Rows of an expert are consecutive and start at a whole block, so an expert's tokens are
//! multiplied together. A token's sum runs over its choices from most to least probable, whatever the batch.

use izar_model::MoeConfig;

use super::acts::{Acts, ActsView, MAX_WIDTH, Precision};
use super::format::GROUP;
use super::math::AddScaled;
use super::memory::{Buffer, Shared};
use super::pack::Matrix;
use super::simd::LANES;
use super::step::{Step, TokenRange, tiles_per_item};
use super::team::Rank;
use super::weights::GatedMlp;

/// Storage for the largest step.
pub(super) struct MoeBuffers {
    top_k: usize,
    /// Router output, `[token][experts padded to tiles]`.
    scores: Buffer<f32>,
    /// Chosen expert and weight, `[token][top_k]`.
    experts: Buffer<u32>,
    shares: Buffer<f32>,
    /// Row of each choice, `[token][top_k]`.
    rows: Buffer<u32>,
    /// Per expert that has tokens: expert, first row, number of rows. The element after the last possible one: how many there are.
    active: Buffer<[u32; 3]>,
    gathered: Acts,
    inner: Acts,
    /// Expert outputs, `[row][hidden padded to groups]`.
    outputs: Buffer<f32>,
}

impl MoeBuffers {
    pub(super) fn new(
        moe: &MoeConfig,
        hidden: usize,
        tokens: usize,
        normed: Precision,
        inner: Precision,
    ) -> std::io::Result<Self> {
        let choices = tokens * moe.num_experts_per_tok;
        // Every active expert may leave the rest of a block empty.
        let rows =
            (choices + moe.num_experts.min(choices) * (MAX_WIDTH - 1)).next_multiple_of(MAX_WIDTH);
        Ok(Self {
            top_k: moe.num_experts_per_tok,
            scores: Buffer::zeroed(tokens * moe.num_experts.next_multiple_of(LANES))?,
            experts: Buffer::zeroed(choices)?,
            shares: Buffer::zeroed(choices)?,
            rows: Buffer::zeroed(choices)?,
            active: Buffer::zeroed(moe.num_experts + 1)?,
            gathered: Acts::new(rows, hidden, normed)?,
            inner: Acts::new(rows, moe.moe_intermediate_size, inner)?,
            outputs: Buffer::zeroed(rows * hidden.next_multiple_of(GROUP))?,
        })
    }

    pub(super) fn view(&mut self, width: usize) -> MoeStep {
        MoeStep {
            top_k: self.top_k,
            scores: self.scores.shared(),
            experts: self.experts.shared(),
            shares: self.shares.shared(),
            rows: self.rows.shared(),
            active: self.active.shared(),
            gathered: self.gathered.view(width),
            inner: self.inner.view(width),
            outputs: self.outputs.shared(),
        }
    }
}

/// The buffers as the ranks share them.
pub(super) struct MoeStep {
    top_k: usize,
    scores: Shared<f32>,
    experts: Shared<u32>,
    shares: Shared<f32>,
    rows: Shared<u32>,
    active: Shared<[u32; 3]>,
    gathered: ActsView,
    inner: ActsView,
    outputs: Shared<f32>,
}

/// The feed-forward part of a MoE layer: reads the step's normed activations, adds to its residual stream.
pub(super) fn run_moe(step: &Step<'_>, rank: &Rank<'_>, router: &Matrix, experts: &[GatedMlp]) {
    let moe = step
        .moe
        .as_ref()
        .expect("a model with a MoE layer has MoE buffers");
    let all = TokenRange {
        first: 0,
        end: step.num_tokens,
    };
    rank.for_each(step.num_tokens.div_ceil(step.normed.width), |block| {
        let (block, first, count) = all
            .blocks(step.normed.width)
            .nth(block)
            .expect("a block of the step");
        moe.route(step, rank, router, block, first, count);
    });
    if rank.rank() == 0 {
        moe.lay_out(step.num_tokens, experts.len());
    }
    rank.barrier();
    // SAFETY: written by rank 0 before the barrier.
    let active = unsafe {
        moe.active
            .slice(0, moe.active.slice(experts.len(), 1)[0][0] as usize)
    };
    rank.for_each(step.num_tokens, |token| moe.gather(step, token));
    moe.gate_and_up(step, rank, experts, active);
    moe.down(step, rank, experts, active);
    rank.for_each(step.num_tokens, |token| moe.sum(step, token));
}

impl MoeStep {
    /// Chooses experts for the tokens of one block.
    fn route(
        &self,
        step: &Step<'_>,
        rank: &Rank<'_>,
        router: &Matrix,
        block: usize,
        first: usize,
        count: usize,
    ) {
        let stride = router.num_tiles() * LANES;
        let norm = step
            .config
            .moe
            .as_ref()
            .is_some_and(|moe| moe.norm_topk_prob);
        let scratch = step.scratch(rank);
        for tile in 0..router.num_tiles() {
            step.product(
                router,
                tile..tile + 1,
                (&step.normed, block),
                count,
                (scratch, LANES),
            );
            for m in 0..count {
                // SAFETY: the token's scores are this item's.
                let out = unsafe {
                    self.scores
                        .slice_mut((first + m) * stride + tile * LANES, LANES)
                };
                out.copy_from_slice(&scratch[m * LANES..][..LANES]);
            }
        }
        for token in first..first + count {
            // SAFETY: the token's scores and choices are this item's.
            let (scores, chosen, shares) = unsafe {
                (
                    self.scores.slice_mut(token * stride, router.rows),
                    self.experts.slice_mut(token * self.top_k, self.top_k),
                    self.shares.slice_mut(token * self.top_k, self.top_k),
                )
            };
            choose(scores, chosen, shares, norm);
        }
    }

    /// Gives every choice a row: experts in order, an expert's tokens in order, whole blocks.
    fn lay_out(&self, num_tokens: usize, num_experts: usize) {
        let choices = num_tokens * self.top_k;
        // SAFETY: rank 0 alone works between the two barriers around this.
        let (experts, rows, active, count) = unsafe {
            (
                self.experts.slice(0, choices),
                self.rows.slice_mut(0, choices),
                self.active.slice_mut(0, num_experts),
                self.active.slice_mut(num_experts, 1),
            )
        };
        let (mut num_active, mut next_row) = (0, 0);
        for expert in 0..num_experts as u32 {
            let first = next_row;
            for (row, _) in rows.iter_mut().zip(experts).filter(|(_, e)| **e == expert) {
                *row = next_row;
                next_row += 1;
            }
            if next_row > first {
                active[num_active] = [expert, first, next_row - first];
                num_active += 1;
                next_row = next_row.next_multiple_of(self.gathered.width as u32);
            }
        }
        count[0][0] = num_active as u32;
    }

    fn choices(&self, token: usize) -> (&[u32], &[f32]) {
        // SAFETY: rows and shares are written in earlier phases.
        unsafe {
            (
                self.rows.slice(token * self.top_k, self.top_k),
                self.shares.slice(token * self.top_k, self.top_k),
            )
        }
    }

    fn gather(&self, step: &Step<'_>, token: usize) {
        for &row in self.choices(token).0 {
            // SAFETY: a row belongs to one choice of one token; the source is not written in this phase.
            unsafe { self.gathered.copy_token(row as usize, &step.normed, token) };
        }
    }

    fn gate_and_up(
        &self,
        step: &Step<'_>,
        rank: &Rank<'_>,
        experts: &[GatedMlp],
        active: &[[u32; 3]],
    ) {
        let groups = experts[0].gate.rows.div_ceil(GROUP);
        rank.for_each(active.len() * groups, |item| {
            let [expert, first, count] = active[item / groups].map(|x| x as usize);
            for (block, first, count) in (TokenRange {
                first,
                end: first + count,
            })
            .blocks(self.gathered.width)
            {
                let input = (&self.gathered, block);
                step.gated_group(
                    rank,
                    &experts[expert],
                    item % groups,
                    input,
                    count,
                    &self.inner,
                    first,
                );
            }
        });
    }

    fn down(&self, step: &Step<'_>, rank: &Rank<'_>, experts: &[GatedMlp], active: &[[u32; 3]]) {
        let num_tiles = experts[0].down.num_tiles();
        let run = tiles_per_item(num_tiles, rank.size());
        let units = num_tiles.div_ceil(run);
        rank.for_each(active.len() * units, |item| {
            let [expert, first, count] = active[item / units].map(|x| x as usize);
            let matrix = &experts[expert].down;
            let tiles = item % units * run..num_tiles.min((item % units + 1) * run);
            let columns = tiles.start * LANES..matrix.rows.min(tiles.end * LANES);
            let (scratch, stride) = (step.scratch(rank), tiles.len() * LANES);
            for (block, first, count) in (TokenRange {
                first,
                end: first + count,
            })
            .blocks(self.inner.width)
            {
                step.product(
                    matrix,
                    tiles.clone(),
                    (&self.inner, block),
                    count,
                    (scratch, stride),
                );
                for (m, sums) in scratch.chunks_exact(stride).take(count).enumerate() {
                    // SAFETY: these columns of the row are this item's.
                    let out = unsafe {
                        self.outputs
                            .slice_mut((first + m) * step.hidden + columns.start, columns.len())
                    };
                    out.copy_from_slice(&sums[..columns.len()]);
                }
            }
        });
    }

    fn sum(&self, step: &Step<'_>, token: usize) {
        let features = step.config.hidden_size;
        // SAFETY: the token's row is this item's.
        let row = unsafe { step.residual.slice_mut(token * step.hidden, features) };
        let (rows, shares) = self.choices(token);
        for (&source, &factor) in rows.iter().zip(shares) {
            // SAFETY: expert outputs are written in the phase before.
            let addend = unsafe { self.outputs.slice(source as usize * step.hidden, features) };
            step.kernel(AddScaled {
                row,
                addend,
                factor,
            });
        }
    }
}

/// Softmax over `scores`, then the most probable experts in falling order (the lower index first among equals), rescaled to sum to 1 if `norm`.
/// Overwrites `scores`.
fn choose(scores: &mut [f32], chosen: &mut [u32], shares: &mut [f32], norm: bool) {
    let max = scores.iter().fold(f32::NEG_INFINITY, |max, x| max.max(*x));
    scores.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f32 = scores.iter().sum();
    for (expert, share) in chosen.iter_mut().zip(shares.iter_mut()) {
        // NaN scores choose expert 0 with a NaN share, which the output shows.
        let mut best = 0;
        for (i, score) in scores.iter().enumerate() {
            if *score > scores[best] {
                best = i;
            }
        }
        (*expert, *share) = (best as u32, scores[best] / sum);
        scores[best] = f32::NEG_INFINITY;
    }
    if norm {
        let sum: f32 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share /= sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_experts_are_chosen_in_falling_order() {
        let (mut chosen, mut shares) = ([0; 3], [0.0; 3]);
        choose(
            &mut [1.0, 3.0, 2.0, 3.0, -1.0],
            &mut chosen,
            &mut shares,
            false,
        );
        assert_eq!(chosen, [1, 3, 2]);
        let total: f32 = [1.0f32, 3.0, 2.0, 3.0, -1.0].iter().map(|x| x.exp()).sum();
        assert!((shares[2] - 2.0f32.exp() / total).abs() < 1e-6);
        choose(
            &mut [1.0, 3.0, 2.0, 3.0, -1.0],
            &mut chosen,
            &mut shares,
            true,
        );
        assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_bad_router_shows_in_the_shares() {
        let (mut chosen, mut shares) = ([0; 2], [0.0; 2]);
        choose(&mut [f32::NAN, 1.0, 2.0], &mut chosen, &mut shares, true);
        assert!(shares[0].is_nan());
    }
}
