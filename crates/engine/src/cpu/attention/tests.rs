//! Attention against the textbook formula in f64, in every shape the engine meets.

use super::*;
use crate::cpu::acts::{Acts, Precision, block_width};
use crate::cpu::kv::{KvAny, KvCache, KvShape};
use crate::cpu::memory::Buffer;
use crate::cpu::simd::{Isa, run};
use crate::cpu::testing::{Random, random_values};

struct Case {
    head_dim: usize,
    group: usize,
    num_kv_heads: usize,
    start_pos: usize,
    num_tokens: usize,
    window: usize,
    exact: bool,
}

impl Case {
    fn context(&self) -> usize {
        self.start_pos + self.num_tokens
    }
}

/// Keys and values, `[position][kv head][head_dim]`, and queries `[token][head][head_dim]`, of the rounded cache.
struct Data {
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
}

fn data(case: &Case) -> Data {
    let kv = case.context() * case.num_kv_heads * case.head_dim;
    let round = |x: f32| {
        if case.exact {
            x
        } else {
            half::f16::from_f32(x).to_f32()
        }
    };
    Data {
        keys: random_values(kv, 1)
            .into_iter()
            .map(|x| round(x * 2.0))
            .collect(),
        values: random_values(kv, 2).into_iter().map(round).collect(),
        queries: random_values(
            case.num_tokens * case.num_kv_heads * case.group * case.head_dim,
            3,
        ),
    }
}

/// `softmax(q k) v` of one query row.
fn reference(case: &Case, data: &Data, token: usize, head: usize) -> Vec<f64> {
    let dim = case.head_dim;
    let row = |data: &[f32], index: usize| -> Vec<f64> {
        data[index * dim..(index + 1) * dim]
            .iter()
            .map(|x| f64::from(*x))
            .collect()
    };
    let pos = case.start_pos + token;
    let query = row(&data.queries, token * case.num_kv_heads * case.group + head);
    let visible = (pos + 1).saturating_sub(case.window)..pos + 1;
    let kv_index = |pos: usize| pos * case.num_kv_heads + head / case.group;
    let scores: Vec<f64> = visible
        .clone()
        .map(|pos| {
            row(&data.keys, kv_index(pos))
                .iter()
                .zip(&query)
                .map(|(k, q)| k * q)
                .sum()
        })
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let mut out = vec![0.0; dim];
    for (pos, weight) in visible.zip(&weights) {
        for (out, value) in out.iter_mut().zip(row(&data.values, kv_index(pos))) {
            *out += weight * value;
        }
    }
    let sum: f64 = weights.iter().sum();
    out.into_iter().map(|x| x / sum).collect()
}

struct Fill<'a, T> {
    kv: KvView<T>,
    case: &'a Case,
    data: &'a Data,
    block_table: &'a [u32],
}

impl<T: KvElement> Kernel for Fill<'_, T> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (dim, heads) = (self.case.head_dim, self.case.num_kv_heads);
        let mut padded = vec![0.0; self.kv.shape.padded_dim()];
        for pos in 0..self.case.context() {
            let slot = self.block_table[pos / 16] as usize * 16 + pos % 16;
            for head in 0..heads {
                let at = (pos * heads + head) * dim;
                // SAFETY: one thread; rows are padded.
                unsafe {
                    padded[..dim].copy_from_slice(&self.data.keys[at..at + dim]);
                    self.kv.write_key::<S>(1, slot, head, &padded);
                    padded[..dim].copy_from_slice(&self.data.values[at..at + dim]);
                    self.kv.write_value::<S>(1, slot, head, &padded);
                }
            }
        }
    }
}

/// Attention output of every token, `[token][q size]`.
fn attend(isa: Isa, case: &Case, data: &Data) -> Vec<f32> {
    let num_blocks = case.context().div_ceil(16) + 3;
    let shape = KvShape {
        num_layers: 2,
        num_kv_heads: case.num_kv_heads,
        head_dim: case.head_dim,
        num_blocks,
        block_size: 16,
    };
    let mut cache = KvCache::new(shape, case.exact).unwrap();
    match cache.view() {
        KvAny::F32(kv) => attend_with(isa, case, data, kv),
        KvAny::F16(kv) => attend_with(isa, case, data, kv),
    }
}

fn attend_with<T: KvElement>(isa: Isa, case: &Case, data: &Data, kv: KvView<T>) -> Vec<f32> {
    let num_blocks = kv.shape.num_blocks as u32;
    // Scattered blocks; one of them never used by this sequence.
    let block_table: Vec<u32> = (0..num_blocks - 1).map(|i| num_blocks - 1 - i).collect();
    let (padded, num_heads) = (kv.shape.padded_dim(), case.num_kv_heads * case.group);
    let mut queries = Buffer::<f32>::zeroed(case.num_tokens * num_heads * padded).unwrap();
    for (padded, query) in queries
        .chunks_mut(padded)
        .zip(data.queries.chunks(case.head_dim))
    {
        padded[..case.head_dim].copy_from_slice(query);
    }
    let stride = num_heads * case.head_dim;
    let mut rows = Buffer::<f32>::zeroed(case.num_tokens * stride).unwrap();
    let mut scratch = vec![0.0; scratch_len(padded)];
    // SAFETY: a detected instruction set; one thread.
    unsafe {
        run(
            isa,
            Fill {
                kv,
                case,
                data,
                block_table: &block_table,
            },
        )
    };
    for kv_head in 0..case.num_kv_heads {
        let attention = Attention {
            kv,
            layer: 1,
            kv_head,
            group: case.group,
            rows: 0..case.num_tokens * case.group,
            queries: queries.shared(),
            num_heads,
            first_token: 0,
            start_pos: case.start_pos,
            window: case.window,
            block_table: &block_table,
            scratch: &mut scratch,
            out: AttentionOut::Rows(rows.shared(), stride),
        };
        // SAFETY: as above.
        unsafe { run(isa, attention) };
    }
    rows.to_vec()
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (head_dim, group, num_kv_heads) in
        [(64, 3, 2), (128, 4, 1), (96, 1, 2), (80, 7, 1), (8, 2, 1)]
    {
        for (start_pos, num_tokens) in [(0, 1), (0, 5), (15, 2), (63, 1), (64, 3), (100, 70)] {
            for window in [usize::MAX, 20] {
                for exact in [true, false] {
                    cases.push(Case {
                        head_dim,
                        group,
                        num_kv_heads,
                        start_pos,
                        num_tokens,
                        window,
                        exact,
                    });
                }
            }
        }
    }
    cases
}

#[test]
fn attention_is_the_softmax_weighted_sum_and_the_same_bits_everywhere() {
    for case in cases() {
        let data = data(&case);
        let what = format!(
            "dim {}, group {}, start {}, {} tokens, window {}, exact {}",
            case.head_dim, case.group, case.start_pos, case.num_tokens, case.window, case.exact
        );
        let portable = attend(Isa::Portable, &case, &data);
        let heads = case.num_kv_heads * case.group;
        for (row, got) in portable.chunks(case.head_dim).enumerate() {
            for (got, expected) in got
                .iter()
                .zip(reference(&case, &data, row / heads, row % heads))
            {
                assert!(
                    (f64::from(*got) - expected).abs() < 2e-5,
                    "{what}, row {row}: {got} is not {expected}"
                );
            }
        }
        for isa in Isa::available() {
            let got = attend(isa, &case, &data);
            let same = got
                .iter()
                .zip(&portable)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{what}: {} differs from portable", isa.name());
        }
    }
}

#[test]
fn output_into_activations_is_the_output_in_rows() {
    let case = Case {
        head_dim: 64,
        group: 2,
        num_kv_heads: 1,
        start_pos: 0,
        num_tokens: 1,
        window: usize::MAX,
        exact: true,
    };
    // One visible position: the output is its value, whatever the query.
    let data = data(&case);
    let shape = KvShape {
        num_layers: 2,
        num_kv_heads: 1,
        head_dim: 64,
        num_blocks: 1,
        block_size: 16,
    };
    let mut cache = KvCache::new(shape, true).unwrap();
    let KvAny::F32(kv) = cache.view() else {
        unreachable!("an exact cache is f32")
    };
    let mut queries = Buffer::<f32>::zeroed(2 * 64).unwrap();
    queries.fill(Random(5).value());
    let mut acts = Acts::new(
        1,
        128,
        Precision {
            codes: false,
            values: true,
        },
    )
    .unwrap();
    let view = acts.view(block_width(1));
    let mut scratch = vec![0.0; scratch_len(64)];
    for isa in Isa::available() {
        // SAFETY: a detected instruction set; one thread.
        unsafe {
            run(
                isa,
                Fill {
                    kv,
                    case: &case,
                    data: &data,
                    block_table: &[0],
                },
            );
            let attention = Attention {
                kv,
                layer: 1,
                kv_head: 0,
                group: 2,
                rows: 0..2,
                queries: queries.shared(),
                num_heads: 2,
                first_token: 0,
                start_pos: 0,
                window: usize::MAX,
                block_table: &[0],
                scratch: &mut scratch,
                out: AttentionOut::Acts(&view),
            };
            run(isa, attention);
            let got = std::slice::from_raw_parts(view.values(0), 128);
            assert_eq!(got[..64], data.values[..64]);
            assert_eq!(got[64..], data.values[..64]);
        }
    }
}
