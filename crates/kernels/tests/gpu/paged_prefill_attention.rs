//! paged_prefill_attention against f64 on the device.

use half::bf16;
use izar_kernels::{
    AttentionError, DeviceBuffer, DeviceWord, Graph, Matrix, PagedDecodeAttention,
    PagedPrefillAttention, paged_prefill_attention, reference_attention,
};

use crate::paged_cache::{Heads, PagedCache};
use crate::{Gpu, POISON, gpu, relative_error};

/// bf16 rounding of weights and outputs.
const TOLERANCE: f64 = 5e-3;
/// Rows of q and out after the last entry's.
const PADDING: usize = 5;
/// Elements between rows of q, and of out.
const GAP: usize = 8;
/// Entries before the first that prefill takes, one token each.
const DECODES: usize = 2;
const LLAMA3: Heads = Heads {
    head_dim: 128,
    num_kv_heads: 8,
    group: 4,
};

/// An entry: (tokens of the chunk, tokens of the sequence with it).
type Chunk = (u32, u32);

/// Around every edge of a KV block, a step of keys and a tile of rows; whole prompts and late chunks.
const CHUNKS: [Chunk; 18] = [
    (1, 40),
    (1, 129),
    (1, 1),
    (16, 16),
    (17, 17),
    (31, 33),
    (32, 160),
    (0, 50),
    (127, 127),
    (128, 128),
    (129, 129),
    (1, 1000),
    (129, 257),
    (64, 256),
    (300, 2000),
    (5, 4097),
    (18, 127),
    (250, 1303),
];

struct Fixture {
    cache: PagedCache,
    chunks: Vec<Chunk>,
    num_rows: usize,
    queries: Vec<bf16>,
    q: DeviceBuffer<bf16>,
    block_tables: DeviceBuffer<u32>,
    query_starts: DeviceBuffer<u32>,
    query_lens: DeviceBuffer<u32>,
    seq_lens: DeviceBuffer<u32>,
    /// Stands for a step's counts: rubbish, first entry, one past the last.
    counts: DeviceBuffer<u32>,
}

impl Fixture {
    /// `room` more rows than the chunks need.
    fn new(gpu: &mut Gpu, heads: Heads, chunks: &[Chunk], room: usize) -> Self {
        let lengths: Vec<u32> = chunks.iter().map(|chunk| chunk.1).collect();
        let cache = PagedCache::new(gpu, heads, &lengths);
        let num_rows = chunks.iter().map(|chunk| chunk.0 as usize).sum::<usize>() + room;
        let row = heads.columns() as usize + GAP;
        let q = gpu.random(num_rows * row, 2.0);
        let stream = &gpu.stream;
        let words = |len: usize| DeviceBuffer::new(stream.device(), len).unwrap();
        let mut fixture = Self {
            block_tables: DeviceBuffer::from_slice(stream, &cache.table).unwrap(),
            query_starts: words(chunks.len()),
            query_lens: words(chunks.len()),
            seq_lens: words(chunks.len()),
            counts: words(3),
            cache,
            chunks: Vec::new(),
            num_rows,
            queries: gpu.read(&q),
            q,
        };
        fixture.set_chunks(gpu, chunks);
        fixture
    }

    /// Other chunks of the same sequences; rows of `q` that none uses are NaN.
    fn set_chunks(&mut self, gpu: &Gpu, chunks: &[Chunk]) {
        self.chunks = chunks.to_vec();
        let stream = &gpu.stream;
        let lens = |f: fn(&Chunk) -> u32| chunks.iter().map(f).collect::<Vec<_>>();
        self.query_starts.write(stream, &self.starts()).unwrap();
        self.query_lens.write(stream, &lens(|c| c.0)).unwrap();
        self.seq_lens.write(stream, &lens(|c| c.1)).unwrap();
        let counts = [u32::MAX, DECODES as u32, chunks.len() as u32];
        self.counts.write(stream, &counts).unwrap();
        let used = chunks.iter().map(|chunk| chunk.0 as usize).sum::<usize>() * self.row();
        let mut q = self.queries.clone();
        q[used..].fill(bf16::NAN);
        self.q.write(stream, &q).unwrap();
    }

    fn row(&self) -> usize {
        self.cache.heads.columns() as usize + GAP
    }

    fn starts(&self) -> Vec<u32> {
        let ends = self.chunks.iter().scan(0, |end, chunk| {
            let start = *end;
            *end += chunk.0;
            Some(start)
        });
        ends.collect()
    }

    fn matrix<'a>(&self, buffer: &'a DeviceBuffer<bf16>) -> Matrix<'a> {
        let columns = self.cache.heads.columns();
        Matrix::strided(buffer, 0, self.num_rows as u32, columns, self.row() as u32).unwrap()
    }

    fn step<'a>(
        &'a self,
        out: &'a DeviceBuffer<bf16>,
        window: Option<u32>,
    ) -> PagedPrefillAttention<'a> {
        PagedPrefillAttention {
            q: self.matrix(&self.q),
            cache: self.cache.view(),
            block_tables: &self.block_tables,
            max_blocks_per_seq: self.cache.max_blocks as u32,
            query_starts: &self.query_starts,
            query_lens: &self.query_lens,
            seq_lens: &self.seq_lens,
            first_entry: DeviceWord::new(&self.counts, 4),
            end_entry: DeviceWord::new(&self.counts, 8),
            max_entries: self.chunks.len() as u32,
            out: self.matrix(out),
            window,
            scale: self.cache.heads.scale(),
        }
    }

    fn run(&self, gpu: &Gpu, window: Option<u32>) -> Vec<bf16> {
        let out = gpu.poisoned(self.num_rows * self.row());
        paged_prefill_attention(&gpu.stream, &self.step(&out, window)).unwrap();
        gpu.read(&out)
    }

    /// Every token as a decode step of its own, in f64.
    fn reference(&self, gpu: &Gpu, window: Option<u32>) -> Vec<f64> {
        let (mut tables, mut lens) = (Vec::new(), Vec::new());
        let tables_of = self.cache.table.chunks(self.cache.max_blocks);
        for (&(tokens, length), table) in self.chunks.iter().zip(tables_of) {
            for token in 0..tokens {
                tables.extend_from_slice(table);
                lens.push(length - tokens + token + 1);
            }
        }
        tables.resize(self.num_rows * self.cache.max_blocks, 0);
        lens.resize(self.num_rows, 0);
        let stream = &gpu.stream;
        let columns = self.cache.heads.columns() as usize;
        let out = DeviceBuffer::<f64>::new(stream.device(), self.num_rows * columns).unwrap();
        out.fill_bytes(stream, 0).unwrap();
        let unused = gpu.poisoned(self.num_rows * self.row());
        let step = PagedDecodeAttention {
            q: self.matrix(&self.q),
            cache: self.cache.view(),
            block_table: &DeviceBuffer::from_slice(stream, &tables).unwrap(),
            max_blocks_per_seq: self.cache.max_blocks as u32,
            seq_lens: &DeviceBuffer::from_slice(stream, &lens).unwrap(),
            out: self.matrix(&unused),
            window,
            scale: self.cache.heads.scale(),
            reads_early: false,
        };
        reference_attention(stream, &step, &out).unwrap();
        let mut wanted = vec![0.0; out.len()];
        out.read(stream, &mut wanted).unwrap();
        wanted
    }

    fn check(&self, gpu: &Gpu, got: &[bf16], window: Option<u32>) {
        let wanted = self.reference(gpu, window);
        let (columns, heads) = (self.cache.heads.columns() as usize, self.cache.heads);
        let decodes: u32 = self.chunks[..DECODES].iter().map(|chunk| chunk.0).sum();
        let used: u32 = self.chunks.iter().map(|chunk| chunk.0).sum();
        let rows = decodes as usize..used as usize;
        for (row, values) in got.chunks(self.row()).enumerate() {
            let written = if rows.contains(&row) { columns } else { 0 };
            let poisoned = values[written..].iter().all(|v| v.to_bits() == POISON);
            assert!(
                poisoned,
                "{heads:?} window {window:?}: wrote outside row {row}"
            );
        }
        for (&(tokens, length), start) in self.chunks.iter().zip(self.starts()).skip(DECODES) {
            for token in 0..tokens as usize {
                let row = start as usize + token;
                for head in 0..heads.num_heads() as usize {
                    let dim = heads.head_dim as usize;
                    let values = &got[row * self.row() + head * dim..][..dim];
                    let wanted = &wanted[row * columns + head * dim..][..dim];
                    let error = relative_error(
                        values.iter().map(|value| value.to_f64()),
                        wanted.iter().copied(),
                    );
                    assert!(
                        error < 4.0 * TOLERANCE,
                        "{heads:?} window {window:?} chunk ({tokens}, {length}) token {token} head {head}: \
                         {error:.2e}, got {:?}, wanted {:?}",
                        &values[..8],
                        &wanted[..8]
                    );
                }
            }
            let range = start as usize..start as usize + tokens as usize;
            let values = range
                .clone()
                .flat_map(|row| &got[row * self.row()..][..columns]);
            let wanted = range.flat_map(|row| &wanted[row * columns..][..columns]);
            let error = relative_error(values.map(|value| value.to_f64()), wanted.copied());
            assert!(
                tokens == 0 || error < TOLERANCE,
                "{heads:?} window {window:?} chunk ({tokens}, {length}): {error:.2e}"
            );
        }
    }
}

#[test]
fn every_head_shape_chunk_and_window_is_right() {
    let Some(mut gpu) = gpu() else { return };
    for head_dim in [64, 96, 128] {
        for (num_kv_heads, group) in [(8, 4), (4, 7), (2, 5), (1, 16), (3, 1), (1, 9)] {
            let heads = Heads {
                head_dim,
                num_kv_heads,
                group,
            };
            let fixture = Fixture::new(&mut gpu, heads, &CHUNKS, PADDING);
            for window in [None, Some(1), Some(100), Some(2048)] {
                let got = fixture.run(&gpu, window);
                fixture.check(&gpu, &got, window);
            }
        }
    }
}

#[test]
fn a_late_chunk_of_a_long_prompt_is_right() {
    let Some(mut gpu) = gpu() else { return };
    let chunks = [(1, 100), (1, 3), (2048, 8192)];
    let fixture = Fixture::new(&mut gpu, LLAMA3, &chunks, PADDING);
    let got = fixture.run(&gpu, None);
    fixture.check(&gpu, &got, None);
}

#[test]
fn a_tokens_result_does_not_depend_on_how_its_prompt_is_cut() {
    let Some(mut gpu) = gpu() else { return };
    let length = 1000;
    let whole = [(1, 20), (1, 20), (length, length), (40, 40)];
    let mut fixture = Fixture::new(&mut gpu, LLAMA3, &whole, 0);
    let row = fixture.row();
    let bits = |out: &[bf16]| out.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let together = bits(&fixture.run(&gpu, None));
    // Rows before the cut are not taken: the chunk is the same rows of q, fewer of them.
    for cut in [1, 15, 31, 32, 100, 128, 517, 999] {
        fixture.set_chunks(&gpu, &[(1, 20), (1, 20), (length, length), (0, 40)]);
        let (starts, lens) = ([0, 1, 2 + cut, 2], [1, 1, length - cut, 0]);
        fixture.query_starts.write(&gpu.stream, &starts).unwrap();
        fixture.query_lens.write(&gpu.stream, &lens).unwrap();
        let late = bits(&fixture.run(&gpu, None));
        let range = (2 + cut) as usize * row..(2 + length) as usize * row;
        assert!(late[range.clone()] == together[range], "cut at {cut}");
    }
}

#[test]
fn a_captured_launch_serves_any_chunks() {
    let Some(mut gpu) = gpu() else { return };
    let heads = Heads {
        head_dim: 128,
        num_kv_heads: 4,
        group: 7,
    };
    let most = [(1, 700), (1, 900), (300, 3000), (400, 2000), (100, 600)];
    let mut fixture = Fixture::new(&mut gpu, heads, &most, PADDING);
    let out = gpu.poisoned(fixture.num_rows * fixture.row());
    let graph = Graph::capture(&gpu.stream, |stream| {
        paged_prefill_attention(stream, &fixture.step(&out, None))
    })
    .unwrap();
    let exec = graph.instantiate_for_device(&gpu.stream).unwrap();
    for round in 0..6_u32 {
        let chunks: Vec<Chunk> = most
            .iter()
            .enumerate()
            .map(|(i, &(tokens, length))| {
                let tokens = if i < DECODES { 1 } else { tokens * round / 5 };
                (tokens, length - 97 * round)
            })
            .collect();
        fixture.set_chunks(&gpu, &chunks);
        out.fill_bytes(&gpu.stream, 0xFF).unwrap();
        // SAFETY: every captured buffer lives to the end of the test.
        unsafe { exec.launch(&gpu.stream) }.unwrap();
        let got = gpu.read(&out);
        fixture.check(&gpu, &got, None);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let Some(mut gpu) = gpu() else { return };
    let fixture = Fixture::new(&mut gpu, LLAMA3, &CHUNKS, 0);
    let out = gpu.poisoned(fixture.num_rows * fixture.row());
    let good = fixture.step(&out, None);
    let refused = |step: PagedPrefillAttention<'_>, wanted: &str| match paged_prefill_attention(
        &gpu.stream,
        &step,
    ) {
        Err(AttentionError::Size { what, .. }) => assert_eq!(what, wanted),
        other => panic!("{other:?}"),
    };
    let short = DeviceBuffer::from_slice(&gpu.stream, &[1]).unwrap();
    refused(
        PagedPrefillAttention {
            query_lens: &short,
            ..good
        },
        "query_lens",
    );
    refused(
        PagedPrefillAttention {
            max_entries: 1025,
            ..good
        },
        "max_entries",
    );
    refused(
        PagedPrefillAttention {
            max_blocks_per_seq: 1 << 20,
            ..good
        },
        "block_tables",
    );
    refused(PagedPrefillAttention { scale: 0.0, ..good }, "scale");
    let one_row = Matrix::dense(&out, 1, LLAMA3.columns()).unwrap();
    refused(
        PagedPrefillAttention {
            out: one_row,
            ..good
        },
        "rows of out",
    );
}
