//! Rotary embedding parameters of `config.json`.

use super::Architecture;
use super::hf::opt_size;
use super::rope::{Pairing, RopeConfig, RopeScaling, longrope_attention, yarn_attention};
use crate::error::LoadError;
use crate::json::Object;

const DEFAULT_THETA: f64 = 10_000.0;
const KINDS: &str = "default, linear, llama3, yarn, longrope";

/// The keys in play: those of the whole config and those of its rope object.
struct Keys<'a> {
    root: Object<'a>,
    rope: Option<Object<'a>>,
    architecture: Architecture,
    max_position_embeddings: usize,
}

/// Reads the rope parameters for heads of `head_dim`.
pub(super) fn rope(
    root: Object<'_>,
    architecture: Architecture,
    head_dim: usize,
    max_position_embeddings: usize,
) -> Result<RopeConfig, LoadError> {
    let rope = match root
        .opt_object("rope_scaling")?
        .filter(|rope| rope.keys().next().is_some())
    {
        Some(old) => Some(old),
        None => root.opt_object("rope_parameters")?,
    };
    let keys = Keys {
        root,
        rope,
        architecture,
        max_position_embeddings,
    };
    let theta = keys.positive("rope_theta")?.unwrap_or(DEFAULT_THETA);
    if theta <= 1.0 {
        return Err(keys.refuse("rope_theta", "a number above 1", theta.to_string()));
    }
    let rotary_dim = keys.rotary_dim(head_dim)?;
    let scaling = keys.scaling(rotary_dim)?;
    Ok(RopeConfig {
        theta,
        rotary_dim,
        scaling,
        pairing: Pairing::Neox,
    })
}

impl<'a> Keys<'a> {
    /// The object that holds a key, the rope object first.
    fn holder(&self, key: &str) -> Object<'a> {
        self.rope
            .filter(|rope| rope.get(key).is_some())
            .unwrap_or(self.root)
    }

    fn refuse(&self, key: &str, expected: &str, found: impl Into<String>) -> LoadError {
        self.holder(key).refuse(key, expected, found)
    }

    /// A finite number above zero, from the rope object or else the config.
    fn positive(&self, key: &str) -> Result<Option<f64>, LoadError> {
        match self.holder(key).opt_f64(key)? {
            Some(v) if !(v.is_finite() && v > 0.0) => {
                Err(self.refuse(key, "a finite number above 0", v.to_string()))
            }
            other => Ok(other),
        }
    }

    fn required(&self, key: &str) -> Result<f64, LoadError> {
        let missing = || {
            self.rope
                .unwrap_or(self.root)
                .missing(key, "a number above 0")
        };
        self.positive(key)?.ok_or_else(missing)
    }

    fn rotary_dim(&self, head_dim: usize) -> Result<usize, LoadError> {
        let key = "partial_rotary_factor";
        let part = self.positive(key)?.unwrap_or(1.0);
        if part != 1.0 && self.architecture != Architecture::Phi3 {
            return Err(self.refuse(key, "1 (only Phi-3 turns part of a head)", part.to_string()));
        }
        let rotary_dim = (head_dim as f64 * part) as usize;
        if part > 1.0 || rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
            let found = format!("{part} of head_dim {head_dim}");
            return Err(self.refuse(key, "an even, nonzero part of a head", found));
        }
        Ok(rotary_dim)
    }

    fn kind(&self) -> Result<&'a str, LoadError> {
        let Some(rope) = self.rope else {
            return Ok("default");
        };
        let kind = match rope.opt_str("rope_type")? {
            Some(kind) => kind,
            None => rope.opt_str("type")?.unwrap_or("default"),
        };
        let nested = ["full_attention", "sliding_attention"]
            .into_iter()
            .find(|key| rope.get(key).is_some());
        let found = match nested {
            Some(_) => "one set per layer type".into(),
            None if rope.get("mrope_section").is_some() => "\"mrope\"".into(),
            None => return Ok(kind),
        };
        Err(self.unsupported(found))
    }

    fn unsupported(&self, found: String) -> LoadError {
        LoadError::UnsupportedRope {
            file: self.root.file().into(),
            expected: KINDS.into(),
            found,
        }
    }

    fn scaling(&self, rotary_dim: usize) -> Result<RopeScaling, LoadError> {
        let phi3 = self.architecture == Architecture::Phi3;
        match self.kind()? {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear {
                factor: self.required("factor")?,
            }),
            "llama3" => self.llama3(),
            "longrope" | "su" => self.longrope(rotary_dim),
            "yarn" if phi3 => self.longrope(rotary_dim), // early Phi-3 files call it so
            "yarn" => self.yarn(),
            other => Err(self.unsupported(format!("{other:?}"))),
        }
    }

    /// As transformers: a top-level key wins, then the rope object's, then the default.
    fn original_context(&self) -> Result<usize, LoadError> {
        let key = "original_max_position_embeddings";
        let stated = match (opt_size(self.root, key)?, self.rope) {
            (None, Some(rope)) => opt_size(rope, key)?,
            (stated, _) => stated,
        };
        Ok(stated.unwrap_or(match self.architecture {
            Architecture::Phi3 => 4096,
            _ => self.max_position_embeddings,
        }))
    }

    /// The stretch of a rope whose `factor` may be left out.
    fn stretch(&self, original: usize) -> Result<f64, LoadError> {
        let implied = self.max_position_embeddings as f64 / original as f64;
        Ok(self.positive("factor")?.unwrap_or(implied))
    }

    fn llama3(&self) -> Result<RopeScaling, LoadError> {
        let low_freq_factor = self.required("low_freq_factor")?;
        let high_freq_factor = self.required("high_freq_factor")?;
        if high_freq_factor <= low_freq_factor {
            let expected = format!("a number above low_freq_factor {low_freq_factor}");
            return Err(self.refuse("high_freq_factor", &expected, high_freq_factor.to_string()));
        }
        Ok(RopeScaling::Llama3 {
            factor: self.required("factor")?,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: self.original_context()?,
        })
    }

    fn longrope(&self, rotary_dim: usize) -> Result<RopeScaling, LoadError> {
        let original = self.original_context()?;
        let attention_factor = match self.positive("attention_factor")? {
            Some(stated) => stated,
            None => longrope_attention(self.stretch(original)?, original),
        };
        Ok(RopeScaling::LongRope {
            short_factor: self.divisors("short_factor", rotary_dim / 2)?,
            long_factor: self.divisors("long_factor", rotary_dim / 2)?,
            original_max_position_embeddings: original,
            attention_factor,
        })
    }

    fn divisors(&self, key: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let expected = format!("a list of {len} numbers above 0");
        let rope = self.rope.unwrap_or(self.root);
        let list = rope
            .opt_f64s(key)?
            .ok_or_else(|| rope.missing(key, &expected))?;
        if list.len() != len {
            return Err(rope.refuse(key, expected, format!("a list of {}", list.len())));
        }
        let list: Vec<f32> = list.into_iter().map(|v| v as f32).collect();
        match list.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
            None => Ok(list),
            Some(bad) => Err(rope.refuse(key, expected, bad.to_string())),
        }
    }

    fn yarn(&self) -> Result<RopeScaling, LoadError> {
        let original = self.original_context()?;
        let factor = self.stretch(original)?;
        let attention_factor = match (
            self.positive("attention_factor")?,
            self.positive("mscale")?,
            self.positive("mscale_all_dim")?,
        ) {
            (Some(stated), _, _) => stated,
            (None, Some(mscale), Some(all)) => {
                yarn_attention(factor, mscale) / yarn_attention(factor, all)
            }
            _ => yarn_attention(factor, 1.0),
        };
        Ok(RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast: self.positive("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.positive("beta_slow")?.unwrap_or(1.0),
            truncate: self
                .holder("truncate")
                .opt_bool("truncate")?
                .unwrap_or(true),
            attention_factor,
        })
    }
}
