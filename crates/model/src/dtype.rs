//! Element types of weights: block geometry and dequantisation.
//!
//! A quantised type packs `block_len` consecutive elements of a row into `block_bytes` bytes. Rows never
//! share a block, so a row is always a whole number of blocks and any range of rows is one
//! contiguous range of bytes. Layouts are ggml's (`ggml-common.h`), little endian.

use std::fmt;

use crate::dequant;

/// How the elements of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// 32 × i8 and an f16 scale.
    Q8_0,
    /// 32 × 4 bits around 8 and an f16 scale.
    Q4_0,
    /// 32 × 4 bits, an f16 scale and an f16 minimum.
    Q4_1,
    /// 32 × 5 bits around 16 and an f16 scale.
    Q5_0,
    /// 32 × 5 bits, an f16 scale and an f16 minimum.
    Q5_1,
    /// 256 × 4 bits in 8 groups with 6-bit scales and minimums.
    Q4K,
    /// 256 × 5 bits in 8 groups with 6-bit scales and minimums.
    Q5K,
    /// 256 × 6 bits around 32 in 16 groups with i8 scales.
    Q6K,
}

impl Dtype {
    /// Every type, in the order messages list them.
    pub const ALL: [Dtype; 11] = [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::Q8_0,
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q5_1,
        Dtype::Q4K,
        Dtype::Q5K,
        Dtype::Q6K,
    ];

    /// Elements in a block; 1 for the plain types.
    pub const fn block_len(self) -> usize {
        match self {
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => 1,
            Dtype::Q8_0 | Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 => 32,
            Dtype::Q4K | Dtype::Q5K | Dtype::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::Q8_0 => 34,
            Dtype::Q4_0 => 18,
            Dtype::Q4_1 => 20,
            Dtype::Q5_0 => 22,
            Dtype::Q5_1 => 24,
            Dtype::Q4K => 144,
            Dtype::Q5K => 176,
            Dtype::Q6K => 210,
        }
    }

    /// Bytes of a row of `cols` elements; `None` if `cols` is not a whole number of blocks or the
    /// size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether the type packs several elements into a block.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// The usual name, as GGUF tools print it.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::Q8_0 => "Q8_0",
            Dtype::Q4_0 => "Q4_0",
            Dtype::Q4_1 => "Q4_1",
            Dtype::Q5_0 => "Q5_0",
            Dtype::Q5_1 => "Q5_1",
            Dtype::Q4K => "Q4_K",
            Dtype::Q5K => "Q5_K",
            Dtype::Q6K => "Q6_K",
        }
    }

    /// Decodes whole blocks: `data` holds exactly the blocks of `out.len()` elements.
    ///
    /// The arithmetic is f32 in ggml's order of operations, so results are bit-equal to its
    /// reference dequantisation.
    ///
    /// # Panics
    /// If the two lengths do not describe the same whole number of blocks.
    pub fn dequantize(self, data: &[u8], out: &mut [f32]) {
        assert_eq!(
            self.row_bytes(out.len()),
            Some(data.len()),
            "{self}: {} bytes cannot hold {} elements",
            data.len(),
            out.len()
        );
        match self {
            Dtype::F32 => dequant::f32(data, out),
            Dtype::F16 => dequant::f16(data, out),
            Dtype::Bf16 => dequant::bf16(data, out),
            Dtype::Q8_0 => dequant::q8_0(data, out),
            Dtype::Q4_0 => dequant::q4_0(data, out),
            Dtype::Q4_1 => dequant::q4_1(data, out),
            Dtype::Q5_0 => dequant::q5_0(data, out),
            Dtype::Q5_1 => dequant::q5_1(data, out),
            Dtype::Q4K => dequant::q4_k(data, out),
            Dtype::Q5K => dequant::q5_k(data, out),
            Dtype::Q6K => dequant::q6_k(data, out),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
