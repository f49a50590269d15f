//! paged_decode_attention against f64 on the device.

use half::bf16;
use izar_kernels::{
    AttentionError, AttentionWorkspace, DeviceBuffer, Graph, KvCache, Matrix, PagedDecodeAttention,
    paged_decode_attention, reference_attention,
};

use crate::paged_cache::{Heads, PagedCache};
use crate::{Gpu, POISON, gpu, relative_error};

/// bf16 rounding of weights and outputs.
const TOLERANCE: f64 = 5e-3;
/// Around every edge of a block, a warp's round, a chunk and the growth of chunks; 0 is a padding row.
const LENGTHS: [u32; 16] = [
    1, 2, 15, 16, 17, 127, 128, 129, 0, 255, 1000, 2047, 2048, 2049, 4097, 5000,
];

/// Sequences of given lengths, a query for each.
struct Fixture {
    cache: PagedCache,
    lengths: Vec<u32>,
    q: DeviceBuffer<bf16>,
    block_table: DeviceBuffer<u32>,
    seq_lens: DeviceBuffer<u32>,
    workspace: AttentionWorkspace,
    reads_early: bool,
}

impl Fixture {
    fn new(gpu: &mut Gpu, heads: Heads, lengths: &[u32]) -> Self {
        let cache = PagedCache::new(gpu, heads, lengths);
        let q = gpu.random(lengths.len() * heads.columns() as usize, 2.0);
        let num_seqs = lengths.len() as u32;
        let (stream, device) = (&gpu.stream, gpu.stream.device());
        Self {
            lengths: lengths.to_vec(),
            q,
            block_table: DeviceBuffer::from_slice(stream, &cache.table).unwrap(),
            seq_lens: DeviceBuffer::from_slice(stream, lengths).unwrap(),
            workspace: AttentionWorkspace::new(device, num_seqs, heads.num_heads(), heads.head_dim)
                .unwrap(),
            cache,
            reads_early: true,
        }
    }

    /// The step of all sequences; rows of `out` are 8 elements longer than they need.
    fn step<'a>(
        &'a self,
        out: &'a DeviceBuffer<bf16>,
        window: Option<u32>,
    ) -> PagedDecodeAttention<'a> {
        let (seqs, columns) = (self.lengths.len() as u32, self.cache.heads.columns());
        PagedDecodeAttention {
            q: Matrix::dense(&self.q, seqs, columns).unwrap(),
            cache: self.cache.view(),
            block_table: &self.block_table,
            max_blocks_per_seq: self.cache.max_blocks as u32,
            seq_lens: &self.seq_lens,
            out: Matrix::strided(out, 0, seqs, columns, columns + 8).unwrap(),
            window,
            scale: self.cache.heads.scale(),
            reads_early: self.reads_early,
        }
    }

    fn out(&self, gpu: &Gpu) -> DeviceBuffer<bf16> {
        gpu.poisoned((self.lengths.len() + 1) * (self.cache.heads.columns() as usize + 8))
    }

    fn run(&self, gpu: &Gpu, window: Option<u32>) -> Vec<bf16> {
        let out = self.out(gpu);
        paged_decode_attention(&gpu.stream, &self.step(&out, window), &self.workspace).unwrap();
        let out = gpu.read(&out);
        assert!(self.workspace.is_sound(&gpu.stream).unwrap());
        out
    }

    fn check(&self, gpu: &Gpu, got: &[bf16], window: Option<u32>) {
        let columns = self.cache.heads.columns() as usize;
        let reference =
            DeviceBuffer::<f64>::new(gpu.stream.device(), self.lengths.len() * columns).unwrap();
        reference.fill_bytes(&gpu.stream, 0).unwrap();
        let unused = self.out(gpu);
        reference_attention(&gpu.stream, &self.step(&unused, window), &reference).unwrap();
        let mut wanted = vec![0.0; reference.len()];
        reference.read(&gpu.stream, &mut wanted).unwrap();
        for (row, chunk) in got.chunks(columns + 8).enumerate() {
            let length = self.lengths.get(row).copied().unwrap_or(0);
            let written = if length == 0 { 0 } else { columns };
            let poisoned = chunk[written..]
                .iter()
                .all(|value| value.to_bits() == POISON);
            assert!(
                poisoned,
                "{:?}: wrote outside row {row} of length {length}",
                self.cache.heads
            );
            if length == 0 {
                continue;
            }
            let got = chunk[..columns].iter().map(|value| value.to_f64());
            let error = relative_error(got, wanted[row * columns..][..columns].iter().copied());
            assert!(
                error < TOLERANCE,
                "{:?} length {length} window {window:?}: {error:.2e}",
                self.cache.heads
            );
        }
    }
}

#[test]
fn every_head_shape_length_and_window_is_right() {
    let Some(mut gpu) = gpu() else { return };
    for head_dim in [64, 96, 128] {
        for (num_kv_heads, group) in [(8, 4), (4, 7), (2, 8), (1, 16), (3, 1), (1, 9)] {
            let heads = Heads {
                head_dim,
                num_kv_heads,
                group,
            };
            let fixture = Fixture::new(&mut gpu, heads, &LENGTHS);
            for window in [None, Some(1), Some(100), Some(2048)] {
                let got = fixture.run(&gpu, window);
                fixture.check(&gpu, &got, window);
            }
            assert!(fixture.workspace.is_clean(&gpu.stream).unwrap());
        }
    }
}

#[test]
fn a_sequences_result_does_not_depend_on_its_batch() {
    let Some(mut gpu) = gpu() else { return };
    let heads = Heads {
        head_dim: 128,
        num_kv_heads: 8,
        group: 4,
    };
    let row = heads.columns() as usize + 8;
    let fixture = Fixture::new(&mut gpu, heads, &LENGTHS);
    let together = fixture.run(&gpu, None);
    for (seq, &length) in LENGTHS.iter().enumerate() {
        let mut alone = [0; LENGTHS.len()];
        alone[seq] = length;
        fixture.seq_lens.write(&gpu.stream, &alone).unwrap();
        let got = fixture.run(&gpu, None);
        let bits = |out: &[bf16]| {
            out[seq * row..][..row]
                .iter()
                .map(|v| v.to_bits())
                .collect::<Vec<_>>()
        };
        assert!(bits(&got) == bits(&together), "length {length}");
    }
}

#[test]
fn reading_early_and_many_launches_in_a_row_change_nothing() {
    let Some(mut gpu) = gpu() else { return };
    let heads = Heads {
        head_dim: 128,
        num_kv_heads: 8,
        group: 4,
    };
    let lengths: Vec<u32> = (0..64).map(|seq| 1 + seq * 61).collect();
    let mut fixture = Fixture::new(&mut gpu, heads, &lengths);
    let early = fixture.run(&gpu, None);
    fixture.reads_early = false;
    let late = fixture.run(&gpu, None);
    let bits = |out: &[bf16]| out.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert!(bits(&early) == bits(&late));
    fixture.reads_early = true;
    let out = fixture.out(&gpu);
    let graph = Graph::capture(&gpu.stream, |stream| {
        for _ in 0..50 {
            paged_decode_attention(stream, &fixture.step(&out, None), &fixture.workspace)?;
        }
        Ok::<_, AttentionError>(())
    })
    .unwrap();
    let exec = graph.instantiate().unwrap();
    // SAFETY: every captured buffer lives to the end of the test.
    unsafe { exec.launch(&gpu.stream) }.unwrap();
    assert!(bits(&gpu.read(&out)) == bits(&early));
    assert!(fixture.workspace.is_sound(&gpu.stream).unwrap());
    assert!(fixture.workspace.is_clean(&gpu.stream).unwrap());
}

#[test]
fn a_captured_launch_serves_any_lengths() {
    let Some(mut gpu) = gpu() else { return };
    let heads = Heads {
        head_dim: 128,
        num_kv_heads: 4,
        group: 8,
    };
    let mut fixture = Fixture::new(&mut gpu, heads, &[5000; 8]);
    let out = fixture.out(&gpu);
    let graph = Graph::capture(&gpu.stream, |stream| {
        paged_decode_attention(stream, &fixture.step(&out, None), &fixture.workspace)
    })
    .unwrap();
    let exec = graph.instantiate_for_device(&gpu.stream).unwrap();
    for round in 0..20_u32 {
        let lengths: Vec<u32> = (0..8).map(|seq| (round * 611 + seq * 977) % 5001).collect();
        fixture.seq_lens.write(&gpu.stream, &lengths).unwrap();
        out.fill_bytes(&gpu.stream, 0xFF).unwrap();
        // SAFETY: every captured buffer lives to the end of the test.
        unsafe { exec.launch(&gpu.stream) }.unwrap();
        let got = gpu.read(&out);
        fixture.lengths = lengths;
        fixture.check(&gpu, &got, None);
    }
}

#[test]
fn heads_and_buffers_that_do_not_fit_are_refused() {
    let Some(mut gpu) = gpu() else { return };
    let fixture = Fixture::new(
        &mut gpu,
        Heads {
            head_dim: 64,
            num_kv_heads: 2,
            group: 2,
        },
        &[20, 20],
    );
    let out = fixture.out(&gpu);
    let good = fixture.step(&out, None);
    let refused = |step: PagedDecodeAttention<'_>, wanted: &str| match paged_decode_attention(
        &gpu.stream,
        &step,
        &fixture.workspace,
    ) {
        Err(AttentionError::Size { what, .. }) => assert_eq!(what, wanted),
        other => panic!("{other:?}"),
    };
    let cache = good.cache;
    refused(
        PagedDecodeAttention {
            cache: KvCache {
                head_dim: 80,
                ..cache
            },
            ..good
        },
        "head_dim",
    );
    refused(
        PagedDecodeAttention {
            cache: KvCache {
                num_kv_heads: 3,
                ..cache
            },
            ..good
        },
        "num_heads",
    );
    refused(
        PagedDecodeAttention {
            max_blocks_per_seq: 1 << 20,
            ..good
        },
        "block_table",
    );
    let short = DeviceBuffer::from_slice(&gpu.stream, &[1]).unwrap();
    refused(
        PagedDecodeAttention {
            seq_lens: &short,
            ..good
        },
        "seq_lens",
    );
}
