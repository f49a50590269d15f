//! rope_and_kv_write against f64 on the host, the models' heads and rotations.

use half::bf16;
use izar_kernels::{
    DeviceBuffer, HeadNorms, KvCache, LaunchError, Matrix, RopeAndKvWrite, RopeTable,
    rope_and_kv_write,
};

use crate::{Gpu, POISON, gpu, relative_error};

const EPSILON: f32 = 1e-6;
const MAX_LEN: usize = 40_000;
const NUM_BLOCKS: u32 = 20;
const PADDING: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Case {
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    rotary_dim: usize,
    interleaved: bool,
    normed: bool,
}

impl Case {
    const fn plain(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            num_heads,
            num_kv_heads,
            head_dim,
            rotary_dim: head_dim,
            interleaved: false,
            normed: false,
        }
    }

    fn columns(&self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }

    /// What a query or key head becomes at a position.
    fn finish(
        &self,
        head: &[bf16],
        norm: &[bf16],
        angles: &[f32],
        position: u32,
        factor: f32,
    ) -> Vec<f64> {
        let mut head: Vec<f64> = head.iter().map(|x| x.to_f64()).collect();
        if self.normed {
            let mean = head.iter().map(|x| x * x).sum::<f64>() / head.len() as f64;
            let inverse = 1.0 / (mean + f64::from(EPSILON)).sqrt();
            head.iter_mut()
                .zip(norm)
                .for_each(|(x, w)| *x *= inverse * w.to_f64());
        }
        let half = self.rotary_dim / 2;
        for (i, frequency) in angles.iter().enumerate() {
            let (a, b) = match self.interleaved {
                true => (2 * i, 2 * i + 1),
                false => (i, i + half),
            };
            // The angle is the f32 product, as in the CPU engine.
            let (sine, cosine) = f64::from(position as f32 * frequency).sin_cos();
            let (sine, cosine) = (sine * f64::from(factor), cosine * f64::from(factor));
            (head[a], head[b]) = (
                head[a] * cosine - head[b] * sine,
                head[b] * cosine + head[a] * sine,
            );
        }
        head
    }
}

fn inv_freq(rotary_dim: usize) -> Vec<f32> {
    (0..rotary_dim / 2)
        .map(|i| 500_000f64.powf(-2.0 * i as f64 / rotary_dim as f64) as f32)
        .collect()
}

fn check(gpu: &mut Gpu, case: Case, positions: &[u32], kv_slots: &[u32]) {
    let (tokens, columns, dim) = (positions.len(), case.columns(), case.head_dim);
    let stride = columns + 8;
    let angles = inv_freq(case.rotary_dim);
    let factor = 1.25;
    let table = RopeTable::new(&gpu.stream, &angles, factor, MAX_LEN).unwrap();
    let qkv = gpu.random((tokens + 1) * stride, 4.0);
    let before = gpu.read(&qkv);
    let norms = gpu.random(2 * dim, 2.0);
    let norms_host = gpu.read(&norms);
    let slot = case.num_kv_heads * dim;
    let cache_len = NUM_BLOCKS as usize * 16 * slot;
    let (k, v) = (gpu.poisoned(cache_len), gpu.poisoned(cache_len));
    let norm = |first: usize| Matrix::strided(&norms, first, 1, dim as u32, dim as u32).unwrap();
    let heads = RopeAndKvWrite {
        qkv: Matrix::strided(&qkv, 0, tokens as u32, columns as u32, stride as u32).unwrap(),
        cache: KvCache {
            k: &k,
            v: &v,
            num_kv_heads: case.num_kv_heads as u32,
            head_dim: dim as u32,
        },
        norms: case.normed.then(|| HeadNorms {
            q: norm(0),
            k: norm(dim),
            epsilon: EPSILON,
        }),
        table: &table,
        interleaved: case.interleaved,
        positions: &DeviceBuffer::from_slice(&gpu.stream, positions).unwrap(),
        kv_slots: &DeviceBuffer::from_slice(&gpu.stream, kv_slots).unwrap(),
    };
    rope_and_kv_write(&gpu.stream, &heads).unwrap();

    let (after, k, v) = (gpu.read(&qkv), gpu.read(&k), gpu.read(&v));
    let mut written = vec![false; NUM_BLOCKS as usize * 16];
    let close = |got: &[bf16], wanted: Vec<f64>, what: &str| {
        let error = relative_error(got.iter().map(|x| x.to_f64()), wanted);
        // Half a unit in the last place of bf16.
        assert!(error < 4e-3, "{case:?} {what}: {error:.2e}");
    };
    for token in 0..tokens {
        let (row, out) = (
            &before[token * stride..][..stride],
            &after[token * stride..][..stride],
        );
        let q_size = case.num_heads * dim;
        assert_eq!(
            row[q_size..],
            out[q_size..],
            "{case:?}: keys, values or gaps of {token} changed"
        );
        let finished = |head: usize, norm: &[bf16]| {
            case.finish(
                &row[head * dim..][..dim],
                norm,
                &angles,
                positions[token],
                factor,
            )
        };
        for head in 0..case.num_heads {
            let what = format!("query {head} of token {token}");
            close(
                &out[head * dim..][..dim],
                finished(head, &norms_host[..dim]),
                &what,
            );
        }
        if kv_slots[token] == PADDING {
            continue;
        }
        written[kv_slots[token] as usize] = true;
        for head in 0..case.num_kv_heads {
            let at = kv_slots[token] as usize * slot + head * dim;
            let what = format!("key {head} of token {token}");
            close(
                &k[at..][..dim],
                finished(case.num_heads + head, &norms_host[dim..]),
                &what,
            );
            let value = (case.num_heads + case.num_kv_heads + head) * dim;
            assert_eq!(
                v[at..][..dim],
                row[value..][..dim],
                "{case:?}: value {head} of token {token}"
            );
        }
    }
    assert_eq!(
        before[tokens * stride..],
        after[tokens * stride..],
        "wrote past the tokens"
    );
    for (kv_slot, written) in written.into_iter().enumerate() {
        let range = kv_slot * slot..(kv_slot + 1) * slot;
        let untouched = |cache: &[bf16]| cache[range.clone()].iter().all(|x| x.to_bits() == POISON);
        assert!(
            written || (untouched(&k) && untouched(&v)),
            "{case:?}: slot {kv_slot} written"
        );
    }
}

/// Tokens at scattered positions and slots, one of them padding.
fn scattered(tokens: usize) -> (Vec<u32>, Vec<u32>) {
    let position = |i: u32| match i % 4 {
        0 => i,
        1 => i * 997 % MAX_LEN as u32,
        2 => MAX_LEN as u32 - 1 - i,
        _ => 0,
    };
    let slots = (0..tokens as u32).map(|i| match i % 5 {
        3 => PADDING,
        // An odd step walks all slots of the cache.
        _ => i * 77 % (NUM_BLOCKS * 16),
    });
    ((0..tokens as u32).map(position).collect(), slots.collect())
}

#[test]
fn heads_of_the_models_are_finished_and_stored() {
    let Some(mut gpu) = gpu() else { return };
    let qk_norm = |case| Case {
        normed: true,
        ..case
    };
    let cases = [
        Case::plain(32, 32, 128),         // Llama-2-7B
        Case::plain(40, 40, 128),         // Llama-2-13B
        Case::plain(32, 8, 128),          // Llama-3-8B
        Case::plain(28, 4, 128),          // Qwen2.5-7B
        Case::plain(40, 8, 128),          // Qwen2.5-14B, -32B
        Case::plain(40, 10, 128),         // Phi-4
        qk_norm(Case::plain(64, 8, 128)), // Qwen3-32B
        qk_norm(Case::plain(32, 4, 128)), // Qwen3-30B-A3B
        Case::plain(9, 3, 64),            // SmolLM2
        qk_norm(Case::plain(5, 1, 96)),
        Case {
            rotary_dim: 96,
            ..Case::plain(24, 8, 128) // Phi-4-mini
        },
        Case {
            rotary_dim: 32,
            normed: true,
            ..Case::plain(4, 2, 96)
        },
        Case {
            interleaved: true,
            ..Case::plain(32, 8, 128) // GGUF of Llama
        },
        Case {
            interleaved: true,
            rotary_dim: 48,
            normed: true,
            ..Case::plain(3, 1, 64)
        },
        Case::plain(2, 1, 16),
    ];
    for case in cases {
        for tokens in [1, 2, 7, 64, 200] {
            let (positions, kv_slots) = scattered(tokens);
            check(&mut gpu, case, &positions, &kv_slots);
        }
    }
}

#[test]
fn a_position_past_the_table_is_nan_in_its_own_token_alone() {
    let Some(mut gpu) = gpu() else { return };
    let case = Case::plain(4, 2, 64);
    let table = RopeTable::new(&gpu.stream, &inv_freq(64), 1.0, 100).unwrap();
    let columns = case.columns();
    let qkv = gpu.random(3 * columns, 2.0);
    let (k, v) = (gpu.poisoned(16 * 128), gpu.poisoned(16 * 128));
    let heads = RopeAndKvWrite {
        qkv: Matrix::dense(&qkv, 3, columns as u32).unwrap(),
        cache: KvCache {
            k: &k,
            v: &v,
            num_kv_heads: 2,
            head_dim: 64,
        },
        norms: None,
        table: &table,
        interleaved: false,
        positions: &DeviceBuffer::from_slice(&gpu.stream, &[99, 100, 0]).unwrap(),
        kv_slots: &DeviceBuffer::from_slice(&gpu.stream, &[0, 1, 2]).unwrap(),
    };
    rope_and_kv_write(&gpu.stream, &heads).unwrap();
    let after = gpu.read(&qkv);
    for (token, row) in after.chunks(columns).enumerate() {
        let mut queries = row[..4 * 64].iter();
        match token {
            1 => assert!(queries.all(|x| x.is_nan())),
            _ => assert!(queries.all(|x| x.is_finite())),
        }
    }
}

#[test]
fn heads_that_the_kernel_has_no_code_for_are_refused() {
    let Some(mut gpu) = gpu() else { return };
    let buffer = gpu.random(1 << 14, 1.0);
    let words = DeviceBuffer::from_slice(&gpu.stream, &[0_u32; 4]).unwrap();
    let refused = |head_dim: u32, rotary_dim: usize, columns: u32, wanted: &str| {
        let table = RopeTable::new(&gpu.stream, &inv_freq(rotary_dim), 1.0, 10).unwrap();
        let heads = RopeAndKvWrite {
            qkv: Matrix::dense(&buffer, 4, columns).unwrap(),
            cache: KvCache {
                k: &buffer,
                v: &buffer,
                num_kv_heads: 2,
                head_dim,
            },
            norms: None,
            table: &table,
            interleaved: false,
            positions: &words,
            kv_slots: &words,
        };
        match rope_and_kv_write(&gpu.stream, &heads) {
            Err(LaunchError::Argument { what, .. }) => assert_eq!(what, wanted),
            other => panic!("{other:?}"),
        }
    };
    refused(72, 64, 72 * 6, "head_dim");
    refused(256, 64, 256 * 6, "head_dim");
    refused(64, 40, 64 * 6, "rotary_dim");
    refused(64, 128, 64 * 6, "rotary_dim");
    refused(64, 64, 64 * 4, "the width of qkv");
    refused(64, 64, 64 * 6 + 8, "the width of qkv");
    refused(96, 96, 96 * 6, "the KV cache");
}
