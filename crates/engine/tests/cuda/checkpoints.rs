//! Tiny random checkpoints of every architecture, written as Hugging Face directories, with the heads that the
//! attention kernels take.
//!
//! Weights are scaled so that logits have a standard deviation of about 2 and attention is far from uniform: a missing bias,
//! norm, window or rope scaling moves logits by far more than bf16 does.

use half::bf16;
use izar_model::Checkpoint;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A checkpoint and the directory it is mapped from.
pub struct Tiny {
    pub checkpoint: Checkpoint,
    _directory: TempDir,
}

/// Every checkpoint there is: a name and its `config.json`.
pub fn all() -> Vec<(&'static str, Value)> {
    let shared = |model_type: &str, class: &str, own: Value| {
        let mut config = json!({
            "architectures": [class], "model_type": model_type, "vocab_size": 1000, "hidden_size": 256,
            "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "hidden_act": "silu", "bos_token_id": 1,
            "eos_token_id": 2, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "rope_theta": 10000.0,
        });
        let fields = config.as_object_mut().unwrap();
        fields.extend(own.as_object().unwrap().clone());
        config
    };
    let llama3 = json!({"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32});
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256});
    let factors = |slope: f64| {
        (0..48)
            .map(|i| 1.0 + slope * f64::from(i))
            .collect::<Vec<_>>()
    };
    let longrope =
        json!({"type": "longrope", "short_factor": factors(0.01), "long_factor": factors(0.1)});
    vec![
        (
            "llama, one head a KV head",
            shared(
                "llama",
                "LlamaForCausalLM",
                json!({"num_key_value_heads": 4}),
            ),
        ),
        (
            "llama 3.1, groups of 4, tied",
            shared(
                "llama",
                "LlamaForCausalLM",
                json!({"num_attention_heads": 8, "head_dim": 128, "tie_word_embeddings": true, "rope_scaling": llama3,
                    "rope_theta": 500.0, "vocab_size": 1003}),
            ),
        ),
        (
            "qwen2, groups of 7",
            shared(
                "qwen2",
                "Qwen2ForCausalLM",
                json!({"hidden_size": 896, "num_attention_heads": 14, "rms_norm_eps": 1e-6}),
            ),
        ),
        (
            "qwen2, window in the last layers",
            shared(
                "qwen2",
                "Qwen2ForCausalLM",
                json!({"use_sliding_window": true, "sliding_window": 20, "max_window_layers": 1,
                    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
            ),
        ),
        (
            "qwen3, head norms, tied",
            shared(
                "qwen3",
                "Qwen3ForCausalLM",
                json!({"head_dim": 128, "tie_word_embeddings": true, "rms_norm_eps": 1e-6}),
            ),
        ),
        (
            "qwen3, yarn",
            shared(
                "qwen3",
                "Qwen3ForCausalLM",
                json!({"head_dim": 64, "num_attention_heads": 16, "rope_scaling": yarn}),
            ),
        ),
        (
            "qwen3 moe, a dense layer between",
            shared(
                "qwen3_moe",
                "Qwen3MoeForCausalLM",
                json!({"head_dim": 64, "num_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 192,
                    "norm_topk_prob": true, "mlp_only_layers": [1], "decoder_sparse_step": 1}),
            ),
        ),
        (
            "phi3, heads of 96, window",
            shared(
                "phi3",
                "Phi3ForCausalLM",
                json!({"hidden_size": 384, "num_key_value_heads": 4, "sliding_window": 50,
                    "original_max_position_embeddings": 4096}),
            ),
        ),
        (
            "phi4, longrope, three quarters rotated",
            shared(
                "phi3",
                "Phi3ForCausalLM",
                json!({"hidden_size": 512, "partial_rotary_factor": 0.75, "rope_scaling": longrope,
                    "original_max_position_embeddings": 64, "tie_word_embeddings": true}),
            ),
        ),
    ]
}

/// Writes and opens a checkpoint of this shape.
pub fn write(config: &Value) -> Tiny {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::write(path.join("config.json"), config.to_string()).unwrap();
    let tensors = Shape::of(config).tensors();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for tensor in tensors {
        let begin = data.len();
        let count: usize = tensor.shape.iter().product();
        for _ in 0..count {
            let value = bf16::from_f32(tensor.mean + tensor.deviation * random.uniform());
            data.extend(value.to_le_bytes());
        }
        header.insert(
            tensor.name,
            json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, data.len()]}),
        );
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(path.join("model.safetensors"), file).unwrap();
    Tiny {
        checkpoint: Checkpoint::open(path).unwrap(),
        _directory: directory,
    }
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    mean: f32,
    deviation: f32,
}

struct Shape {
    vocab: usize,
    hidden: usize,
    inner: usize,
    layers: usize,
    q: usize,
    kv: usize,
    head_dim: usize,
    model_type: String,
    tied: bool,
    /// Experts and the width of one, in all layers but the second.
    experts: Option<(usize, usize)>,
}

impl Shape {
    fn of(config: &Value) -> Self {
        let size = |key: &str| config[key].as_u64().unwrap() as usize;
        let heads = size("num_attention_heads");
        let head_dim = config["head_dim"]
            .as_u64()
            .map_or(size("hidden_size") / heads, |dim| dim as usize);
        Self {
            vocab: size("vocab_size"),
            hidden: size("hidden_size"),
            inner: size("intermediate_size"),
            layers: size("num_hidden_layers"),
            q: heads * head_dim,
            kv: size("num_key_value_heads") * head_dim,
            head_dim,
            model_type: config["model_type"].as_str().unwrap().to_owned(),
            tied: config["tie_word_embeddings"].as_bool().unwrap(),
            experts: config["num_experts"]
                .as_u64()
                .map(|experts| (experts as usize, size("moe_intermediate_size"))),
        }
    }

    fn tensors(&self) -> Vec<Tensor> {
        let Self { vocab, hidden, .. } = *self;
        // A tied embedding is also the head, which decides the logits' scale.
        let embedding = if self.tied {
            2.0 / (hidden as f32).sqrt()
        } else {
            1.0
        };
        let mut tensors = vec![Tensor {
            name: "model.embed_tokens.weight".into(),
            shape: vec![vocab, hidden],
            mean: 0.0,
            deviation: embedding,
        }];
        for layer in 0..self.layers {
            let at = format!("model.layers.{layer}");
            self.layer(&at, &mut tensors);
            match self.experts.filter(|_| layer != 1) {
                Some(experts) => self.experts(&at, experts, &mut tensors),
                None => self.dense(&at, &mut tensors),
            }
        }
        tensors.push(norm("model.norm.weight".into(), hidden));
        if !self.tied {
            tensors.push(matrix("lm_head.weight".into(), vocab, hidden, 2.0));
        }
        tensors
    }

    fn layer(&self, at: &str, tensors: &mut Vec<Tensor>) {
        let Self {
            hidden,
            q,
            kv,
            head_dim,
            ..
        } = *self;
        tensors.push(norm(format!("{at}.input_layernorm.weight"), hidden));
        tensors.push(norm(
            format!("{at}.post_attention_layernorm.weight"),
            hidden,
        ));
        let attention = |name: &str| format!("{at}.self_attn.{name}");
        tensors.push(matrix(attention("o_proj.weight"), hidden, q, 1.0));
        if self.model_type == "phi3" {
            tensors.push(matrix(
                attention("qkv_proj.weight"),
                q + 2 * kv,
                hidden,
                1.0,
            ));
            return;
        }
        for (name, rows) in [("q", q), ("k", kv), ("v", kv)] {
            tensors.push(matrix(
                attention(&format!("{name}_proj.weight")),
                rows,
                hidden,
                1.0,
            ));
            if self.model_type == "qwen2" {
                tensors.push(Tensor {
                    name: attention(&format!("{name}_proj.bias")),
                    shape: vec![rows],
                    mean: 0.0,
                    deviation: 0.5,
                });
            }
        }
        if self.model_type.starts_with("qwen3") {
            tensors.push(norm(attention("q_norm.weight"), head_dim));
            tensors.push(norm(attention("k_norm.weight"), head_dim));
        }
    }

    fn dense(&self, at: &str, tensors: &mut Vec<Tensor>) {
        let Self { hidden, inner, .. } = *self;
        if self.model_type == "phi3" {
            let gate_up = format!("{at}.mlp.gate_up_proj.weight");
            tensors.push(matrix(gate_up, 2 * inner, hidden, 1.0));
            let down = format!("{at}.mlp.down_proj.weight");
            tensors.push(matrix(down, hidden, inner, 1.5));
            return;
        }
        gated(&format!("{at}.mlp"), hidden, inner, tensors);
    }

    /// The router tells experts clearly apart: where bf16 swaps two, their shares are small.
    fn experts(&self, at: &str, (count, inner): (usize, usize), tensors: &mut Vec<Tensor>) {
        let router = format!("{at}.mlp.gate.weight");
        tensors.push(matrix(router, count, self.hidden, 4.0));
        for expert in 0..count {
            gated(
                &format!("{at}.mlp.experts.{expert}"),
                self.hidden,
                inner,
                tensors,
            );
        }
    }
}

fn gated(at: &str, hidden: usize, inner: usize, tensors: &mut Vec<Tensor>) {
    for name in ["gate", "up"] {
        let name = format!("{at}.{name}_proj.weight");
        tensors.push(matrix(name, inner, hidden, 1.0));
    }
    tensors.push(matrix(format!("{at}.down_proj.weight"), hidden, inner, 1.5));
}

/// Rows of products with a standard deviation of about `gain` for inputs of 1.
fn matrix(name: String, rows: usize, cols: usize, gain: f32) -> Tensor {
    Tensor {
        name,
        shape: vec![rows, cols],
        mean: 0.0,
        deviation: gain / (cols as f32).sqrt(),
    }
}

fn norm(name: String, width: usize) -> Tensor {
    Tensor {
        name,
        shape: vec![width],
        mean: 1.0,
        deviation: 0.2,
    }
}

struct Random(u64);

impl Random {
    /// Uniform with a mean of 0 and a standard deviation of 1.
    fn uniform(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let unit = (self.0 >> 40) as f32 / (1 << 24) as f32;
        (unit - 0.5) * 12.0_f32.sqrt()
    }
}
