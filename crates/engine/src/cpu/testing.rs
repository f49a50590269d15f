//! Shared by the tests of the kernels: random tensors in every format, packing, storing activations.

use half::{bf16, f16};
use izar_model::{Dtype, TensorView};

use super::acts::ActsView;
use super::format::GROUP;
use super::memory::Buffer;
use super::pack::{Matrix, pack_tile};
use super::simd::{Kernel, LANES, Simd};

/// A tensor in its file's bytes.
pub(super) struct TestTensor {
    dtype: Dtype,
    rows: usize,
    cols: usize,
    data: Vec<u8>,
}

impl TestTensor {
    pub(super) fn view(&self) -> TensorView<'_> {
        TensorView {
            name: "test",
            dtype: self.dtype,
            rows: self.rows,
            cols: self.cols,
            data: &self.data,
        }
    }
}

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub(super) fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

pub(super) fn random_values(len: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..len).map(|_| random.value()).collect()
}

/// Offsets of the f16 scales in a block; everything else may be any bits.
fn scale_offsets(dtype: Dtype) -> &'static [usize] {
    match dtype {
        Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q5_0 => &[0],
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q6K => &[208],
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => &[],
    }
}

/// Random codes, random moderate scales of both signs.
pub(super) fn random_tensor(dtype: Dtype, rows: usize, cols: usize, seed: u64) -> TestTensor {
    let mut random = Random(seed);
    let mut data: Vec<u8> = match dtype {
        Dtype::F32 => (0..rows * cols)
            .flat_map(|_| random.value().to_le_bytes())
            .collect(),
        Dtype::F16 => (0..rows * cols)
            .flat_map(|_| f16::from_f32(random.value()).to_le_bytes())
            .collect(),
        Dtype::Bf16 => (0..rows * cols)
            .flat_map(|_| bf16::from_f32(random.value()).to_le_bytes())
            .collect(),
        _ => (0..rows * dtype.row_bytes(cols).unwrap())
            .map(|_| random.next() as u8)
            .collect(),
    };
    if dtype.is_quantized() {
        for block in data.chunks_mut(dtype.block_bytes()) {
            for &at in scale_offsets(dtype) {
                block[at..at + 2]
                    .copy_from_slice(&f16::from_f32(random.value() * 0.1).to_le_bytes());
            }
        }
    }
    TestTensor {
        dtype,
        rows,
        cols,
        data,
    }
}

/// All codes at their largest (rows of even index) or smallest, scales 1.
pub(super) fn extreme_tensor(dtype: Dtype, rows: usize, cols: usize) -> TestTensor {
    let row_bytes = dtype.row_bytes(cols).unwrap();
    let mut data = Vec::with_capacity(rows * row_bytes);
    for row in 0..rows {
        let byte = match (dtype, row % 2) {
            (Dtype::Q8_0, 0) => 0x7f,
            (Dtype::Q8_0, _) => 0x80,
            (_, 0) => 0xff,
            _ => 0,
        };
        data.resize((row + 1) * row_bytes, byte);
        for block in data[row * row_bytes..].chunks_mut(dtype.block_bytes()) {
            for &at in scale_offsets(dtype) {
                block[at..at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
            }
        }
    }
    TestTensor {
        dtype,
        rows,
        cols,
        data,
    }
}

/// Packs a whole tensor into an arena of its own.
pub(super) fn pack(view: &TensorView<'_>, run_rows: usize) -> (Matrix, Buffer<u8>) {
    let matrix = Matrix::new(view, run_rows, 0);
    let mut arena = Buffer::zeroed(matrix.bytes()).unwrap();
    for (tile, out) in arena.chunks_exact_mut(matrix.tile_bytes()).enumerate() {
        pack_tile(&matrix, view, tile, out);
    }
    (matrix, arena)
}

/// Stores one token's activations.
pub(super) struct StoreRow<'a> {
    pub(super) view: ActsView,
    pub(super) token: usize,
    pub(super) row: &'a [f32],
}

impl Kernel for StoreRow<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (group, values) in self.row.chunks(GROUP).enumerate() {
            let mut padded = [0.0; GROUP];
            padded[..values.len()].copy_from_slice(values);
            // SAFETY: 32 values; tests have one thread.
            unsafe {
                let x = [
                    S::load(padded.as_ptr()),
                    S::load(padded.as_ptr().add(LANES)),
                ];
                self.view.store_group::<S>(self.token, group, x);
            }
        }
    }
}
