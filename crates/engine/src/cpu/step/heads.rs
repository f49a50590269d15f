//! The attention half of a layer: heads projected, finished and stored, then attention over the cache.

use izar_model::Pairing;

use super::Step;
use crate::cpu::attention::{Attention, AttentionOut, ROWS, scratch_len};
use crate::cpu::format::GROUP;
use crate::cpu::kv::{KvElement, KvView};
use crate::cpu::math::{FinishHead, HeadRecipe, Rotation, StoreToken};
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::cpu::team::Rank;
use crate::cpu::weights::Layer;

/// Query rows per item of the attention phase.
pub(super) const ROWS_PER_ITEM: usize = 8 * ROWS;

#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadPart {
    Query,
    Key,
    Value,
}

impl Step<'_> {
    /// Queries, keys and values, one head at a time: project, finish, and put where attention reads.
    pub(super) fn project_heads<T: KvElement>(
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
    pub(super) fn attend<T: KvElement>(&self, rank: &Rank<'_>, kv: KvView<T>, layer: usize) {
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
