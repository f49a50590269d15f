//! Rotary position embedding: which features turn, how fast, and how pairs are laid out.

/// Which features of a head form a rotating pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Feature `i` with `i + rotary_dim / 2` (Hugging Face checkpoints; GGUF of all but `llama`).
    Neox,
    /// Feature `2 i` with `2 i + 1` (GGUF `llama`, whose q and k rows are stored permuted to suit).
    Interleaved,
}

/// How frequencies are bent to reach beyond the trained context.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Plain rotary embedding.
    None,
    /// All frequencies divided by `factor` (position interpolation, arXiv:2306.15595).
    Linear {
        /// Stretch, at least 1.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a smooth blend between.
    Llama3 {
        /// Stretch of the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: usize,
    },
    /// One divisor per frequency, precomputed (`rope_freqs.weight` of a GGUF file).
    Divisors(Vec<f32>),
    /// LongRoPE (arXiv:2402.13753): one of two sets of divisors, chosen by the length in use.
    LongRope {
        /// Divisors up to the original context length.
        short_factor: Vec<f32>,
        /// Divisors beyond it.
        long_factor: Vec<f32>,
        /// Context length of pretraining.
        original_max_position_embeddings: usize,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
    /// YaRN (arXiv:2309.00071): interpolation by parts, with a temperature on attention.
    Yarn {
        /// Stretch of the low frequencies.
        factor: f64,
        /// Context length of pretraining.
        original_max_position_embeddings: usize,
        /// Rotations over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which a frequency is stretched in full.
        beta_slow: f64,
        /// Whether the bounds of the blend are rounded outwards to whole dimensions.
        truncate: bool,
        /// Multiplies cos and sin.
        attention_factor: f64,
    },
}

/// A model's rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Leading features of a head that turn, even, at most `head_dim`; the rest pass through.
    pub rotary_dim: usize,
    /// Context extension.
    pub scaling: RopeScaling,
    /// Layout of pairs.
    pub pairing: Pairing,
}

/// Ready-made frequencies: pair `i` at position `p` turns by the angle `p * inv_freq[i]`, and its cos and
/// sin are multiplied by `attention_factor`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// `rotary_dim / 2` angles per position, radians.
    pub inv_freq: Vec<f32>,
    /// Factor on cos and sin, 1 unless YaRN or LongRoPE.
    pub attention_factor: f32,
}

impl RopeConfig {
    /// The frequencies for an engine that serves contexts up to `max_len` tokens.
    ///
    /// Only LongRoPE looks at `max_len`: cached keys cannot be turned again when a sequence grows, so one
    /// set must serve every position, the long one as soon as `max_len` exceeds the original context.
    pub fn frequencies(&self, max_len: usize) -> RopeFrequencies {
        let plain = (0..self.rotary_dim / 2)
            .map(|i| self.theta.powf(-((2 * i) as f64) / self.rotary_dim as f64));
        let mut attention = 1.0;
        let inv_freq: Vec<f64> = match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
            RopeScaling::Divisors(divisors) => divide(plain, divisors),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let original = *original_max_position_embeddings as f64;
                plain
                    .map(|f| llama3(f, *factor, *low_freq_factor, *high_freq_factor, original))
                    .collect()
            }
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings,
                attention_factor,
            } => {
                attention = *attention_factor;
                let long = max_len > *original_max_position_embeddings;
                divide(plain, if long { long_factor } else { short_factor })
            }
            RopeScaling::Yarn {
                factor,
                attention_factor,
                ..
            } => {
                attention = *attention_factor;
                let (low, high) = self.yarn_blend();
                plain
                    .enumerate()
                    .map(|(i, f)| {
                        let stretched = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        f / factor * stretched + f * (1.0 - stretched)
                    })
                    .collect()
            }
        };
        RopeFrequencies {
            inv_freq: inv_freq.into_iter().map(|f| f as f32).collect(),
            attention_factor: attention as f32,
        }
    }

    /// Pair indices between which YaRN passes from kept (`low`) to stretched (`high`).
    fn yarn_blend(&self) -> (f64, f64) {
        let RopeScaling::Yarn {
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            truncate,
            ..
        } = self.scaling
        else {
            unreachable!("yarn_blend is called for YaRN alone");
        };
        let dim = self.rotary_dim as f64;
        let pair_turning = |rotations: f64| {
            let context = original_max_position_embeddings as f64;
            dim * (context / (rotations * std::f64::consts::TAU)).ln() / (2.0 * self.theta.ln())
        };
        let (mut low, mut high) = (pair_turning(beta_fast), pair_turning(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        (low, high)
    }
}

/// LongRoPE's factor on cos and sin for a stretch beyond `original` tokens.
pub(super) fn longrope_attention(stretch: f64, original: usize) -> f64 {
    if stretch <= 1.0 || original <= 1 {
        return 1.0;
    }
    (1.0 + stretch.ln() / (original as f64).ln()).sqrt()
}

/// YaRN's factor on cos and sin, with `mscale` on the logarithm.
pub(super) fn yarn_attention(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        return 1.0;
    }
    0.1 * mscale * factor.ln() + 1.0
}

fn divide(plain: impl Iterator<Item = f64>, divisors: &[f32]) -> Vec<f64> {
    plain
        .zip(divisors)
        .map(|(f, &d)| f / f64::from(d))
        .collect()
}

/// Llama 3.1's blend for one frequency.
fn llama3(freq: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = std::f64::consts::TAU / freq;
    if wavelength < original / high {
        return freq;
    }
    if wavelength > original / low {
        return freq / factor;
    }
    let kept = (original / wavelength - low) / (high - low);
    (1.0 - kept) * freq / factor + kept * freq
}
