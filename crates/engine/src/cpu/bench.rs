//! Ceilings of this machine, for reports that say how much of them a step reaches.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use izar_model::{Dtype, ModelConfig, TensorView};

use super::acts::{Acts, MAX_WIDTH, Precision};
use super::math::StoreToken;
use super::matmul::TileProduct;
use super::memory::{Buffer, Shared};
use super::pack::{Matrix, pack_tile};
use super::simd::{Isa, Kernel, LANES, Simd, run};
use super::team::Team;

/// Bytes per second that the whole team reads from memory, best of several passes over 256 MiB.
pub fn read_bandwidth(team: &mut Team) -> f64 {
    const BYTES: usize = 256 << 20;
    let mut buffer = Buffer::<f32>::zeroed(BYTES / 4).expect("256 MiB");
    buffer.fill(1.0);
    let data = buffer.shared();
    let isa = Isa::detect();
    best_rate(team, BYTES as f64, 8, &|rank, size| {
        let part = BYTES / 4 / size / LANES * LANES;
        // SAFETY: nobody writes the buffer; the instruction set was detected.
        unsafe { run(isa, Sum(data.slice(rank * part, part))) };
    })
}

/// Multiply-adds per second of the integer kernel with 16 tokens and one tile of Q4_0 weights per rank, all in the first-level cache.
pub fn integer_rate(team: &mut Team, isa: Isa) -> f64 {
    const COLUMNS: usize = 1024;
    const REPEATS: usize = 200;
    let data = vec![0x55; Dtype::Q4_0.row_bytes(COLUMNS).expect("whole blocks") * LANES];
    let view = TensorView {
        name: "ceiling",
        dtype: Dtype::Q4_0,
        rows: LANES,
        cols: COLUMNS,
        data: &data,
    };
    let matrix = Matrix::new(&view, LANES, 0);
    let mut arena = Buffer::zeroed(matrix.bytes()).expect("a tile");
    pack_tile(&matrix, &view, 0, &mut arena);
    let weights: Shared<u8> = arena.shared();
    let mut acts = Acts::new(
        MAX_WIDTH,
        COLUMNS,
        Precision {
            codes: true,
            values: false,
        },
    )
    .expect("16 tokens");
    let acts = acts.view(MAX_WIDTH);
    for token in 0..MAX_WIDTH {
        // SAFETY: the caller chose an instruction set of this machine; one thread.
        unsafe {
            run(
                isa,
                StoreToken {
                    row: &[0.5; COLUMNS],
                    out: &acts,
                    token,
                },
            )
        };
    }
    let work = (REPEATS * team.size() * MAX_WIDTH * LANES * COLUMNS) as f64;
    best_rate(team, work, 20, &|_, _| {
        let mut out = [0.0; MAX_WIDTH * LANES];
        for _ in 0..REPEATS {
            TileProduct {
                matrix: &matrix,
                weights,
                first_tile: 0,
                num_tiles: 1,
                acts: &acts,
                block: 0,
                num_tokens: MAX_WIDTH,
                integer: true,
                out: &mut out,
                stride: LANES,
            }
            .run(isa);
        }
        black_box(&out);
    })
}

/// Multiply-adds with weights that a token costs in the head, and in everything before it.
pub fn weights_per_token(config: &ModelConfig) -> (usize, usize) {
    let attention = 2 * config.hidden_size * (config.q_size() + config.kv_size());
    let body = (0..config.num_layers)
        .map(|layer| {
            let inner = config
                .layer_moe(layer)
                .map_or(config.intermediate_size, |moe| {
                    moe.num_experts_per_tok * moe.moe_intermediate_size
                });
            attention + 3 * config.hidden_size * inner
        })
        .sum();
    (config.vocab_size * config.hidden_size, body)
}

/// Best of `runs` runs of `job(rank, size)` by the whole team, as `work` per second.
fn best_rate(team: &mut Team, work: f64, runs: usize, job: &(dyn Fn(usize, usize) + Sync)) -> f64 {
    let slowest = AtomicU64::new(0);
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        // Relaxed: the team's own barriers order the runs.
        slowest.store(0, Ordering::Relaxed);
        team.run(|rank| {
            rank.barrier();
            let start = Instant::now();
            job(rank.rank(), rank.size());
            slowest.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        });
        best = best.min(slowest.load(Ordering::Relaxed) as f64 * 1e-9);
    }
    work / best
}

/// Reads everything once.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: whole vectors within the slice.
        unsafe {
            let mut sums = [S::splat(0.0); 8];
            for chunk in self.0.chunks_exact(8 * LANES) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = S::add(*sum, S::load(chunk.as_ptr().add(i * LANES)));
                }
            }
            let total = sums.into_iter().fold(S::splat(0.0), |a, b| S::add(a, b));
            black_box(S::reduce_add(total));
        }
    }
}
