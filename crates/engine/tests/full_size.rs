//! The ten models that one H200 must serve, from their config.json alone: parameters, memory, and what a token must read.

use std::path::Path;

use izar_engine::cuda::Stage;
use izar_engine::cuda::bench::{Load, stage_bytes};
use izar_engine::cuda::grid::Grid;
use izar_engine::cuda::memory::{BLOCK_SIZE, MemoryPlan, MemoryUse, graph_bytes, kv_block_bytes};
use izar_model::{ModelConfig, Param};

const MIB: u64 = 1 << 20;
/// What an H200's driver says it has.
const H200: u64 = 143_156 * MIB;

struct Model {
    name: &'static str,
    /// Billions of parameters, as published.
    params: f64,
    /// Gigabytes that a step of one short sequence reads.
    active_gb: f64,
    /// Tokens that the KV cache held on an H200 with `izar serve`'s defaults.
    kv_tokens: u64,
}

const fn model(name: &'static str, params: f64, active_gb: f64, kv_tokens: u64) -> Model {
    Model {
        name,
        params,
        active_gb,
        kv_tokens,
    }
}

const MODELS: [Model; 10] = [
    model("llama-2-7b", 6.74, 13.2, 228_784),
    model("llama-2-13b", 13.02, 25.7, 130_736),
    model("llama-3-8b", 8.03, 15.0, 893_744),
    model("qwen2.5-7b", 7.62, 14.1, 2_055_008),
    model("qwen2.5-14b", 14.77, 28.0, 524_832),
    model("qwen2.5-32b", 32.76, 64.0, 254_720),
    model("qwq-32b", 32.76, 64.0, 254_704),
    model("phi-4", 14.66, 28.3, 505_872),
    model("qwen3-32b", 32.76, 64.0, 254_336),
    model("qwen3-30b-a3b", 30.53, 6.1, 729_504),
];

fn config(name: &str) -> ModelConfig {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model-configs");
    ModelConfig::read(&root.join(name)).expect("a fixture")
}

fn num_params(config: &ModelConfig) -> u64 {
    let shapes = Param::all(config).filter_map(|param| param.shape(config));
    shapes.map(|[rows, cols]| (rows * cols) as u64).sum()
}

/// Everything on the device but weights, KV cache and graphs, with `izar serve`'s defaults; the sampler and the driver by estimate.
fn other_bytes(config: &ModelConfig) -> Vec<(&'static str, u64)> {
    let (tokens, seqs) = (2048, 256);
    let row = 2 * config.hidden_size
        + 2 * config.q_size()
        + 2 * config.kv_size()
        + 3 * config.intermediate_size;
    let experts = config.moe.as_ref().map_or(0, |moe| {
        moe.num_experts_per_tok * (2 * config.hidden_size + 3 * moe.moe_intermediate_size)
    });
    vec![
        ("activations", 2 * (tokens * row) as u64),
        ("logits", 4 * (seqs * config.vocab_size) as u64),
        ("experts", 2 * (tokens * experts) as u64),
        ("sampler and driver", 900 * MIB),
    ]
}

fn plan(config: &ModelConfig) -> MemoryPlan {
    let mut parts = vec![("weights", 2 * num_params(config))];
    parts.extend(other_bytes(config));
    let used: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    let grid = Grid::new(256, 2048);
    let memory = MemoryUse {
        total: H200,
        free: H200 - used,
        parts,
        graphs: graph_bytes(config, 2 * grid.buckets().len()),
        kv_block: kv_block_bytes(config),
    };
    let longest = config.max_model_len() as u32;
    MemoryPlan::new(memory, 0.9, longest, None).expect("a cache that holds a whole context")
}

#[test]
fn parameters_are_as_many_as_published() {
    for model in &MODELS {
        let billions = num_params(&config(model.name)) as f64 / 1e9;
        assert!(
            (billions - model.params).abs() < 0.006,
            "{}: {billions} billion",
            model.name
        );
    }
}

#[test]
fn one_h200_holds_each_with_its_whole_context() {
    for model in &MODELS {
        let config = config(model.name);
        let plan = plan(&config);
        let tokens = u64::from(plan.num_kv_blocks) * u64::from(BLOCK_SIZE);
        let contexts = tokens / config.max_model_len() as u64;
        assert!(contexts >= 6, "{}: {tokens} tokens of KV", model.name);
        let off = tokens as f64 / model.kv_tokens as f64 - 1.0;
        assert!(
            off.abs() < 0.02,
            "{}: {tokens} tokens of KV, measured {}",
            model.name,
            model.kv_tokens
        );
    }
}

#[test]
fn a_token_reads_what_the_published_sizes_say() {
    for model in &MODELS {
        let config = config(model.name);
        let experts = config.moe.as_ref().map_or(0, |moe| moe.num_experts_per_tok);
        let load = Load::Decode {
            batch: 1,
            context: 1,
        };
        let bytes = |stage| stage_bytes(&config, stage, load, experts as u32);
        let gb = Stage::ALL.into_iter().map(bytes).sum::<u64>() as f64 / 1e9;
        assert!(
            (gb - model.active_gb).abs() < 0.06,
            "{}: {gb} GB",
            model.name
        );
    }
}
