//! Which tensor, and which rows of it, holds a parameter.

use std::ops::Range;

use crate::config::{Architecture, ModelConfig};
use crate::param::{LayerParam, Param};
use crate::table::Source;

/// Who named the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// transformers.
    HuggingFace,
    /// llama.cpp.
    Gguf,
}

impl Naming {
    /// Where a parameter lies; `None` if a model of this shape does not have it.
    pub(crate) fn source(self, config: &ModelConfig, param: Param) -> Option<Source> {
        let [rows, cols] = param.shape(config)?;
        let tensor = self.tensor(config.architecture, param);
        let (shape, rows) = match part_of_larger(self, config, param) {
            Some((outer, rows)) => (outer.into_iter().chain([cols]).collect(), rows),
            None if is_vector(param) => (vec![cols], 0..1),
            None => (vec![rows, cols], 0..rows),
        };
        Some(Source {
            tensor,
            shape,
            rows,
        })
    }

    fn tensor(self, architecture: Architecture, param: Param) -> String {
        let fused = architecture == Architecture::Phi3;
        match (self, param) {
            (Naming::HuggingFace, Param::TokenEmbedding) => "model.embed_tokens.weight".into(),
            (Naming::HuggingFace, Param::FinalNorm) => "model.norm.weight".into(),
            (Naming::HuggingFace, Param::LmHead) => "lm_head.weight".into(),
            (Naming::HuggingFace, Param::Layer(layer, param)) => {
                format!("model.layers.{layer}.{}", hf_layer(fused, param))
            }
            (Naming::Gguf, Param::TokenEmbedding) => "token_embd.weight".into(),
            (Naming::Gguf, Param::FinalNorm) => "output_norm.weight".into(),
            (Naming::Gguf, Param::LmHead) => "output.weight".into(),
            (Naming::Gguf, Param::Layer(layer, param)) => {
                format!("blk.{layer}.{}", gguf_layer(fused, param))
            }
        }
    }

    /// Whether a tensor may be there without being a parameter: it repeats what the config says.
    pub(crate) fn is_redundant(self, config: &ModelConfig, tensor: &str) -> bool {
        match self {
            Naming::HuggingFace => {
                tensor.ends_with("rotary_emb.inv_freq")
                    || (config.tie_word_embeddings && tensor == "lm_head.weight")
            }
            Naming::Gguf => matches!(
                tensor,
                "rope_freqs.weight" | "rope_factors_short.weight" | "rope_factors_long.weight"
            ),
        }
    }
}

fn is_vector(param: Param) -> bool {
    use LayerParam::{AttnNorm, Bk, Bq, Bv, FfnNorm, KNorm, QNorm};
    matches!(
        param,
        Param::FinalNorm | Param::Layer(_, AttnNorm | FfnNorm | QNorm | KNorm | Bq | Bk | Bv)
    )
}

/// For a parameter cut out of a larger tensor: that tensor's dimensions but the last, and the rows.
fn part_of_larger(
    naming: Naming,
    config: &ModelConfig,
    param: Param,
) -> Option<(Vec<usize>, Range<usize>)> {
    use LayerParam::*;
    let Param::Layer(layer, param) = param else {
        return None;
    };
    let (q, kv, inner) = (config.q_size(), config.kv_size(), config.intermediate_size);
    if config.architecture == Architecture::Phi3 {
        return match param {
            Wq => Some((vec![q + 2 * kv], 0..q)),
            Wk => Some((vec![q + 2 * kv], q..q + kv)),
            Wv => Some((vec![q + 2 * kv], q + kv..q + 2 * kv)),
            WGate => Some((vec![2 * inner], 0..inner)),
            WUp => Some((vec![2 * inner], inner..2 * inner)),
            _ => None,
        };
    }
    let moe = config.layer_moe(layer).filter(|_| naming == Naming::Gguf)?;
    let stacked = |expert: usize, rows: usize| {
        Some((
            vec![moe.num_experts, rows],
            expert * rows..(expert + 1) * rows,
        ))
    };
    match param {
        ExpertGate(expert) | ExpertUp(expert) => stacked(expert, moe.moe_intermediate_size),
        ExpertDown(expert) => stacked(expert, config.hidden_size),
        _ => None,
    }
}

fn hf_layer(fused: bool, param: LayerParam) -> String {
    use LayerParam::*;
    let name = match param {
        AttnNorm => "input_layernorm.weight",
        Wq | Wk | Wv if fused => "self_attn.qkv_proj.weight",
        Wq => "self_attn.q_proj.weight",
        Wk => "self_attn.k_proj.weight",
        Wv => "self_attn.v_proj.weight",
        Wo => "self_attn.o_proj.weight",
        Bq => "self_attn.q_proj.bias",
        Bk => "self_attn.k_proj.bias",
        Bv => "self_attn.v_proj.bias",
        QNorm => "self_attn.q_norm.weight",
        KNorm => "self_attn.k_norm.weight",
        FfnNorm => "post_attention_layernorm.weight",
        WGate | WUp if fused => "mlp.gate_up_proj.weight",
        WGate => "mlp.gate_proj.weight",
        WUp => "mlp.up_proj.weight",
        WDown => "mlp.down_proj.weight",
        Router => "mlp.gate.weight",
        ExpertGate(expert) => return format!("mlp.experts.{expert}.gate_proj.weight"),
        ExpertUp(expert) => return format!("mlp.experts.{expert}.up_proj.weight"),
        ExpertDown(expert) => return format!("mlp.experts.{expert}.down_proj.weight"),
    };
    name.into()
}

fn gguf_layer(fused: bool, param: LayerParam) -> &'static str {
    use LayerParam::*;
    match param {
        AttnNorm => "attn_norm.weight",
        Wq | Wk | Wv if fused => "attn_qkv.weight",
        Wq => "attn_q.weight",
        Wk => "attn_k.weight",
        Wv => "attn_v.weight",
        Wo => "attn_output.weight",
        Bq => "attn_q.bias",
        Bk => "attn_k.bias",
        Bv => "attn_v.bias",
        QNorm => "attn_q_norm.weight",
        KNorm => "attn_k_norm.weight",
        FfnNorm => "ffn_norm.weight",
        WGate | WUp if fused => "ffn_up.weight",
        WGate => "ffn_gate.weight",
        WUp => "ffn_up.weight",
        WDown => "ffn_down.weight",
        Router => "ffn_gate_inp.weight",
        ExpertGate(_) => "ffn_gate_exps.weight",
        ExpertUp(_) => "ffn_up_exps.weight",
        ExpertDown(_) => "ffn_down_exps.weight",
    }
}
