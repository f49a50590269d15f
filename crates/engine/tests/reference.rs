//! The CPU engine, through ring and policy, on a real model.
//!
//! In f32 its greedy ids must be those of transformers in fp32 up to the first step whose margin (largest minus second
//! logit) is under 0.1, where two correct engines may part. With activations rounded to 8 bits they must be llama.cpp's,
//! which rounds them too, up to a margin of 0.3. In every arrangement (placement, chunks, batch, cached prefix) a request
//! must get the very same ids.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use izar_engine::cpu::Arithmetic;
use izar_engine::driver::Placement;
use izar_engine::{CpuEngine, CpuEngineOptions};
use izar_model::Checkpoint;
use izar_transport::Transport;
use izar_transport::client::{ClientOptions, Progress, RequestHandle, RingClient, Submission};

const TIMEOUT: Duration = Duration::from_secs(300);
const NUM_TOKENS: u32 = 32;

struct Reference {
    prompt: Vec<u32>,
    /// Leading ids that an engine must reproduce.
    certain: Vec<u32>,
}

/// What `engine` of the reference file generated, as far as its margins stay at or above `min_margin`.
fn references(engine: &str, min_margin: f64) -> Vec<Reference> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/smollm2_reference.json");
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let ids =
        |value: &serde_json::Value| serde_json::from_value::<Vec<u32>>(value.clone()).unwrap();
    let results = file["results"].as_array().unwrap();
    results
        .iter()
        .map(|result| {
            let reference = &result[engine];
            let margins: Vec<f64> =
                serde_json::from_value(reference["top1_minus_top2_logit"].clone()).unwrap();
            let num_certain = margins
                .iter()
                .take_while(|&&margin| margin >= min_margin)
                .count();
            let certain = ids(&reference["generated_ids"])
                .into_iter()
                .take(num_certain)
                .collect();
            Reference {
                prompt: ids(&result["prompt_ids"]),
                certain,
            }
        })
        .collect()
}

/// The model that `scripts/fetch-model` fetched.
fn model_path() -> PathBuf {
    let cached = "../../.cache/models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = std::env::var_os("IZAR_TEST_MODEL").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(cached),
        PathBuf::from,
    );
    assert!(
        path.exists(),
        "{} is missing: run scripts/fetch-model",
        path.display()
    );
    path
}

struct Running {
    engine: CpuEngine,
    client: RingClient,
}

fn start(options: CpuEngineOptions) -> Running {
    let checkpoint = Checkpoint::open(&model_path()).unwrap();
    let options = CpuEngineOptions {
        max_model_len: Some(512),
        num_kv_blocks: Some(640),
        ..options
    };
    let engine = CpuEngine::start(&checkpoint, &options, &mut |_, _| {}).unwrap();
    let transport = Arc::clone(&engine.transport) as Arc<dyn Transport>;
    let client = RingClient::connect(transport, ClientOptions::default()).unwrap();
    client.wait_ready(TIMEOUT).unwrap();
    Running { engine, client }
}

impl Running {
    fn submit(&self, reference: &Reference) -> RequestHandle {
        self.client
            .submit(&Submission::new(&reference.prompt, NUM_TOKENS))
            .unwrap()
    }

    /// Submits every prompt `copies` times at once; returns the ids of each.
    fn generate(&self, references: &[Reference], copies: usize) -> Vec<Vec<u32>> {
        let mut handles: Vec<_> = (0..copies)
            .flat_map(|_| references)
            .map(|reference| self.submit(reference))
            .collect();
        let finish = |handle: &mut RequestHandle| {
            let mut tokens = Vec::new();
            while handle.wait(&mut tokens, TIMEOUT).expect("a token in time") == Progress::More {}
            tokens.iter().map(|t| t.token).collect()
        };
        handles.iter_mut().map(finish).collect()
    }
}

fn ids_are_right_and_the_same_in_every_arrangement(
    arithmetic: Arithmetic,
    references: &[Reference],
) {
    let mut first: Option<Vec<Vec<u32>>> = None;
    for placement in [Placement::HostSync, Placement::HostAsync] {
        for chunk in [512, 16] {
            let running = start(CpuEngineOptions {
                arithmetic,
                placement,
                max_num_seqs: 16,
                max_num_batched_tokens: chunk,
                ..CpuEngineOptions::default()
            });
            let what = format!("{placement}, {chunk} tokens a step");
            let alone: Vec<_> = references
                .iter()
                .flat_map(|r| running.generate(std::slice::from_ref(r), 1))
                .collect();
            for (ids, reference) in alone.iter().zip(references) {
                assert_eq!(ids[..reference.certain.len()], reference.certain, "{what}");
            }
            let batch = running.generate(references, 4);
            for (idx, ids) in batch.iter().enumerate() {
                assert_eq!(
                    *ids,
                    alone[idx % alone.len()],
                    "{what}: alone against a batch of 16 over cached prefixes"
                );
            }
            assert_eq!(
                *first.get_or_insert_with(|| alone.clone()),
                alone,
                "{what}: against the first arrangement"
            );
            running.engine.engine.stop().unwrap();
        }
    }
}

#[test]
fn f32_ids_equal_transformers_in_every_arrangement() {
    let references = references("transformers_fp32", 0.1);
    assert_eq!(
        references.iter().map(|r| r.certain.len()).sum::<usize>(),
        23 + 32 + 32 + 2
    );
    ids_are_right_and_the_same_in_every_arrangement(Arithmetic::F32, &references);
}

#[test]
fn rounded_activations_give_llama_cpp_ids_in_every_arrangement() {
    let references = references("llama_cpp", 0.3);
    assert!(
        references.iter().map(|r| r.certain.len()).sum::<usize>() > 50,
        "enough ids to mean something"
    );
    ids_are_right_and_the_same_in_every_arrangement(Arithmetic::Auto, &references);
}
