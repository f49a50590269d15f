//! The config in a GGUF file's metadata.

use super::{Architecture, GenerationConfig, MAX_SIZE, ModelConfig, MoeConfig};
use crate::Dtype;
use crate::error::LoadError;
use crate::gguf::{Gguf, Value};
use crate::table::{Stored, TensorTable};

/// Metadata keys under the architecture's prefix, and the tensors some of the config hides in.
pub(super) struct Keys<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) table: &'a TensorTable,
    pub(super) architecture: Architecture,
}

/// Reads the config.
pub(crate) fn read(
    gguf: &Gguf,
    table: &TensorTable,
) -> Result<(ModelConfig, GenerationConfig), LoadError> {
    refuse_split(gguf)?;
    let architecture = architecture(gguf)?;
    let keys = Keys {
        gguf,
        table,
        architecture,
    };
    let config = keys.model_config()?;
    let generation = GenerationConfig {
        eos_token_ids: config.eos_token_ids.clone(),
        bos_token_id: config.bos_token_id,
        ..GenerationConfig::default()
    };
    Ok((config, generation))
}

fn refuse_split(gguf: &Gguf) -> Result<(), LoadError> {
    match gguf.u64("split.count")? {
        None | Some(0 | 1) => Ok(()),
        Some(parts) => Err(gguf.refuse(
            "split.count",
            "a whole model in one file (merge the parts)",
            parts.to_string(),
        )),
    }
}

fn architecture(gguf: &Gguf) -> Result<Architecture, LoadError> {
    let name = gguf.str("general.architecture")?;
    let known = Architecture::ALL
        .into_iter()
        .find(|a| name == Some(a.gguf_name()));
    known.ok_or_else(|| LoadError::UnknownArchitecture {
        file: gguf.file().into(),
        expected: Architecture::ALL.map(Architecture::gguf_name).join(", "),
        found: name.map_or_else(|| "none".into(), |name| format!("{name:?}")),
    })
}

impl Keys<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.gguf_name())
    }

    fn model_config(&self) -> Result<ModelConfig, LoadError> {
        let num_layers = self.size("block_count")?;
        let hidden_size = self.size("embedding_length")?;
        let num_heads = self.size("attention.head_count")?;
        let head_dim = self
            .opt_size("attention.key_length")?
            .unwrap_or(hidden_size / num_heads);
        let max_position_embeddings = self.size("context_length")?;
        let sliding_window = self.sliding_window()?;
        let config = ModelConfig {
            architecture: self.architecture,
            vocab_size: self.vocab_size()?,
            hidden_size,
            intermediate_size: self.size("feed_forward_length")?,
            num_layers,
            num_heads,
            num_kv_heads: self
                .opt_size("attention.head_count_kv")?
                .unwrap_or(num_heads),
            head_dim,
            rms_norm_eps: self.epsilon()?,
            rope: self.rope(head_dim, max_position_embeddings)?,
            max_position_embeddings,
            tie_word_embeddings: !self.table.contains("output.weight"),
            qkv_bias: self.architecture == Architecture::Qwen2,
            qk_norm: matches!(
                self.architecture,
                Architecture::Qwen3 | Architecture::Qwen3Moe
            ),
            sliding_window,
            sliding_layers: vec![sliding_window.is_some(); num_layers],
            moe: self.moe(num_layers)?,
            eos_token_ids: self.eos_token_ids()?,
            bos_token_id: self.token_id("tokenizer.ggml.bos_token_id")?,
            dtype: self.dtype(),
        };
        let value_length = self.opt_size("attention.value_length")?.unwrap_or(head_dim);
        if value_length != head_dim {
            let key = self.key("attention.value_length");
            return Err(self.gguf.refuse(
                &key,
                format!("{head_dim}, the key length"),
                value_length.to_string(),
            ));
        }
        match config.inconsistency() {
            None => Ok(config),
            Some(wrong) => {
                Err(self
                    .gguf
                    .refuse(&self.key(wrong.gguf_key), wrong.expected, wrong.found))
            }
        }
    }

    fn size(&self, name: &str) -> Result<usize, LoadError> {
        let missing = || {
            self.gguf
                .refuse(&self.key(name), "a positive integer", "no such key")
        };
        self.opt_size(name)?.ok_or_else(missing)
    }

    /// A size; one per layer will do if all are equal.
    pub(super) fn opt_size(&self, name: &str) -> Result<Option<usize>, LoadError> {
        let key = self.key(name);
        let value = match self.gguf.get(&key) {
            Some(Value::Array(_)) => {
                let list = self.gguf.ints(&key)?.unwrap_or_default();
                match list.as_slice() {
                    [first, rest @ ..] if rest.iter().all(|v| v == first) => {
                        u64::try_from(*first).ok()
                    }
                    _ => {
                        return Err(self.gguf.refuse(
                            &key,
                            "the same value for every layer",
                            "several",
                        ));
                    }
                }
            }
            _ => self.gguf.u64(&key)?,
        };
        match value.map(usize::try_from) {
            None => Ok(None),
            Some(Ok(size @ 1..=MAX_SIZE)) => Ok(Some(size)),
            Some(_) => {
                let found = value.unwrap_or_default().to_string();
                Err(self
                    .gguf
                    .refuse(&key, format!("an integer of 1 to {MAX_SIZE}"), found))
            }
        }
    }

    /// A finite number above zero.
    pub(super) fn positive(&self, name: &str) -> Result<Option<f64>, LoadError> {
        let key = self.key(name);
        match self.gguf.f64(&key)? {
            Some(v) if !(v.is_finite() && v > 0.0) => {
                Err(self
                    .gguf
                    .refuse(&key, "a finite number above 0", v.to_string()))
            }
            other => Ok(other),
        }
    }

    fn epsilon(&self) -> Result<f32, LoadError> {
        let name = "attention.layer_norm_rms_epsilon";
        match self.positive(name)? {
            Some(eps) if eps < 1.0 => Ok(eps as f32),
            other => {
                let found = other.map_or_else(|| "no such key".into(), |eps| eps.to_string());
                Err(self
                    .gguf
                    .refuse(&self.key(name), "a number above 0 and below 1", found))
            }
        }
    }

    /// Stated, or else the number of tokens, or else the rows of the embedding.
    fn vocab_size(&self) -> Result<usize, LoadError> {
        if let Some(stated) = self.opt_size("vocab_size")? {
            return Ok(stated);
        }
        let tokens = self
            .gguf
            .strings("tokenizer.ggml.tokens")?
            .map(<[String]>::len);
        let embedding = || {
            self.table
                .iter()
                .find(|(_, t)| t.name == "token_embd.weight")
        };
        let rows = || embedding().and_then(|(_, t)| t.shape.first().copied());
        match tokens.or_else(rows) {
            Some(size @ 1..=MAX_SIZE) => Ok(size),
            other => {
                let found = other.map_or_else(|| "no such key".into(), |n| n.to_string());
                Err(self.gguf.refuse(
                    &self.key("vocab_size"),
                    format!("an integer of 1 to {MAX_SIZE}"),
                    found,
                ))
            }
        }
    }

    fn sliding_window(&self) -> Result<Option<usize>, LoadError> {
        let key = self.key("attention.sliding_window");
        match self.gguf.u64(&key)? {
            None | Some(0) => Ok(None),
            Some(_) if self.architecture == Architecture::Phi3 => {
                self.opt_size("attention.sliding_window")
            }
            Some(window) => {
                Err(self
                    .gguf
                    .refuse(&key, "no window in this architecture", window.to_string()))
            }
        }
    }

    fn moe(&self, num_layers: usize) -> Result<Option<MoeConfig>, LoadError> {
        let count_key = self.key("expert_count");
        if self.architecture != Architecture::Qwen3Moe {
            return match self.gguf.u64(&count_key)? {
                None | Some(0) => Ok(None),
                Some(count) => Err(self.gguf.refuse(
                    &count_key,
                    "no experts in this architecture",
                    count.to_string(),
                )),
            };
        }
        for (name, only) in [("expert_gating_func", 1.0), ("expert_weights_scale", 1.0)] {
            match self.gguf.f64(&self.key(name))? {
                Some(other) if other != only && other != 0.0 => {
                    return Err(self.gguf.refuse(
                        &self.key(name),
                        only.to_string(),
                        other.to_string(),
                    ));
                }
                _ => {}
            }
        }
        Ok(Some(MoeConfig {
            num_experts: self.size("expert_count")?,
            num_experts_per_tok: self.size("expert_used_count")?,
            moe_intermediate_size: self.size("expert_feed_forward_length")?,
            norm_topk_prob: self
                .gguf
                .bool(&self.key("expert_weights_norm"))?
                .unwrap_or(true),
            moe_layers: vec![true; num_layers],
        }))
    }

    fn token_id(&self, key: &str) -> Result<Option<u32>, LoadError> {
        match self.gguf.u64(key)?.map(u32::try_from) {
            None | Some(Ok(u32::MAX)) => Ok(None), // -1 in a u32: "none"
            Some(Ok(id)) => Ok(Some(id)),
            Some(Err(_)) => Err(self
                .gguf
                .refuse(key, "a token id", "a number beyond 32 bits")),
        }
    }

    fn eos_token_ids(&self) -> Result<Vec<u32>, LoadError> {
        let mut ids = Vec::new();
        for name in ["eos", "eot", "eom"] {
            let id = self.token_id(&format!("tokenizer.ggml.{name}_token_id"))?;
            ids.extend(id.filter(|id| !ids.contains(id)));
        }
        Ok(ids)
    }

    /// The type that holds most of the bytes.
    fn dtype(&self) -> Dtype {
        let bytes_of = |dtype: &Dtype| -> u64 {
            let of_type = |stored: &Stored| matches!(stored, Stored::Known(d) if d == dtype);
            self.table
                .iter()
                .filter(|(_, t)| of_type(&t.stored))
                .map(|(_, t)| t.num_bytes)
                .sum()
        };
        Dtype::ALL
            .into_iter()
            .max_by_key(bytes_of)
            .unwrap_or(Dtype::F32)
    }
}
