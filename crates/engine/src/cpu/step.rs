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

use super::acts::{ActsView, MAX_WIDTH, block_width};
use super::attention::{Attention, AttentionOut, ROWS, scratch_len};
use super::batch::{Batch, LogitsOf};
use super::format::GROUP;
use super::kv::{KvAny, KvElement, KvView};
use super::math::{AddTo, FinishHead, HeadRecipe, NormToken, Rotation, StoreToken, SwiGlu};
use super::matmul::TileProduct;
use super::memory::Shared;
use super::model::{CpuModel, CpuOptions, SCRATCH, is_integer};
use super::moe::{MoeStep, run_moe};
use super::pack::{DecodeRow, Matrix};
use super::simd::{Isa, Kernel, LANES, Simd, run as run_kernel};
use super::team::Rank;
use super::weights::{Ffn, GatedMlp, Layer, Weights};
use izar_model::{ModelConfig, Pairing};

/// Tokens per item of a matrix phase: large enough to reuse a tile from the first-level cache, small enough to balance.
const TOKENS_PER_ITEM: usize = 128;

/// Query rows per item of the attention phase.
const ROWS_PER_ITEM: usize = 8 * ROWS;

/// What a batch means token by token. Reused from step to step.
pub(super) struct Plan {
    /// Per token: its position, and where its KV goes.
    pub(super) positions: Vec<u32>,
    pub(super) kv_slots: Vec<u32>,
    /// Tokens that get a row of logits, in row order.
    pub(super) logit_tokens: Vec<u32>,
    /// Per entry: its first token.
    first_tokens: Vec<u32>,
    /// Per entry: attention items before it; one more at the end.
    attention_items: Vec<u32>,
}

impl Plan {
    pub(super) fn new(options: &CpuOptions) -> Self {
        Self {
            positions: Vec::with_capacity(options.max_num_batched_tokens),
            kv_slots: Vec::with_capacity(options.max_num_batched_tokens),
            logit_tokens: Vec::with_capacity(options.max_logit_rows),
            first_tokens: Vec::with_capacity(options.max_num_seqs),
            attention_items: Vec::with_capacity(options.max_num_seqs + 1),
        }
    }

    /// Reads a batch, checking it against the options.
    pub(super) fn prepare(
        &mut self,
        batch: &Batch<'_>,
        config: &ModelConfig,
        options: &CpuOptions,
    ) {
        assert!(
            batch.tokens.len() <= options.max_num_batched_tokens,
            "{} tokens in a step",
            batch.tokens.len()
        );
        assert!(
            batch.entries.len() <= options.max_num_seqs,
            "{} sequences in a step",
            batch.entries.len()
        );
        assert!(
            batch.num_logit_rows() <= options.max_logit_rows,
            "{} rows of logits",
            batch.num_logit_rows()
        );
        assert!(
            batch
                .tokens
                .iter()
                .all(|&t| (t as usize) < config.vocab_size),
            "a token outside the vocabulary"
        );
        let Self {
            positions,
            kv_slots,
            logit_tokens,
            first_tokens,
            attention_items,
        } = self;
        for list in [
            &mut *positions,
            kv_slots,
            logit_tokens,
            first_tokens,
            attention_items,
        ] {
            list.clear();
        }
        let mut items = 0;
        for entry in batch.entries {
            assert!(entry.num_tokens > 0, "an entry without tokens");
            let first = positions.len() as u32;
            let table = batch.block_table(entry.row);
            for pos in entry.start_pos..entry.start_pos + entry.num_tokens {
                let block = table[pos as usize / options.block_size];
                assert!(
                    (block as usize) < options.num_kv_blocks,
                    "block {block} of {}",
                    options.num_kv_blocks
                );
                positions.push(pos);
                kv_slots.push(block * options.block_size as u32 + pos % options.block_size as u32);
            }
            match entry.logits {
                LogitsOf::None => {}
                LogitsOf::Last => logit_tokens.push(first + entry.num_tokens - 1),
                LogitsOf::All => logit_tokens.extend(first..first + entry.num_tokens),
            }
            first_tokens.push(first);
            attention_items.push(items);
            let rows = entry.num_tokens as usize * (config.num_heads / config.num_kv_heads);
            items += (config.num_kv_heads * rows.div_ceil(ROWS_PER_ITEM)) as u32;
        }
        attention_items.push(items);
        assert_eq!(positions.len(), batch.tokens.len(), "tokens of all entries");
    }
}

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
    let num_tokens = batch.tokens.len();
    if num_tokens == 0 {
        return;
    }
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
    model.team.run(|rank| match kv {
        KvAny::F32(kv) => step.walk(rank, kv),
        KvAny::F16(kv) => step.walk(rank, kv),
    });
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

    /// Queries, keys and values, one head at a time: project, finish, and put where attention reads.
    fn project_heads<T: KvElement>(
        &self,
        rank: &Rank<'_>,
        kv: KvView<T>,
        index: usize,
        layer: &Layer,
    ) {
        let (q_heads, kv_heads) = (self.config.num_heads, self.config.num_kv_heads);
        self.for_each_unit(rank, q_heads + 2 * kv_heads, |unit, tokens| {
            let (part, head) = match unit {
                u if u < q_heads => (HeadPart::Query, u),
                u if u < q_heads + kv_heads => (HeadPart::Key, u - q_heads),
                u => (HeadPart::Value, u - q_heads - kv_heads),
            };
            let projection = match part {
                HeadPart::Query => &layer.q,
                HeadPart::Key => &layer.k,
                HeadPart::Value => &layer.v,
            };
            let tiles = projection.matrix.tiles_per_run();
            let recipe = self.recipe(part, head, layer);
            let (scratch, stride) = (self.scratch(rank), tiles * LANES);
            for (block, first, count) in tokens.blocks(self.normed.width) {
                let tiles = head * tiles..(head + 1) * tiles;
                self.product(
                    &projection.matrix,
                    tiles,
                    (&self.normed, block),
                    count,
                    (scratch, stride),
                );
                for (m, row) in scratch.chunks_exact_mut(stride).take(count).enumerate() {
                    self.put_head(kv, index, part, head, first + m, row, &recipe);
                }
            }
        });
    }

    fn recipe<'b>(&self, part: HeadPart, head: usize, layer: &'b Layer) -> HeadRecipe<'b> {
        let dim = self.config.head_dim;
        let bias_of = |bias: &'b Option<Vec<f32>>| {
            bias.as_ref()
                .map(|bias| &bias[head * dim..(head + 1) * dim])
        };
        let norm_of = |norm: &'b Option<Vec<f32>>| {
            norm.as_deref().map(|norm| (norm, self.config.rms_norm_eps))
        };
        let rotation = Rotation {
            rotary_dim: self.config.rope.rotary_dim,
            interleaved: self.config.rope.pairing == Pairing::Interleaved,
        };
        match part {
            HeadPart::Query => HeadRecipe {
                bias: bias_of(&layer.q.bias),
                norm: norm_of(&layer.q_norm),
                rotation: Some(rotation),
                factor: 1.0 / (dim as f32).sqrt(),
            },
            HeadPart::Key => HeadRecipe {
                bias: bias_of(&layer.k.bias),
                norm: norm_of(&layer.k_norm),
                rotation: Some(rotation),
                factor: 1.0,
            },
            HeadPart::Value => HeadRecipe {
                bias: bias_of(&layer.v.bias),
                norm: None,
                rotation: None,
                factor: 1.0,
            },
        }
    }

    /// Finishes one token's head and stores it. `row` is padded to whole vectors; the padding is zero because the rows that
    /// pad a tile are.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call site; a struct would only repeat the names"
    )]
    fn put_head<T: KvElement>(
        &self,
        kv: KvView<T>,
        layer: usize,
        part: HeadPart,
        head: usize,
        token: usize,
        row: &mut [f32],
        recipe: &HeadRecipe<'_>,
    ) {
        let (dim, rotary) = (self.config.head_dim, self.config.rope.rotary_dim);
        // SAFETY: angles are written in the first phase only.
        let angles = unsafe { self.angles.slice(token * rotary, rotary) };
        self.kernel(FinishHead {
            head: &mut row[..dim],
            recipe,
            angles,
        });
        if part == HeadPart::Query {
            let at = (token * self.config.num_heads + head) * row.len();
            // SAFETY: the token's head is this item's.
            unsafe { self.queries.slice_mut(at, row.len()) }.copy_from_slice(row);
        } else {
            let kv_slot = self.plan.kv_slots[token] as usize;
            self.kernel(WriteKv {
                kv,
                layer,
                kv_slot,
                head,
                row,
                is_key: part == HeadPart::Key,
            });
        }
    }

    /// Attention of every entry. Items of an entry: KV head × runs of query rows.
    fn attend<T: KvElement>(&self, rank: &Rank<'_>, kv: KvView<T>, layer: usize) {
        let dim = self.config.head_dim;
        let stride = self.config.q_size().next_multiple_of(GROUP);
        let direct = dim.is_multiple_of(GROUP);
        let out = if direct {
            AttentionOut::Acts(&self.attended)
        } else {
            AttentionOut::Rows(self.attended_rows, stride)
        };
        let items = &self.plan.attention_items;
        rank.for_each(items[self.batch.entries.len()] as usize, |item| {
            let index = items.partition_point(|&before| before as usize <= item) - 1;
            let entry = &self.batch.entries[index];
            let group = self.config.num_heads / self.config.num_kv_heads;
            let num_rows = entry.num_tokens as usize * group;
            let runs = num_rows.div_ceil(ROWS_PER_ITEM);
            let item = item - items[index] as usize;
            let first_row = item % runs * ROWS_PER_ITEM;
            self.kernel(Attention {
                kv,
                layer,
                kv_head: item / runs,
                group,
                rows: first_row..num_rows.min(first_row + ROWS_PER_ITEM),
                queries: self.queries,
                num_heads: self.config.num_heads,
                first_token: self.plan.first_tokens[index] as usize,
                start_pos: entry.start_pos as usize,
                window: self.config.window(layer).unwrap_or(usize::MAX),
                block_table: self.batch.block_table(entry.row),
                scratch: &mut self.scratch(rank)[..scratch_len(dim.next_multiple_of(LANES))],
                out,
            });
        });
        if !direct {
            rank.for_each(self.num_tokens, |token| {
                // SAFETY: rows were written in the phase before.
                let row = unsafe { self.attended_rows.slice(token * stride, stride) };
                self.kernel(StoreToken {
                    row,
                    out: &self.attended,
                    token,
                });
            });
        }
    }

    /// `residual += matrix × acts`, by runs of tiles.
    fn add_product(&self, rank: &Rank<'_>, matrix: &Matrix, acts: &ActsView) {
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

    fn dense_ffn(&self, rank: &Rank<'_>, mlp: &GatedMlp) {
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
    pub(super) fn gated_group(
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
    fn head(&self, rank: &Rank<'_>) {
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

/// Tiles of an item: at least 8 items for each rank if there are enough tiles, at most 8 tiles.
pub(super) fn tiles_per_item(num_tiles: usize, ranks: usize) -> usize {
    (num_tiles / (8 * ranks)).clamp(1, 8)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadPart {
    Query,
    Key,
    Value,
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

struct WriteKv<'a, T> {
    kv: KvView<T>,
    layer: usize,
    kv_slot: usize,
    head: usize,
    row: &'a [f32],
    is_key: bool,
}

impl<T: KvElement> Kernel for WriteKv<'_, T> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self {
            kv,
            layer,
            kv_slot,
            head,
            row,
            is_key,
        } = self;
        // SAFETY: the head of this slot is this item's; rows are padded to whole vectors.
        unsafe {
            if is_key {
                kv.write_key::<S>(layer, kv_slot, head, row);
            } else {
                kv.write_value::<S>(layer, kv_slot, head, row);
            }
        }
    }
}
