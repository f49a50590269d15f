//! Causal attention of a few query rows that share a KV head, over the paged cache.
//!
//! A query row is one head of one token; the rows of a grouped-query group, and of neighbouring tokens of a chunk, read the same keys and are computed
//! together. Keys are walked in tiles of 64 positions that start at multiples of 64 (online softmax, arXiv:2205.14135): per tile the
//! scores, one update of the running maximum, the exponentials, the weighted sum of values.
//!
//! A row's arithmetic does not depend on its company: tiles are cut by position alone, every score and every output element is one chain of
//! multiply-adds in ascending order, and a masked position contributes exactly nothing (probability 0, factor 1). So a token has the
//! same attention in a chunk, decoded alone, or over a cached prefix.

use super::acts::ActsView;
use super::format::GROUP;
use super::kv::{KvElement, KvView};
use super::math::exp;
use super::memory::Shared;
use super::simd::{Kernel, LANES, Simd, unroll};

/// Positions per softmax update.
const TILE: usize = 64;
const PANELS: usize = TILE / LANES;

/// Query rows computed together.
pub(super) const ROWS: usize = 4;

/// Floats of scratch that an item needs.
pub(super) fn scratch_len(padded_dim: usize) -> usize {
    ROWS * padded_dim
}

/// Attention of query rows `rows` of one sequence for one KV head. Row `r` is head `r % group` of the group, of the entry's
/// token `r / group`.
pub(super) struct Attention<'a, T> {
    pub(super) kv: KvView<T>,
    pub(super) layer: usize,
    pub(super) kv_head: usize,
    /// Query heads per KV head.
    pub(super) group: usize,
    pub(super) rows: std::ops::Range<usize>,
    /// Queries of all tokens of the step, scaled: `[token][query head][padded head_dim]`.
    pub(super) queries: Shared<f32>,
    pub(super) num_heads: usize,
    /// Index in the step of the entry's first token, and its position.
    pub(super) first_token: usize,
    pub(super) start_pos: usize,
    /// Tokens a query sees, itself included; `usize::MAX` for all.
    pub(super) window: usize,
    pub(super) block_table: &'a [u32],
    pub(super) scratch: &'a mut [f32],
    pub(super) out: AttentionOut<'a>,
}

/// Where attention output goes.
#[derive(Clone, Copy)]
pub(super) enum AttentionOut<'a> {
    /// Straight into activations; the head width is a whole number of groups.
    Acts(&'a ActsView),
    /// `[token][stride]` f32, heads side by side.
    Rows(Shared<f32>, usize),
}

impl<T: KvElement> Kernel for Attention<'_, T> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (rows, last) = (self.rows.clone(), self.rows.end);
        for first in rows.step_by(ROWS) {
            // SAFETY: the caller's contract.
            unsafe {
                match last - first {
                    1 => self.row_tile::<S, 1>(first),
                    2 => self.row_tile::<S, 2>(first),
                    3 => self.row_tile::<S, 3>(first),
                    _ => self.row_tile::<S, ROWS>(first),
                }
            }
        }
    }
}

/// The running softmax of `R` rows.
struct Running<S: Simd, const R: usize> {
    max: [f32; R],
    /// Lane-wise sums of probabilities.
    sum: [S::F; R],
}

/// A tile's probabilities and, per row, the factor for what was summed before.
struct Weights<const R: usize> {
    probabilities: [[f32; TILE]; R],
    decay: [f32; R],
}

impl<T: KvElement> Attention<'_, T> {
    /// Rows `first..first + R`.
    #[inline(always)]
    unsafe fn row_tile<S: Simd, const R: usize>(&mut self, first: usize) {
        let dim = self.kv.shape.padded_dim();
        let row = |r: usize| first + r;
        let end: [usize; R] = std::array::from_fn(|r| self.start_pos + row(r) / self.group + 1);
        let begin: [usize; R] = std::array::from_fn(|r| end[r].saturating_sub(self.window));
        let queries: [*const f32; R] = std::array::from_fn(|r| self.query(row(r)));
        assert!(self.scratch.len() >= R * dim);
        self.scratch[..R * dim].fill(0.0);
        // SAFETY: the caller's contract; scratch is long enough, asserted.
        unsafe {
            // Finite, so that a tile without a visible position changes nothing: exp(-inf - max) = 0, exp(0) = 1.
            let mut running = Running::<S, R> {
                max: [-1e30; R],
                sum: [S::splat(0.0); R],
            };
            let last = end[R - 1];
            let mut base = begin[0] / TILE * TILE;
            let mut panels = self.panels(base, last);
            while base < last {
                let tile = (last - base).min(TILE);
                let next = self.panels(base + TILE, last);
                let scores = self.scores::<S, R>(&queries, panels);
                let weights = softmax_step::<S, R>(&mut running, scores, base, &begin, &end);
                self.accumulate::<S, R>(&weights, panels, tile, next);
                (base, panels) = (base + TILE, next);
            }
            for r in 0..R {
                self.finish_row::<S>(row(r), r, S::reduce_add(running.sum[r]));
            }
        }
    }

    fn query(&self, row: usize) -> *const f32 {
        let dim = self.kv.shape.padded_dim();
        let (token, head) = (
            self.first_token + row / self.group,
            self.kv_head * self.group + row % self.group,
        );
        self.queries.at((token * self.num_heads + head) * dim, dim)
    }

    /// The panel that holds positions `pos..pos + 16`.
    #[inline(always)]
    fn panel(&self, pos: usize) -> usize {
        let shape = &self.kv.shape;
        let block = self.block_table[pos / shape.block_size] as usize;
        block * shape.panels_per_block() + pos % shape.block_size / LANES
    }

    /// The panels of the tile at `base`, of positions before `last`; those beyond repeat the last one.
    #[inline(always)]
    fn panels(&self, base: usize, last: usize) -> [usize; PANELS] {
        std::array::from_fn(|p| self.panel((base + p * LANES).min(last - 1)))
    }

    /// Whether to fetch the cache ahead of its use. A decoding sequence reads all of it from memory, in pieces too short for the
    /// hardware to see a stream; the row tiles of a prompt chunk find it in the second-level cache.
    #[inline(always)]
    fn fetch_ahead(&self) -> bool {
        self.rows.len() <= 2 * ROWS
    }

    /// Scores of a tile's positions, those of repeated panels included (they are masked later); fetches the tile's values.
    #[inline(always)]
    unsafe fn scores<S: Simd, const R: usize>(
        &self,
        queries: &[*const f32; R],
        panels: [usize; PANELS],
    ) -> [[S::F; PANELS]; R] {
        // SAFETY: panels hold head_dim rows of 16; queries hold head_dim features.
        unsafe {
            let mut scores = [[S::splat(0.0); PANELS]; R];
            let keys =
                panels.map(|panel| self.kv.keys(self.layer, panel, self.kv_head).cast_const());
            let values = panels.map(|panel| self.kv.values(self.layer, panel, self.kv_head));
            let fetch = self.fetch_ahead();
            unroll!(part < 4 => {
                if part * S::COLUMNS < PANELS {
                    for d in 0..self.kv.shape.head_dim {
                        if part == 0 && fetch && starts_line::<T>(d * LANES) {
                            unroll!(p < PANELS => { S::prefetch(values[p].add(d * LANES).cast()); });
                        }
                        unroll!(column < S::COLUMNS => {
                            let p = (part * S::COLUMNS + column) % PANELS;
                            let key = T::load::<S>(keys[p].add(d * LANES));
                            unroll!(r < R => {
                                scores[r][p] = S::fma(key, S::splat(*queries[r].add(d)), scores[r][p]);
                            });
                        });
                    }
                }
            });
            scores
        }
    }

    /// Output so far times the decay, plus the tile's values weighted by its probabilities; fetches the keys of the `next` tile.
    #[inline(always)]
    unsafe fn accumulate<S: Simd, const R: usize>(
        &mut self,
        weights: &Weights<R>,
        panels: [usize; PANELS],
        tile: usize,
        next: [usize; PANELS],
    ) {
        let columns = self.kv.shape.padded_dim() / LANES;
        let of = |panel: usize| self.kv.values(self.layer, panel, self.kv_head).cast_const();
        let values = panels.map(of);
        let mut column = 0;
        // SAFETY: columns stay below the padded width; only panels of the tile's positions are read.
        unsafe {
            if self.fetch_ahead() {
                self.fetch_keys::<S>(next);
            }
            while column + S::COLUMNS <= columns {
                self.accumulate_columns::<S, R, 4>(weights, &values, tile, column, S::COLUMNS);
                column += S::COLUMNS;
            }
            while column < columns {
                self.accumulate_columns::<S, R, 1>(weights, &values, tile, column, 1);
                column += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn fetch_keys<S: Simd>(&self, panels: [usize; PANELS]) {
        for panel in panels {
            let keys = self.kv.keys(self.layer, panel, self.kv_head);
            for d in (0..self.kv.shape.head_dim).filter(|d| starts_line::<T>(d * LANES)) {
                // SAFETY: inside the panel; the caller's contract.
                unsafe { S::prefetch(keys.add(d * LANES).cast()) };
            }
        }
    }

    /// `width` (at most `C`, a constant where this is inlined) vectors of output columns.
    #[inline(always)]
    unsafe fn accumulate_columns<S: Simd, const R: usize, const C: usize>(
        &mut self,
        weights: &Weights<R>,
        panels: &[*const T; PANELS],
        tile: usize,
        column: usize,
        width: usize,
    ) {
        let dim = self.kv.shape.padded_dim();
        // SAFETY: the caller's contract.
        unsafe {
            let out = self.scratch.as_mut_ptr().add(column * LANES);
            let mut acc = [[S::splat(0.0); C]; R];
            unroll!(r < R => {
                unroll!(c < C => {
                    if c < width {
                        let before = S::load(out.add(r * dim + c * LANES));
                        acc[r][c] = S::mul(before, S::splat(weights.decay[r]));
                    }
                });
            });
            for t in 0..tile {
                let values = panels[t / LANES].add(t % LANES * dim + column * LANES);
                unroll!(c < C => {
                    if c < width {
                        let value = T::load::<S>(values.add(c * LANES));
                        unroll!(r < R => {
                            acc[r][c] = S::fma(value, S::splat(weights.probabilities[r][t]), acc[r][c]);
                        });
                    }
                });
            }
            unroll!(r < R => {
                unroll!(c < C => {
                    if c < width {
                        S::store(out.add(r * dim + c * LANES), acc[r][c]);
                    }
                });
            });
        }
    }

    /// Divides scratch row `r` by the sum of its probabilities and hands it on.
    #[inline(always)]
    unsafe fn finish_row<S: Simd>(&self, row: usize, r: usize, sum: f32) {
        let shape = &self.kv.shape;
        let (dim, token) = (shape.padded_dim(), self.first_token + row / self.group);
        let head = self.kv_head * self.group + row % self.group;
        // SAFETY: scratch holds the row; the token's head is this item's alone.
        unsafe {
            let source = self.scratch.as_ptr().add(r * dim);
            let inverse = S::splat(1.0 / sum);
            match self.out {
                AttentionOut::Acts(acts) => {
                    let groups = shape.head_dim / GROUP;
                    for i in 0..groups {
                        let low = S::mul(S::load(source.add(i * GROUP)), inverse);
                        let high = S::mul(S::load(source.add(i * GROUP + LANES)), inverse);
                        acts.store_group::<S>(token, head * groups + i, [low, high]);
                    }
                }
                AttentionOut::Rows(rows, stride) => {
                    let out = rows.at(token * stride + head * shape.head_dim, shape.head_dim);
                    for i in 0..shape.head_dim {
                        *out.add(i) = *source.add(i) * (1.0 / sum);
                    }
                }
            }
        }
    }
}

/// Whether element `index` of a panel starts a cache line (panels do).
#[inline(always)]
const fn starts_line<T>(index: usize) -> bool {
    (index * size_of::<T>()).is_multiple_of(64)
}

/// Masks a tile's scores and turns them into probabilities relative to the new maximum.
#[inline(always)]
unsafe fn softmax_step<S: Simd, const R: usize>(
    running: &mut Running<S, R>,
    mut scores: [[S::F; PANELS]; R],
    base: usize,
    begin: &[usize; R],
    end: &[usize; R],
) -> Weights<R> {
    let mut weights = Weights {
        probabilities: [[0.0; TILE]; R],
        decay: [0.0; R],
    };
    // SAFETY: the caller's contract.
    unsafe {
        unroll!(r < R => {
            if begin[r] > base || end[r] < base + TILE {
                unroll!(p < PANELS => {
                    let pos = base + p * LANES;
                    let (from, to) = (begin[r].saturating_sub(pos).min(LANES), end[r].saturating_sub(pos).min(LANES));
                    scores[r][p] = S::keep_lanes(scores[r][p], from, to, S::splat(f32::NEG_INFINITY));
                });
            }
            let mut largest = scores[r][0];
            unroll!(p < PANELS => { largest = S::max(largest, scores[r][p]); });
            let max = running.max[r].max(S::reduce_max(largest));
            let mut lanes = [0.0f32; LANES];
            S::store(lanes.as_mut_ptr(), exp::<S>(S::splat(running.max[r] - max)));
            weights.decay[r] = lanes[0];
            running.max[r] = max;
            running.sum[r] = S::mul(running.sum[r], S::splat(lanes[0]));
            unroll!(p < PANELS => {
                let probability = exp::<S>(S::sub(scores[r][p], S::splat(max)));
                S::store(weights.probabilities[r].as_mut_ptr().add(p * LANES), probability);
                running.sum[r] = S::add(running.sum[r], probability);
            });
        });
    }
    weights
}

#[cfg(test)]
mod tests;
