//! Parameters made up from a config alone (`--load-format dummy`), to run a shape without its weights.
//!
//! One region of pseudo-random elements is filled, as large as the largest parameter plus a margin; a parameter is a
//! window into it whose start depends on the parameter. So a 16 GB model costs its largest matrix and a second, and
//! the same config always gives the same weights. The region repeats with a prime period, so no two rows are equal.
//! Matrices are uniform in ±[`AMPLITUDE`]; norms are all ones; biases come from the same stream.

use std::hash::{Hash, Hasher};

use half::{bf16, f16};

use crate::param::{LayerParam, Param, TensorView};
use crate::{Dtype, ModelConfig};

/// Half width of the distribution: a standard deviation of 0.02, the usual initialiser's.
const AMPLITUDE: f32 = 0.034_641;

/// Windows start at multiples of this, within [`MARGIN`].
const WINDOW_STEP: usize = 32;

/// Elements after which the stream repeats: a prime, so that it never lines up with rows.
const PERIOD: usize = 1_000_003;

/// Elements beyond the largest parameter.
const MARGIN: usize = 1 << 18;

pub(crate) struct DummyWeights {
    dtype: Dtype,
    random: Vec<u8>,
    ones: Vec<u8>,
}

impl DummyWeights {
    /// Generates the region for a model of this shape, in its dtype (f32 if that is quantised).
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let dtype = if config.dtype.is_quantized() {
            Dtype::F32
        } else {
            config.dtype
        };
        let largest = Param::all(config)
            .filter_map(|p| p.shape(config))
            .map(|[rows, cols]| rows * cols)
            .max()
            .unwrap_or(0);
        let mut state = 0x1234_5678_9abc_def0_u64;
        let period = encode(dtype, (0..PERIOD).map(|_| uniform(&mut state)));
        let ones = std::iter::repeat_n(1.0, config.hidden_size.max(config.head_dim));
        Self {
            dtype,
            random: repeat(&period, (largest + MARGIN) * dtype.block_bytes()),
            ones: encode(dtype, ones),
        }
    }

    /// The made-up parameter, if a model of this shape has it.
    pub(crate) fn param(&self, config: &ModelConfig, param: Param) -> Option<TensorView<'_>> {
        let [rows, cols] = param.shape(config)?;
        let bytes = rows * cols * self.dtype.block_bytes();
        let data = if is_norm(param) {
            &self.ones[..bytes]
        } else {
            let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
            param.hash(&mut hasher);
            let window = hasher.finish() as usize % (MARGIN / WINDOW_STEP);
            &self.random[window * WINDOW_STEP * self.dtype.block_bytes()..][..bytes]
        };
        Some(TensorView {
            name: "dummy",
            dtype: self.dtype,
            rows,
            cols,
            data,
        })
    }
}

/// FNV-1a, so that windows do not move when the standard library's hasher changes.
struct Fnv(u64);

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn is_norm(param: Param) -> bool {
    use LayerParam::{AttnNorm, FfnNorm, KNorm, QNorm};
    matches!(
        param,
        Param::FinalNorm | Param::Layer(_, AttnNorm | FfnNorm | QNorm | KNorm)
    )
}

/// The next value of an xorshift64* stream, uniform in ±[`AMPLITUDE`].
fn uniform(state: &mut u64) -> f32 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    let bits = (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32;
    (bits / (1 << 23) as f32 - 1.0) * AMPLITUDE
}

fn encode(dtype: Dtype, values: impl Iterator<Item = f32>) -> Vec<u8> {
    match dtype {
        Dtype::F16 => values
            .flat_map(|v| f16::from_f32(v).to_le_bytes())
            .collect(),
        Dtype::Bf16 => values
            .flat_map(|v| bf16::from_f32(v).to_le_bytes())
            .collect(),
        _ => values.flat_map(f32::to_le_bytes).collect(),
    }
}

/// `pattern` over and over, cut off at `len` bytes.
fn repeat(pattern: &[u8], len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        out.extend_from_slice(&pattern[..pattern.len().min(len - out.len())]);
    }
    out
}
