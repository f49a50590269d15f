//! Weights from a checkpoint into tiles, and single rows back out.
//!
//! Packing moves bits and never rounds: a packed row decodes to exactly what the checkpoint's row decodes to.

use izar_model::{Dtype, TensorView};

use super::format::{Format, GROUP, Geometry, HALVES16, NIBBLES, PLANE};
use super::simd::{Isa, Kernel, LANES, Simd, run};
use super::{format, memory::Shared};

/// A packed matrix inside the weight arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) dtype: Dtype,
    /// Out features, without padding.
    pub(super) rows: usize,
    /// In features, without padding.
    pub(super) cols: usize,
    /// Rows that share a run of tiles: a run starts at every multiple, so `run_rows` is padded to whole tiles. Heads of an
    /// odd width stay apart this way.
    pub(super) run_rows: usize,
    /// Offset of the first tile in the arena, bytes.
    pub(super) offset: usize,
}

impl Matrix {
    /// A matrix that will start at `offset`.
    pub(super) fn new(view: &TensorView<'_>, run_rows: usize, offset: usize) -> Self {
        assert!(
            run_rows > 0 && view.rows.is_multiple_of(run_rows),
            "{} rows in runs of {run_rows}",
            view.rows
        );
        Self {
            dtype: view.dtype,
            rows: view.rows,
            cols: view.cols,
            run_rows,
            offset,
        }
    }

    /// Groups of columns, padded to whole super groups.
    pub(super) fn groups(&self) -> usize {
        self.cols
            .div_ceil(GROUP)
            .next_multiple_of(Geometry::for_dtype(self.dtype).groups)
    }

    pub(super) fn tile_bytes(&self) -> usize {
        Geometry::for_dtype(self.dtype).tile_bytes(self.groups())
    }

    /// Tiles of one run.
    pub(super) fn tiles_per_run(&self) -> usize {
        self.run_rows.div_ceil(LANES)
    }

    pub(super) fn num_tiles(&self) -> usize {
        self.rows / self.run_rows * self.tiles_per_run()
    }

    pub(super) fn bytes(&self) -> usize {
        self.num_tiles() * self.tile_bytes()
    }

    /// Whether the integer kernels can take it.
    pub(super) fn is_quantized(&self) -> bool {
        self.dtype.is_quantized()
    }

    /// Source row of a tile's lane, if it is not padding.
    fn row(&self, tile: usize, lane: usize) -> Option<usize> {
        let (run, tile) = (tile / self.tiles_per_run(), tile % self.tiles_per_run());
        let row = tile * LANES + lane;
        (row < self.run_rows).then_some(run * self.run_rows + row)
    }
}

/// Packs one tile. `out` is `tile_bytes` zeroed bytes.
pub(super) fn pack_tile(matrix: &Matrix, view: &TensorView<'_>, tile: usize, out: &mut [u8]) {
    for lane in 0..LANES {
        let Some(row) = matrix.row(tile, lane) else {
            continue;
        };
        let row = view.row(row);
        match view.dtype {
            Dtype::F32 => pack_plain::<4>(row, lane, out),
            Dtype::F16 | Dtype::Bf16 => pack_plain::<2>(row, lane, out),
            _ => pack_quantized(view.dtype, row, lane, out),
        }
    }
}

fn pack_plain<const BYTES: usize>(row: &[u8], lane: usize, out: &mut [u8]) {
    let columns = row.chunks_exact(BYTES);
    for (element, column) in columns.zip(out.chunks_exact_mut(BYTES * LANES)) {
        column[lane * BYTES..][..BYTES].copy_from_slice(element);
    }
}

fn pack_quantized(dtype: Dtype, row: &[u8], lane: usize, out: &mut [u8]) {
    let geometry = Geometry::for_dtype(dtype);
    let per_block = dtype.block_len() / GROUP;
    for (index, block) in row.chunks_exact(dtype.block_bytes()).enumerate() {
        for part in 0..per_block {
            let (header, group) = geometry.locate(index * per_block + part);
            let source = block_group(dtype, block, part);
            put_codes(dtype, &source.codes, lane, &mut out[group..]);
            let tail = group + geometry.group_bytes - source.tail_len * LANES;
            for (i, &byte) in source.tail[..source.tail_len].iter().enumerate() {
                // Two-byte scales stay together; single bytes form arrays of 16.
                let width = if per_block == 1 { 2 } else { 1 };
                out[tail + i / width * width * LANES + lane * width + i % width] = byte;
            }
            for (i, half) in source.header[..geometry.header / LANES]
                .chunks_exact(2)
                .enumerate()
            {
                out[header + i * HALVES16 + lane * 2..][..2].copy_from_slice(half);
            }
        }
    }
}

/// One row's group of 32 columns as the file has it: unsigned codes, and the bytes that become its share of the
/// group's tail and of the super group's header.
struct SourceGroup {
    codes: [u8; GROUP],
    tail: [u8; 4],
    tail_len: usize,
    header: [u8; 4],
}

fn block_group(dtype: Dtype, block: &[u8], part: usize) -> SourceGroup {
    let mut group = SourceGroup {
        codes: [0; GROUP],
        tail: [0; 4],
        tail_len: 2,
        header: [0; 4],
    };
    match dtype {
        Dtype::Q8_0 => {
            group.tail[..2].copy_from_slice(&block[..2]);
            group.codes = std::array::from_fn(|i| block[2 + i] ^ 0x80);
        }
        Dtype::Q4_0 | Dtype::Q5_0 => {
            group.tail[..2].copy_from_slice(&block[..2]);
            group.codes = nibble_block(&block[2..], dtype == Dtype::Q5_0);
        }
        Dtype::Q4_1 | Dtype::Q5_1 => {
            group.tail.copy_from_slice(&block[..4]);
            group.tail_len = 4;
            group.codes = nibble_block(&block[4..], dtype == Dtype::Q5_1);
        }
        Dtype::Q4K | Dtype::Q5K => {
            group.header.copy_from_slice(&block[..4]);
            let (scale, min) = six_bit_pair(&block[4..16], part);
            group.tail[..2].copy_from_slice(&[scale, min]);
            let (high, low) = block[16..].split_at(if dtype == Dtype::Q5K { 32 } else { 0 });
            group.codes = std::array::from_fn(|i| {
                let nibble = low[part / 2 * 32 + i] >> (part % 2 * 4) & 15;
                nibble | high.get(i).map_or(0, |bits| (bits >> part & 1) << 4)
            });
        }
        Dtype::Q6K => {
            let (low, high) = (&block[part / 4 * 64..], &block[128 + part / 4 * 32..]);
            let quarter = part % 4;
            group.codes = std::array::from_fn(|i| {
                let nibble = low[quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
                nibble | (high[i] >> (quarter * 2) & 3) << 4
            });
            group.tail[..2].copy_from_slice(&block[192 + 2 * part..][..2]);
            group.header[..2].copy_from_slice(&block[208..210]);
        }
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => unreachable!("{dtype} has no blocks"),
    }
    group
}

/// ggml's legacy blocks: 4 bytes of fifth bits if any, then 16 bytes whose low nibbles are elements 0..16.
fn nibble_block(data: &[u8], five_bits: bool) -> [u8; GROUP] {
    let (high, low) = data.split_at(if five_bits { 4 } else { 0 });
    std::array::from_fn(|i| {
        let nibble = low[i % 16] >> (i / 16 * 4) & 15;
        nibble | high.get(i / 8).map_or(0, |bits| (bits >> (i % 8) & 1) << 4)
    })
}

/// Scale and minimum of group `part` from the 12 bytes that hold 8 of each in 6 bits.
fn six_bit_pair(packed: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        return (packed[part] & 63, packed[part + 4] & 63);
    }
    let top = |byte: u8| byte >> 6 << 4;
    (
        packed[part + 4] & 15 | top(packed[part - 4]),
        packed[part + 4] >> 4 | top(packed[part]),
    )
}

fn put_codes(dtype: Dtype, codes: &[u8; GROUP], lane: usize, group: &mut [u8]) {
    for (column, &code) in codes.iter().enumerate() {
        let (step, byte) = (column / 4, lane * 4 + column % 4);
        if dtype == Dtype::Q8_0 {
            group[step * 64 + byte] = code;
            continue;
        }
        group[step / 2 * 64 + byte] |= (code & 15) << (step % 2 * 4);
        match dtype {
            Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q5K => group[NIBBLES + byte] |= (code >> 4) << step,
            Dtype::Q6K => group[NIBBLES + step / 4 * PLANE + byte] |= (code >> 4) << (step % 4 * 2),
            _ => {}
        }
    }
}

/// Decodes one row: the token embedding of a step.
pub(super) struct DecodeRow<'a> {
    pub(super) matrix: &'a Matrix,
    pub(super) arena: Shared<u8>,
    pub(super) row: usize,
    pub(super) out: &'a mut [f32],
}

impl DecodeRow<'_> {
    /// Runs on `isa`.
    pub(super) fn run(self, isa: Isa) {
        assert!(self.row < self.matrix.rows && self.out.len() == self.matrix.cols);
        assert_eq!(
            self.matrix.run_rows, self.matrix.rows,
            "rows are looked up in matrices of one run"
        );
        // SAFETY: `isa` was detected; the row is in range, checked above.
        unsafe {
            match self.matrix.dtype {
                Dtype::F32 => run(isa, DecodeRowOf::<format::F32>(self, Default::default())),
                Dtype::F16 => run(isa, DecodeRowOf::<format::F16>(self, Default::default())),
                Dtype::Bf16 => run(isa, DecodeRowOf::<format::Bf16>(self, Default::default())),
                Dtype::Q8_0 => run(isa, DecodeRowOf::<format::Q8_0>(self, Default::default())),
                Dtype::Q4_0 => run(isa, DecodeRowOf::<format::Q4_0>(self, Default::default())),
                Dtype::Q4_1 => run(isa, DecodeRowOf::<format::Q4_1>(self, Default::default())),
                Dtype::Q5_0 => run(isa, DecodeRowOf::<format::Q5_0>(self, Default::default())),
                Dtype::Q5_1 => run(isa, DecodeRowOf::<format::Q5_1>(self, Default::default())),
                Dtype::Q4K => run(isa, DecodeRowOf::<format::Q4K>(self, Default::default())),
                Dtype::Q5K => run(isa, DecodeRowOf::<format::Q5K>(self, Default::default())),
                Dtype::Q6K => run(isa, DecodeRowOf::<format::Q6K>(self, Default::default())),
            }
        }
    }
}

struct DecodeRowOf<'a, W>(DecodeRow<'a>, std::marker::PhantomData<W>);

impl<W: Format> Kernel for DecodeRowOf<'_, W> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self(
            DecodeRow {
                matrix,
                arena,
                row,
                out,
            },
            _,
        ) = self;
        let tile = arena.at(
            matrix.offset + row / LANES * matrix.tile_bytes(),
            matrix.tile_bytes(),
        );
        let geometry = Geometry::for_dtype(matrix.dtype);
        let mut lanes = [0.0f32; LANES];
        for (index, columns) in out.chunks_mut(GROUP).enumerate() {
            let (header, group) = geometry.locate(index);
            // SAFETY: group `index` of the tile; the arena is not written after loading.
            let group = unsafe { W::decode::<S>(tile.add(header), tile.add(group)) };
            for (column, out) in columns.iter_mut().enumerate() {
                // SAFETY: a group holds all columns, real or padding; `lanes` holds 16.
                unsafe { S::store(lanes.as_mut_ptr(), W::value::<S>(&group, column)) };
                *out = lanes[row % LANES];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::memory::Buffer;
    use crate::cpu::testing::{pack, random_tensor};

    #[test]
    fn packed_rows_decode_to_the_bits_of_the_checkpoint() {
        for dtype in Dtype::ALL {
            for (rows, cols) in [(16, 256), (21, 512), (40, 256 * 5)] {
                let data = random_tensor(dtype, rows, cols, 7);
                let view = data.view();
                let (matrix, mut arena) = pack(&view, rows);
                assert_rows_equal(&view, &matrix, &mut arena);
            }
        }
    }

    #[test]
    fn plain_rows_of_any_width_decode_to_the_bits_of_the_checkpoint() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let data = random_tensor(dtype, 3, 50, 3);
            let view = data.view();
            let (matrix, mut arena) = pack(&view, 3);
            assert_rows_equal(&view, &matrix, &mut arena);
        }
    }

    fn assert_rows_equal(view: &TensorView<'_>, matrix: &Matrix, arena: &mut Buffer<u8>) {
        let (mut expected, mut got) = (vec![0.0; view.cols], vec![0.0; view.cols]);
        for isa in Isa::available() {
            for row in 0..view.rows {
                view.dequantize_row(row, &mut expected);
                DecodeRow {
                    matrix,
                    arena: arena.shared(),
                    row,
                    out: &mut got,
                }
                .run(isa);
                let same = expected
                    .iter()
                    .zip(&got)
                    .all(|(a, b)| a.to_bits() == b.to_bits() || a == b);
                assert!(
                    same,
                    "{} row {row} on {}: {expected:?} is not {got:?}",
                    view.dtype,
                    isa.name()
                );
            }
        }
    }

    #[test]
    fn packing_costs_at_most_three_per_cent_of_the_file() {
        for dtype in Dtype::ALL {
            let data = random_tensor(dtype, 64, 1024, 1);
            let matrix = Matrix::new(&data.view(), 64, 0);
            let (packed, file) = (matrix.bytes(), data.view().data.len());
            assert!(
                packed as f64 <= file as f64 * 1.03,
                "{dtype}: {packed} bytes for {file}"
            );
        }
    }

    #[test]
    fn runs_of_rows_start_at_whole_tiles() {
        let data = random_tensor(Dtype::F32, 20, 32, 5);
        let matrix = Matrix::new(&data.view(), 10, 0);
        assert_eq!(matrix.num_tiles(), 2);
        assert_eq!(matrix.row(1, 0), Some(10));
        assert_eq!(matrix.row(1, 10), None);
    }
}
