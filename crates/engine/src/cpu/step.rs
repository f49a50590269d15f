//! One step: the phases every rank walks together.
//!
//! ```text
//! embed, norm │ per layer: project heads, rotate, write KV │ attend │ output projection, add │ norm
//!             │            gate and up, SwiGLU │ down, add (or the experts, `moe`) │ norm
//! final norm of the sampled rows │ head
//! ```
//!
//! A phase is a list of independent items, each computed by one rank ([`Rank::for_each`]); everything an item writes is its own, and everything it reads
//! was written in an earlier phase. That rule is what makes the shared views of [`Step`] sound.

mod dense;
mod heads;
mod plan;

use izar_model::ModelConfig;

use super::acts::{ActsView, block_width};
use super::batch::Batch;
use super::format::GROUP;
use super::kv::{KvAny, KvElement, KvView};
use super::math::NormToken;
use super::matmul::TileProduct;
use super::memory::Shared;
use super::model::{CpuModel, CpuOptions, SCRATCH, is_integer};
use super::moe::{MoeStep, run_moe};
use super::pack::{DecodeRow, Matrix};
use super::simd::{Isa, Kernel, run as run_kernel};
use super::team::{Rank, Team};
use super::weights::{Ffn, Weights};
pub(super) use plan::Plan;

/// Tokens per item of a matrix phase: large enough to reuse a tile from the first-level cache, small enough to balance.
const TOKENS_PER_ITEM: usize = 128;

/// Everything the ranks share during a step.
pub(super) struct Step<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) options: &'a CpuOptions,
    pub(super) batch: &'a Batch<'a>,
    pub(super) plan: &'a Plan,
    pub(super) weights: &'a Weights,
    pub(super) rope: &'a izar_model::RopeFrequencies,
    pub(super) arena: Shared<u8>,
    pub(super) isa: Isa,
    pub(super) num_tokens: usize,
    /// Residual row stride.
    pub(super) hidden: usize,
    pub(super) residual: Shared<f32>,
    pub(super) normed: ActsView,
    /// `normed` again, with blocks as wide as the rows of logits ask for.
    normed_rows: ActsView,
    queries: Shared<f32>,
    attended: ActsView,
    attended_rows: Shared<f32>,
    inner: ActsView,
    angles: Shared<f32>,
    scratch: Shared<f32>,
    pub(super) moe: Option<MoeStep>,
    logits: Shared<f32>,
}

/// Runs a step whose plan is prepared.
pub(super) fn run(model: &mut CpuModel, batch: &Batch<'_>, logits: Shared<f32>) {
    if batch.tokens.is_empty() {
        return;
    }
    let (step, team, kv) = prepared(model, batch, logits);
    team.run(|rank| match kv {
        KvAny::F32(kv) => step.walk(rank, kv),
        KvAny::F16(kv) => step.walk(rank, kv),
    });
}

/// Runs the head once more, over the residual stream that the last step left.
pub(super) fn run_head(model: &mut CpuModel, logits: Shared<f32>) {
    let nothing = Batch {
        entries: &[],
        tokens: &[],
        block_tables: &[],
        blocks_per_row: 0,
    };
    let (step, team, _) = prepared(model, &nothing, logits);
    team.run(|rank| step.head(rank));
}

/// The views of the model's memory that the ranks share during a step.
fn prepared<'a>(
    model: &'a mut CpuModel,
    batch: &'a Batch<'a>,
    logits: Shared<f32>,
) -> (Step<'a>, &'a mut Team, KvAny) {
    let num_tokens = model.plan.positions.len();
    let width = block_width(num_tokens);
    let buffers = &mut model.buffers;
    let arena = model.weights.arena();
    let kv = model.kv.view();
    let step = Step {
        config: &model.config,
        options: &model.options,
        batch,
        plan: &model.plan,
        rope: &model.rope,
        arena,
        isa: model.options.isa,
        num_tokens,
        hidden: model.config.hidden_size.next_multiple_of(GROUP),
        residual: buffers.residual.shared(),
        normed: buffers.normed.view(width),
        normed_rows: buffers
            .normed
            .view(block_width(model.plan.logit_tokens.len())),
        queries: buffers.queries.shared(),
        attended: buffers.attended.view(width),
        attended_rows: buffers.attended_rows.shared(),
        inner: buffers.inner.view(width),
        angles: buffers.angles.shared(),
        scratch: buffers.scratch.shared(),
        moe: buffers.moe.as_mut().map(|moe| moe.view(width)),
        logits,
        weights: &model.weights,
    };
    (step, &mut model.team, kv)
}

impl Step<'_> {
    fn walk<T: KvElement>(&self, rank: &Rank<'_>, kv: KvView<T>) {
        self.embed(rank);
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.project_heads(rank, kv, index, layer);
            self.attend(rank, kv, index);
            self.add_product(rank, &layer.output, &self.attended);
            self.norm_all(rank, &layer.ffn_norm);
            match &layer.ffn {
                Ffn::Dense(mlp) => self.dense_ffn(rank, mlp),
                Ffn::Moe { router, experts } => run_moe(self, rank, router, experts),
            }
            if let Some(next) = self.weights.layers.get(index + 1) {
                self.norm_all(rank, &next.attn_norm);
            }
        }
        self.head(rank);
    }

    /// Token embeddings into the residual stream, the first norm, and the angles of every position.
    fn embed(&self, rank: &Rank<'_>) {
        rank.for_each(self.num_tokens, |token| {
            // SAFETY: the token's row is this item's.
            let row = unsafe {
                self.residual
                    .slice_mut(token * self.hidden, self.config.hidden_size)
            };
            let id = self.batch.tokens[token] as usize;
            DecodeRow {
                matrix: &self.weights.embedding,
                arena: self.arena,
                row: id,
                out: row,
            }
            .run(self.isa);
            self.norm(
                token,
                &self.weights.layers[0].attn_norm,
                &self.normed,
                token,
            );
            let dim = self.config.rope.rotary_dim;
            // SAFETY: the token's angles are this item's.
            let (cos, sin) =
                unsafe { self.angles.slice_mut(token * dim, dim) }.split_at_mut(dim / 2);
            for (i, frequency) in self.rope.inv_freq.iter().enumerate() {
                let (s, c) = (self.plan.positions[token] as f32 * frequency).sin_cos();
                (cos[i], sin[i]) = (
                    c * self.rope.attention_factor,
                    s * self.rope.attention_factor,
                );
            }
        });
    }

    /// Norm of a residual row, written as token `target` of `out`.
    pub(super) fn norm(&self, token: usize, weight: &[f32], out: &ActsView, target: usize) {
        // SAFETY: rows are written in phases of their own, or by this very item.
        let row = unsafe { self.residual.slice(token * self.hidden, self.hidden) };
        let (features, eps) = (self.config.hidden_size, self.config.rms_norm_eps);
        self.kernel(NormToken {
            row,
            weight,
            features,
            eps,
            out,
            token: target,
        });
    }

    fn norm_all(&self, rank: &Rank<'_>, weight: &[f32]) {
        rank.for_each(self.num_tokens, |token| {
            self.norm(token, weight, &self.normed, token)
        });
    }

    /// Runs a kernel on the step's instruction set.
    pub(super) fn kernel<K: Kernel>(&self, kernel: K) {
        // SAFETY: `isa` was detected; what the kernel touches belongs to the item that runs it.
        unsafe { run_kernel(self.isa, kernel) }
    }

    /// This rank's scratch.
    pub(super) fn scratch<'b>(&self, rank: &Rank<'_>) -> &'b mut [f32] {
        // SAFETY: a rank uses its scratch inside one item at a time.
        unsafe { self.scratch.slice_mut(rank.rank() * SCRATCH, SCRATCH) }
    }

    /// Tiles × tokens of one block: token `m`'s results start at `out[m * stride]`.
    pub(super) fn product(
        &self,
        matrix: &Matrix,
        tiles: std::ops::Range<usize>,
        (acts, block): (&ActsView, usize),
        num_tokens: usize,
        (out, stride): (&mut [f32], usize),
    ) {
        TileProduct {
            matrix,
            weights: self.arena,
            first_tile: tiles.start,
            num_tiles: tiles.len(),
            acts,
            block,
            num_tokens,
            integer: is_integer(matrix, self.options.arithmetic),
            out,
            stride,
        }
        .run(self.isa);
    }

    /// Items of a phase over `num_units` × all tokens: unit-major, so that a rank's range is a range of units.
    fn for_each_unit(&self, rank: &Rank<'_>, num_units: usize, item: impl Fn(usize, TokenRange)) {
        let parts = self.num_tokens.div_ceil(TOKENS_PER_ITEM);
        rank.for_each(num_units * parts, |i| {
            let first = i % parts * TOKENS_PER_ITEM;
            item(
                i / parts,
                TokenRange {
                    first,
                    end: self.num_tokens.min(first + TOKENS_PER_ITEM),
                },
            );
        });
    }
}

/// Tiles of an item: at least 8 items for each rank if there are enough tiles, at most 8 tiles.
pub(super) fn tiles_per_item(num_tiles: usize, ranks: usize) -> usize {
    (num_tiles / (8 * ranks)).clamp(1, 8)
}

/// Tokens `first..end` of a step; `first` starts a block.
#[derive(Clone, Copy)]
pub(super) struct TokenRange {
    pub(super) first: usize,
    pub(super) end: usize,
}

impl TokenRange {
    /// `(block, first token, number of tokens)` of every block.
    pub(super) fn blocks(self, width: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        (self.first..self.end)
            .step_by(width)
            .map(move |first| (first / width, first, width.min(self.end - first)))
    }
}
