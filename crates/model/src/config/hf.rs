//! `config.json` and `generation_config.json` of a Hugging Face directory.
//!
//! Both spellings in use are read: `rope_parameters` and `dtype` (transformers 5), `rope_scaling`,
//! `rope_theta` and `torch_dtype` (before). Defaults are those of transformers; a switch that would change
//! the computation in a way Izar does not implement is refused rather than ignored.

use std::collections::HashSet;
use std::path::Path;

use super::hf_rope;
use super::{Architecture, GenerationConfig, MAX_SIZE, ModelConfig, MoeConfig};
use crate::Dtype;
use crate::error::LoadError;
use crate::json::{self, Object};

/// Reads the configs of a directory.
pub(crate) fn read(dir: &Path) -> Result<(ModelConfig, GenerationConfig), LoadError> {
    let generation = read_generation(&dir.join("generation_config.json"))?;
    let file = dir.join("config.json");
    let document = json::read(&file)?;
    let mut config = model_config(document.root())?;
    if !generation.eos_token_ids.is_empty() {
        config.eos_token_ids.clone_from(&generation.eos_token_ids);
    }
    Ok((config, generation))
}

fn read_generation(file: &Path) -> Result<GenerationConfig, LoadError> {
    if !file.exists() {
        return Ok(GenerationConfig::default());
    }
    let document = json::read(file)?;
    let root = document.root();
    let f32 = |key| Ok::<_, LoadError>(root.opt_f64(key)?.map(|v| v as f32));
    let top_k = root.opt_u64("top_k")?;
    Ok(GenerationConfig {
        eos_token_ids: root.token_ids("eos_token_id")?,
        bos_token_id: root.token_ids("bos_token_id")?.first().copied(),
        do_sample: root.opt_bool("do_sample")?,
        temperature: f32("temperature")?,
        top_p: f32("top_p")?,
        top_k: top_k.map(|k| u32::try_from(k).unwrap_or(u32::MAX)),
        min_p: f32("min_p")?,
        repetition_penalty: f32("repetition_penalty")?,
    })
}

fn model_config(root: Object<'_>) -> Result<ModelConfig, LoadError> {
    let architecture = architecture(root)?;
    refuse_unsupported(root)?;
    let num_layers = size(root, "num_hidden_layers")?;
    let hidden_size = size(root, "hidden_size")?;
    let num_heads = size(root, "num_attention_heads")?;
    let head_dim = match opt_size(root, "head_dim")? {
        Some(head_dim) => head_dim,
        None if architecture == Architecture::Qwen3 => 128,
        None => hidden_size / num_heads,
    };
    let max_position_embeddings = size(root, "max_position_embeddings")?;
    let (sliding_window, sliding_layers) = sliding(root, architecture, num_layers)?;
    let config = ModelConfig {
        architecture,
        vocab_size: size(root, "vocab_size")?,
        hidden_size,
        intermediate_size: size(root, "intermediate_size")?,
        num_layers,
        num_heads,
        num_kv_heads: opt_size(root, "num_key_value_heads")?.unwrap_or(num_heads),
        head_dim,
        rms_norm_eps: epsilon(root)?,
        rope: hf_rope::rope(root, architecture, head_dim, max_position_embeddings)?,
        max_position_embeddings,
        tie_word_embeddings: root.opt_bool("tie_word_embeddings")?.unwrap_or(false),
        qkv_bias: architecture == Architecture::Qwen2,
        qk_norm: matches!(architecture, Architecture::Qwen3 | Architecture::Qwen3Moe),
        sliding_window,
        sliding_layers,
        moe: moe(root, architecture, num_layers)?,
        eos_token_ids: root.token_ids("eos_token_id")?,
        bos_token_id: root.token_ids("bos_token_id")?.first().copied(),
        dtype: dtype(root)?,
    };
    match config.inconsistency() {
        None => Ok(config),
        Some(wrong) => Err(root.refuse(wrong.hf_key, wrong.expected, wrong.found)),
    }
}

fn architecture(root: Object<'_>) -> Result<Architecture, LoadError> {
    let class = root
        .opt_list("architectures")?
        .and_then(|list| list.first()?.as_str());
    let model_type = root.opt_str("model_type")?;
    let known = Architecture::ALL
        .into_iter()
        .find(|a| match (class, model_type) {
            (Some(class), _) => class == a.hf_class(),
            (None, model_type) => model_type == Some(a.hf_model_type()),
        });
    known.ok_or_else(|| LoadError::UnknownArchitecture {
        file: root.file().into(),
        expected: Architecture::ALL.map(Architecture::hf_class).join(", "),
        found: class
            .or(model_type)
            .map_or_else(|| "none".into(), |name| format!("{name:?}")),
    })
}

/// Refuses switches that change the computation in ways not implemented.
fn refuse_unsupported(root: Object<'_>) -> Result<(), LoadError> {
    if let Some(quantization) = root.opt_object("quantization_config")? {
        let method = quantization
            .opt_str("quant_method")?
            .unwrap_or("an unnamed method");
        return Err(LoadError::UnsupportedQuantization {
            file: root.file().into(),
            found: format!("{method:?}"),
        });
    }
    for key in [
        "attention_bias",
        "mlp_bias",
        "lm_head_bias",
        "use_mrope",
        "rope_interleaved",
    ] {
        if root.opt_bool(key)? == Some(true) {
            return Err(root.refuse(key, "false", "true"));
        }
    }
    match root.opt_str("hidden_act")? {
        None | Some("silu") => Ok(()),
        Some(other) => Err(root.refuse("hidden_act", "\"silu\"", format!("{other:?}"))),
    }
}

/// A required size, checked to be in `1..=MAX_SIZE`.
fn size(root: Object<'_>, key: &str) -> Result<usize, LoadError> {
    opt_size(root, key)?.ok_or_else(|| root.missing(key, "a positive integer"))
}

pub(super) fn opt_size(root: Object<'_>, key: &str) -> Result<Option<usize>, LoadError> {
    let Some(value) = root.opt_u64(key)? else {
        return Ok(None);
    };
    match usize::try_from(value) {
        Ok(size @ 1..=MAX_SIZE) => Ok(Some(size)),
        _ => Err(root.refuse(
            key,
            format!("an integer of 1 to {MAX_SIZE}"),
            value.to_string(),
        )),
    }
}

fn epsilon(root: Object<'_>) -> Result<f32, LoadError> {
    let expected = "a number above 0 and below 1";
    let eps = root
        .opt_f64("rms_norm_eps")?
        .ok_or_else(|| root.missing("rms_norm_eps", expected))?;
    if eps > 0.0 && eps < 1.0 {
        return Ok(eps as f32);
    }
    Err(root.refuse("rms_norm_eps", expected, eps.to_string()))
}

fn dtype(root: Object<'_>) -> Result<Dtype, LoadError> {
    let key = if root.get("dtype").is_some() {
        "dtype"
    } else {
        "torch_dtype"
    };
    match root.opt_str(key)? {
        None | Some("float32") => Ok(Dtype::F32),
        Some("float16") => Ok(Dtype::F16),
        Some("bfloat16") => Ok(Dtype::Bf16),
        Some(other) => Err(root.refuse(key, "float32, float16 or bfloat16", format!("{other:?}"))),
    }
}

/// The window and, per layer, whether it applies.
fn sliding(
    root: Object<'_>,
    architecture: Architecture,
    num_layers: usize,
) -> Result<(Option<usize>, Vec<bool>), LoadError> {
    let none = || (None, vec![false; num_layers]);
    let enabled = match architecture {
        Architecture::Llama => false,
        Architecture::Phi3 => true,
        _ => root.opt_bool("use_sliding_window")?.unwrap_or(false),
    };
    if !enabled {
        return Ok(none());
    }
    let Some(window) = opt_size(root, "sliding_window")? else {
        return Ok(none());
    };
    let layers = match architecture {
        Architecture::Qwen2 | Architecture::Qwen3 => sliding_layers(root, num_layers)?,
        _ => vec![true; num_layers],
    };
    Ok((Some(window), layers))
}

fn sliding_layers(root: Object<'_>, num_layers: usize) -> Result<Vec<bool>, LoadError> {
    let Some(types) = root.opt_list("layer_types")? else {
        let full = root.opt_u64("max_window_layers")?.unwrap_or(28);
        return Ok((0..num_layers as u64).map(|layer| layer >= full).collect());
    };
    if types.len() != num_layers {
        let expected = format!("one entry for each of {num_layers} layers");
        return Err(root.refuse("layer_types", expected, types.len().to_string()));
    }
    let sliding = |value: &serde_json::Value| match value.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => {
            let expected = "\"full_attention\" or \"sliding_attention\"";
            Err(root.refuse("layer_types", expected, json::describe(value)))
        }
    };
    types.iter().map(sliding).collect()
}

fn moe(
    root: Object<'_>,
    architecture: Architecture,
    num_layers: usize,
) -> Result<Option<MoeConfig>, LoadError> {
    if architecture != Architecture::Qwen3Moe {
        return Ok(None);
    }
    let experts_key = if root.get("num_experts").is_some() {
        "num_experts"
    } else {
        "num_local_experts"
    };
    let step = opt_size(root, "decoder_sparse_step")?.unwrap_or(1);
    let dense = dense_layers(root)?;
    let moe_layers: Vec<bool> = (0..num_layers)
        .map(|layer| !dense.contains(&(layer as u64)) && (layer + 1).is_multiple_of(step))
        .collect();
    if !moe_layers.contains(&true) {
        return Ok(None);
    }
    Ok(Some(MoeConfig {
        num_experts: size(root, experts_key)?,
        num_experts_per_tok: size(root, "num_experts_per_tok")?,
        moe_intermediate_size: size(root, "moe_intermediate_size")?,
        norm_topk_prob: root.opt_bool("norm_topk_prob")?.unwrap_or(false),
        moe_layers,
    }))
}

/// Layers that `mlp_only_layers` makes dense.
fn dense_layers(root: Object<'_>) -> Result<HashSet<u64>, LoadError> {
    let list = root.opt_list("mlp_only_layers")?.unwrap_or_default();
    let layer = |value: &serde_json::Value| {
        let wrong = || root.refuse("mlp_only_layers", "a list of layers", json::describe(value));
        value.as_u64().ok_or_else(wrong)
    };
    list.iter().map(layer).collect()
}
