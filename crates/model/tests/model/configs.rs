//! `config.json` as published models write it, and the switches that are refused.

use std::fs;

use izar_model::{
    Architecture, Checkpoint, Dtype, LoadError, LoadFormat, ModelConfig, RopeScaling,
};
use serde_json::{Value, json};

use crate::files::refusal;

/// Opens a config with sizes cut down so that made-up weights stay small.
fn open(mut config: Value) -> Result<Checkpoint, LoadError> {
    let dir = tempfile::tempdir().unwrap();
    for (key, size) in [("vocab_size", 64), ("intermediate_size", 64)] {
        config[key] = size.into();
    }
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    Checkpoint::open_with(dir.path(), LoadFormat::Dummy)
}

fn parsed(config: Value) -> ModelConfig {
    open(config).unwrap().config().clone()
}

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "torch_dtype": "float16",
        "bos_token_id": 1, "eos_token_id": 2, "pretraining_tp": 1, "rope_scaling": null,
    })
}

fn with(mut config: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn llama_2_and_3() {
    let llama2 = parsed(llama());
    assert_eq!(llama2.architecture, Architecture::Llama);
    assert_eq!(
        (llama2.num_heads, llama2.num_kv_heads, llama2.head_dim),
        (8, 2, 32)
    );
    assert_eq!(
        (llama2.rope.theta, &llama2.rope.scaling),
        (10_000.0, &RopeScaling::None)
    );
    assert_eq!(
        (llama2.dtype, llama2.tie_word_embeddings),
        (Dtype::F16, false)
    );
    assert_eq!(
        (llama2.bos_token_id, llama2.eos_token_ids),
        (Some(1), vec![2])
    );
    let llama3 = parsed(with(
        llama(),
        json!({"rope_theta": 500000.0, "eos_token_id": [128001, 128008, 128009]}),
    ));
    assert_eq!(llama3.rope.theta, 500_000.0);
    assert_eq!(llama3.eos_token_ids, [128001, 128008, 128009]);
}

#[test]
fn heads_without_a_kv_count_are_all_kv_heads() {
    let config = parsed(with(llama(), json!({"num_key_value_heads": null})));
    assert_eq!(config.num_kv_heads, 8);
}

#[test]
fn both_spellings_of_rope_and_dtype_mean_the_same() {
    let scaling = json!({
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048, "rope_type": "llama3",
    });
    let old = with(
        llama(),
        json!({"rope_theta": 500000.0, "rope_scaling": scaling}),
    );
    let mut new = llama();
    let keys = new.as_object_mut().unwrap();
    keys.remove("rope_scaling");
    keys.remove("torch_dtype");
    let new = with(
        new,
        json!({"dtype": "float16", "rope_parameters": with(scaling, json!({"rope_theta": 500000.0}))}),
    );
    assert_eq!(parsed(old), parsed(new));
}

#[test]
fn qwen2_windows_apply_only_where_switched_on() {
    let qwen = with(
        llama(),
        json!({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": 1e6,
            "sliding_window": 1024, "max_window_layers": 1, "use_sliding_window": false}),
    );
    let off = parsed(qwen.clone());
    assert!(off.qkv_bias);
    assert_eq!([off.window(0), off.window(1)], [None, None]);
    let on = parsed(with(qwen.clone(), json!({"use_sliding_window": true})));
    assert_eq!([on.window(0), on.window(1)], [None, Some(1024)]);
    let types = json!(["sliding_attention", "full_attention"]);
    let listed = parsed(with(
        qwen,
        json!({"use_sliding_window": true, "layer_types": types}),
    ));
    assert_eq!([listed.window(0), listed.window(1)], [Some(1024), None]);
}

#[test]
fn yarn_and_linear_stretch_the_usable_context() {
    let yarn = json!({"factor": 4.0, "original_max_position_embeddings": 4096, "type": "yarn"});
    let yarn = parsed(with(llama(), json!({"rope_scaling": yarn})));
    assert_eq!(
        (yarn.max_position_embeddings, yarn.max_model_len()),
        (4096, 16_384)
    );
    let linear = parsed(with(
        llama(),
        json!({"rope_scaling": {"factor": 2, "type": "linear"}}),
    ));
    assert_eq!(linear.max_model_len(), 8192);
    assert_eq!(parsed(llama()).max_model_len(), 4096);
}

#[test]
fn qwen3_moe_layers_follow_step_and_exceptions() {
    let moe = with(
        llama(),
        json!({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 6,
            "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "norm_topk_prob": true, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    );
    let config = parsed(moe);
    let layers: Vec<bool> = (0..6)
        .map(|layer| config.layer_moe(layer).is_some())
        .collect();
    assert_eq!(layers, [false, true, false, false, false, true]);
    assert_eq!(
        (config.head_dim, config.q_size(), config.qk_norm),
        (64, 512, true)
    );
}

#[test]
fn phi3_reads_its_windows_and_every_old_name_of_longrope() {
    for kind in ["longrope", "su", "yarn"] {
        let rope =
            json!({"type": kind, "short_factor": vec![1.0; 16], "long_factor": vec![2.0; 16]});
        let config = parsed(with(
            llama(),
            json!({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "sliding_window": 2047,
                "original_max_position_embeddings": 4096, "max_position_embeddings": 131072,
                "rope_scaling": rope}),
        ));
        assert_eq!(
            [config.window(0), config.window(1)],
            [Some(2047), Some(2047)]
        );
        let expected = RopeScaling::LongRope {
            short_factor: vec![1.0; 16],
            long_factor: vec![2.0; 16],
            original_max_position_embeddings: 4096,
            attention_factor: (1.0 + 32_f64.ln() / 4096_f64.ln()).sqrt(),
        };
        assert_eq!(config.rope.scaling, expected, "{kind}");
    }
}

#[test]
fn end_ids_of_the_generation_config_win() {
    let dir = tempfile::tempdir().unwrap();
    let config = with(llama(), json!({"vocab_size": 64, "intermediate_size": 64}));
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let generation = json!({"eos_token_id": [7, 9], "temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": true});
    fs::write(
        dir.path().join("generation_config.json"),
        generation.to_string(),
    )
    .unwrap();
    let checkpoint = Checkpoint::open_with(dir.path(), LoadFormat::Dummy).unwrap();
    assert_eq!(checkpoint.config().eos_token_ids, [7, 9]);
    let generation = checkpoint.generation_config();
    assert_eq!(
        (generation.temperature, generation.top_p),
        (Some(0.6), Some(0.9))
    );
    assert_eq!(
        (generation.top_k, generation.do_sample),
        (Some(20), Some(true))
    );
}

#[test]
fn what_would_change_the_computation_is_refused_by_name() {
    let rope = |value: Value| json!({ "rope_scaling": value });
    for (changes, parts) in [
        (
            json!({"architectures": ["Gemma3ForCausalLM"]}),
            vec![
                "config.json",
                "architecture",
                "Gemma3ForCausalLM",
                "Qwen3MoeForCausalLM",
            ],
        ),
        (
            json!({"architectures": null, "model_type": "mamba"}),
            vec!["unknown architecture", "mamba"],
        ),
        (
            rope(json!({"type": "dynamic", "factor": 2.0})),
            vec!["config.json", "rope type", "dynamic", "llama3"],
        ),
        (
            rope(json!({"type": "default", "mrope_section": [16, 24, 24]})),
            vec!["rope type", "mrope"],
        ),
        (
            json!({"rope_parameters": {"full_attention": {}}}),
            vec!["rope type", "per layer type"],
        ),
        (
            rope(json!({"type": "linear"})),
            vec!["rope_scaling.factor", "no such key"],
        ),
        (
            rope(json!({"type": "linear", "factor": -1})),
            vec!["rope_scaling.factor", "above 0", "-1"],
        ),
        (
            rope(json!({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]})),
            vec!["rope_scaling.short_factor", "16", "a list of 1"],
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            vec!["partial_rotary_factor", "0.5"],
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
            vec!["config.json", "quantization", "gptq"],
        ),
        (
            json!({"hidden_act": "gelu"}),
            vec!["hidden_act", "silu", "gelu"],
        ),
        (
            json!({"attention_bias": true}),
            vec!["attention_bias", "expected false", "true"],
        ),
        (
            json!({"rope_interleaved": true}),
            vec!["rope_interleaved", "expected false", "true"],
        ),
        (
            json!({"torch_dtype": "float8_e4m3fn"}),
            vec!["torch_dtype", "bfloat16", "float8_e4m3fn"],
        ),
        (
            json!({"num_key_value_heads": 3}),
            vec!["num_key_value_heads", "divisor of the 8 heads", "3"],
        ),
        (
            json!({"num_hidden_layers": 0}),
            vec!["num_hidden_layers", "0"],
        ),
        (
            json!({"num_hidden_layers": 1_000_000}),
            vec!["num_hidden_layers", "4096", "1000000"],
        ),
        (
            json!({"hidden_size": "big"}),
            vec!["hidden_size", "integer", "big"],
        ),
        (
            json!({"hidden_size": u64::MAX}),
            vec!["hidden_size", "18446744073709551615"],
        ),
        (
            json!({"rms_norm_eps": null}),
            vec!["rms_norm_eps", "no such key"],
        ),
        (json!({"head_dim": 33}), vec!["33"]),
    ] {
        refusal(open(with(llama(), changes)), &parts);
    }
}

#[test]
fn a_key_of_control_characters_stays_on_one_line() {
    let changes = json!({"architectures": ["Evil\nForCausalLM\u{1b}[31m"]});
    refusal(open(with(llama(), changes)), &["Evil\\nForCausalLM"]);
}
