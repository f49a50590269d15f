//! What a model is: sizes, rotary embedding, variant switches.
//!
//! One flat description for every supported architecture, read from `config.json` (`hf`) or GGUF
//! metadata (`gguf`). A back end looks at the switches (`qkv_bias`, `qk_norm`, `moe`, `window`), not at
//! [`Architecture`], which is there for messages. All sizes are checked on construction: nonzero, at
//! most [`MAX_SIZE`], and consistent with one another.
//!
//! Every layer is: RMS norm, attention scaled by `head_dim^-0.5`, residual, RMS norm, SwiGLU (dense or
//! mixture of experts), residual.

pub(crate) mod gguf;
mod gguf_rope;
pub(crate) mod hf;
mod hf_rope;
mod rope;

use std::path::Path;

pub use rope::{Pairing, RopeConfig, RopeFrequencies, RopeScaling};

use crate::Dtype;
use crate::error::LoadError;

/// Upper bound on any single size in a config, so that products of two fit in 64 bits with room.
pub const MAX_SIZE: usize = 1 << 24;

/// Upper bound on layers, and on experts of a layer.
pub const MAX_COUNT: usize = 4096;

/// Upper bound on the elements of one matrix.
pub const MAX_ELEMENTS: usize = 1 << 32;

/// The model families Izar runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 2, 3, 3.1 and models of the same shape.
    Llama,
    /// Qwen2, Qwen2.5, QwQ: Llama with biases on q, k and v.
    Qwen2,
    /// Qwen3 dense: RMS norm on each query and key head.
    Qwen3,
    /// Qwen3 mixture of experts.
    Qwen3Moe,
    /// Phi-3 and Phi-4: fused projections in the file, partial or long rotary embedding.
    Phi3,
}

impl Architecture {
    /// Every architecture, in the order messages list them.
    pub const ALL: [Architecture; 5] = [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
        Architecture::Qwen3Moe,
        Architecture::Phi3,
    ];

    /// The class name `config.json` lists under `architectures`.
    pub const fn hf_class(self) -> &'static str {
        match self {
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
            Architecture::Qwen3Moe => "Qwen3MoeForCausalLM",
            Architecture::Phi3 => "Phi3ForCausalLM",
        }
    }

    /// The `model_type` of `config.json`.
    pub const fn hf_model_type(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
            Architecture::Qwen3Moe => "qwen3_moe",
            Architecture::Phi3 => "phi3",
        }
    }

    /// The `general.architecture` of a GGUF file.
    pub const fn gguf_name(self) -> &'static str {
        match self {
            Architecture::Qwen3Moe => "qwen3moe",
            other => other.hf_model_type(),
        }
    }
}

/// The mixture-of-experts part of a model. Routing is softmax over all experts, then the top
/// `num_experts_per_tok`, renormalised to sum to 1 if `norm_topk_prob`.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// Experts per MoE layer.
    pub num_experts: usize,
    /// Experts a token visits.
    pub num_experts_per_tok: usize,
    /// Inner width of an expert.
    pub moe_intermediate_size: usize,
    /// Whether the chosen experts' weights are rescaled to sum to 1.
    pub norm_topk_prob: bool,
    /// Per layer: mixture of experts (`true`) or an ordinary dense feed-forward of `intermediate_size`.
    pub moe_layers: Vec<bool>,
}

/// A model's shape. See the module documentation for what is guaranteed.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family, for messages.
    pub architecture: Architecture,
    /// Rows of the token embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Inner width of a dense feed-forward.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head; not always `hidden_size / num_heads`.
    pub head_dim: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Context length the file states; see [`ModelConfig::max_model_len`].
    pub max_position_embeddings: usize,
    /// Whether the head is the token embedding.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether query and key heads are RMS-normalised before rotation.
    pub qk_norm: bool,
    /// Tokens a sliding layer sees, itself included; see [`ModelConfig::window`].
    pub sliding_window: Option<usize>,
    /// Per layer: whether `sliding_window` applies. All false without one.
    pub sliding_layers: Vec<bool>,
    /// Mixture of experts, if any layer has one.
    pub moe: Option<MoeConfig>,
    /// Ids that end generation: those of `generation_config.json` if it names any, else the model's.
    pub eos_token_ids: Vec<u32>,
    /// Id that starts a text, if the model has one.
    pub bos_token_id: Option<u32>,
    /// Type of the weights as declared by the file (most of them, for GGUF).
    pub dtype: Dtype,
}

impl ModelConfig {
    /// Reads the config of a model directory without looking at its weights.
    ///
    /// # Errors
    /// `config.json` is missing, or not one of a model that can be run.
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        hf::read(dir).map(|(config, _)| config)
    }

    /// The window of `layer`: query position `i` sees key positions `j` with `j <= i` and `i - j < window`.
    ///
    /// # Panics
    /// If `layer >= num_layers`.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|_| self.sliding_layers[layer])
    }

    /// The mixture of experts of `layer`; `None` if its feed-forward is dense.
    ///
    /// # Panics
    /// If `layer >= num_layers`.
    pub fn layer_moe(&self, layer: usize) -> Option<&MoeConfig> {
        assert!(
            layer < self.num_layers,
            "layer {layer} of {}",
            self.num_layers
        );
        self.moe.as_ref().filter(|moe| moe.moe_layers[layer])
    }

    /// Query features: `num_heads * head_dim`.
    pub fn q_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Key (or value) features: `num_kv_heads * head_dim`.
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// The longest context the weights are meant for, tokens: the stated length, stretched where a linear or
    /// YaRN scaling says so (those files keep the length from before the stretch).
    pub fn max_model_len(&self) -> usize {
        let stretched = match &self.rope.scaling {
            RopeScaling::Linear { factor } => self.max_position_embeddings as f64 * factor,
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings,
                ..
            } => *original_max_position_embeddings as f64 * factor,
            _ => 0.0,
        };
        self.max_position_embeddings.max(stretched as usize)
    }
}

/// Two sizes that cannot both be right, by the key to blame in either kind of file.
pub(crate) struct Inconsistency {
    pub(crate) hf_key: &'static str,
    pub(crate) gguf_key: &'static str,
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl ModelConfig {
    /// The first way in which the sizes contradict one another.
    pub(crate) fn inconsistency(&self) -> Option<Inconsistency> {
        let wrong = |hf_key, gguf_key, expected: String, found: usize| {
            let found = found.to_string();
            Some(Inconsistency {
                hf_key,
                gguf_key,
                expected,
                found,
            })
        };
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let expected = format!("a divisor of the {} heads", self.num_heads);
            return wrong(
                "num_key_value_heads",
                "attention.head_count_kv",
                expected,
                self.num_kv_heads,
            );
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return wrong(
                "head_dim",
                "attention.key_length",
                "an even number".into(),
                self.head_dim,
            );
        }
        if self.num_layers > MAX_COUNT {
            let expected = format!("at most {MAX_COUNT}");
            return wrong(
                "num_hidden_layers",
                "block_count",
                expected,
                self.num_layers,
            );
        }
        let moe_inner = self.moe.as_ref().map_or(0, |moe| moe.moe_intermediate_size);
        let widest = [
            (self.vocab_size, "vocab_size", "vocab_size"),
            (self.q_size(), "num_attention_heads", "attention.head_count"),
            (
                self.intermediate_size,
                "intermediate_size",
                "feed_forward_length",
            ),
            (
                moe_inner,
                "moe_intermediate_size",
                "expert_feed_forward_length",
            ),
        ];
        for (features, hf_key, gguf_key) in widest {
            if features.saturating_mul(self.hidden_size) > MAX_ELEMENTS {
                let expected = format!("at most {MAX_ELEMENTS} elements in a matrix");
                return wrong(hf_key, gguf_key, expected, features * self.hidden_size);
            }
        }
        let moe = self.moe.as_ref()?;
        if moe.num_experts > MAX_COUNT {
            return wrong(
                "num_experts",
                "expert_count",
                format!("at most {MAX_COUNT}"),
                moe.num_experts,
            );
        }
        if moe.num_experts_per_tok > moe.num_experts {
            let expected = format!("at most the {} experts", moe.num_experts);
            return wrong(
                "num_experts_per_tok",
                "expert_used_count",
                expected,
                moe.num_experts_per_tok,
            );
        }
        None
    }
}

/// Defaults for sampling that a checkpoint recommends (`generation_config.json`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Ids that end generation.
    pub eos_token_ids: Vec<u32>,
    /// Id that starts a text.
    pub bos_token_id: Option<u32>,
    /// Whether sampling is on by default; greedy if `Some(false)`.
    pub do_sample: Option<bool>,
    /// Softmax temperature.
    pub temperature: Option<f32>,
    /// Nucleus mass.
    pub top_p: Option<f32>,
    /// Candidates kept.
    pub top_k: Option<u32>,
    /// Least probability relative to the best.
    pub min_p: Option<f32>,
    /// Multiplicative penalty on repeats.
    pub repetition_penalty: Option<f32>,
}
