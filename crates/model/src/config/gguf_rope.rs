//! The rotary embedding in a GGUF file: metadata, and tensors of frequency divisors.

use super::gguf::Keys;
use super::rope::{longrope_attention, yarn_attention};
use super::{Architecture, Pairing, RopeConfig, RopeScaling};
use crate::error::LoadError;
use crate::table::Source;

const KINDS: &str = "none, linear, yarn, longrope";

impl Keys<'_> {
    /// Reads the rotary embedding of heads of `head_dim`.
    pub(super) fn rope(
        &self,
        head_dim: usize,
        max_position_embeddings: usize,
    ) -> Result<RopeConfig, LoadError> {
        let theta = self.positive("rope.freq_base")?.unwrap_or(10_000.0);
        if theta <= 1.0 {
            return Err(self.gguf.refuse(
                &self.key("rope.freq_base"),
                "a number above 1",
                theta.to_string(),
            ));
        }
        let rotary_dim = self.opt_size("rope.dimension_count")?.unwrap_or(head_dim);
        if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
            let expected = format!("an even number up to the head's {head_dim}");
            return Err(self.gguf.refuse(
                &self.key("rope.dimension_count"),
                expected,
                rotary_dim.to_string(),
            ));
        }
        let pairing = match self.architecture {
            Architecture::Llama => Pairing::Interleaved,
            _ => Pairing::Neox,
        };
        let scaling = self.rope_scaling(rotary_dim, max_position_embeddings)?;
        Ok(RopeConfig {
            theta,
            rotary_dim,
            scaling,
            pairing,
        })
    }

    fn rope_scaling(&self, rotary_dim: usize, context: usize) -> Result<RopeScaling, LoadError> {
        let kind = self
            .gguf
            .str(&self.key("rope.scaling.type"))?
            .unwrap_or("none");
        let divisors = self.divisors("rope_freqs.weight", rotary_dim)?;
        let short_factor = self.divisors("rope_factors_short.weight", rotary_dim)?;
        let long_factor = self.divisors("rope_factors_long.weight", rotary_dim)?;
        let original = self
            .opt_size("rope.scaling.original_context_length")?
            .unwrap_or(context);
        match (kind, divisors, short_factor, long_factor) {
            ("none", None, None, None) => self.legacy_linear(),
            ("none", Some(divisors), None, None) => Ok(RopeScaling::Divisors(divisors)),
            ("none" | "longrope", None, Some(short_factor), Some(long_factor)) => {
                let stretch = context as f64 / original as f64;
                let stated = self.positive("rope.scaling.attn_factor")?;
                Ok(RopeScaling::LongRope {
                    short_factor,
                    long_factor,
                    original_max_position_embeddings: original,
                    attention_factor: stated
                        .unwrap_or_else(|| longrope_attention(stretch, original)),
                })
            }
            ("linear", None, None, None) => Ok(RopeScaling::Linear {
                factor: self.stretch()?,
            }),
            ("yarn", None, None, None) => self.yarn(original),
            (kind, divisors, short, long) => {
                let with = divisors
                    .or(short)
                    .or(long)
                    .map_or("", |_| " with frequency tensors");
                Err(LoadError::UnsupportedRope {
                    file: self.gguf.file().into(),
                    expected: KINDS.into(),
                    found: format!("{kind:?}{with}"),
                })
            }
        }
    }

    /// Files from before `rope.scaling.type` state a linear stretch alone.
    fn legacy_linear(&self) -> Result<RopeScaling, LoadError> {
        match self.positive("rope.scale_linear")? {
            None | Some(1.0) => Ok(RopeScaling::None),
            Some(factor) => Ok(RopeScaling::Linear { factor }),
        }
    }

    fn stretch(&self) -> Result<f64, LoadError> {
        let name = "rope.scaling.factor";
        let missing = || {
            self.gguf
                .refuse(&self.key(name), "a number above 0", "no such key")
        };
        self.positive(name)?.ok_or_else(missing)
    }

    fn yarn(&self, original: usize) -> Result<RopeScaling, LoadError> {
        let factor = self.stretch()?;
        let temperature = self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        Ok(RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast: self
                .positive("rope.scaling.yarn_beta_fast")?
                .unwrap_or(32.0),
            beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            truncate: true,
            attention_factor: temperature * yarn_attention(factor, 1.0),
        })
    }

    /// A tensor of one divisor per rotating pair.
    fn divisors(&self, tensor: &str, rotary_dim: usize) -> Result<Option<Vec<f32>>, LoadError> {
        if !self.table.contains(tensor) {
            return Ok(None);
        }
        let source = Source {
            tensor: tensor.into(),
            shape: vec![rotary_dim / 2],
            rows: 0..1,
        };
        let divisors = self.table.view(&source)?.to_f32();
        match divisors.iter().find(|d| !(d.is_finite() && **d > 0.0)) {
            None => Ok(Some(divisors)),
            Some(bad) => Err(LoadError::Malformed {
                file: self.gguf.file().into(),
                what: format!("tensor {tensor:?}"),
                expected: "finite numbers above 0".into(),
                found: bad.to_string(),
            }),
        }
    }
}
