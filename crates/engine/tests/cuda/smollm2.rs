//! SmolLM2, a real model: greedy ids are the CPU's, along the sequence that the CUDA engine generates itself.

use std::path::{Path, PathBuf};

use izar_model::Checkpoint;
use serde_json::Value;

use super::harness::{Harness, Part, best, margin, oracle};
use super::has_device;

const NUM_TOKENS: usize = 48;
/// Where the CPU's best logit leads by this, the token must be the same.
const CLEAR_MARGIN: f32 = 0.25;

fn model_path() -> PathBuf {
    let cached = "../../.cache/models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf";
    std::env::var_os("IZAR_TEST_MODEL").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(cached),
        PathBuf::from,
    )
}

fn prompts() -> Vec<Vec<u32>> {
    let file: Value = serde_json::from_str(include_str!("../data/smollm2_reference.json")).unwrap();
    let ids = |result: &Value| serde_json::from_value(result["prompt_ids"].clone()).unwrap();
    file["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(ids)
        .collect()
}

#[test]
fn greedy_ids_are_the_cpus_where_its_margin_is_clear() {
    if !has_device() {
        return;
    }
    let path = model_path();
    assert!(
        path.exists(),
        "{} is missing: run scripts/fetch-model, or set IZAR_TEST_MODEL",
        path.display()
    );
    let checkpoint = Checkpoint::open(&path).unwrap();
    let prompts = prompts();
    let mut harness = Harness::new(&checkpoint, 8, 256);
    let mut sequences = prompts.clone();
    for (row, prompt) in prompts.iter().enumerate() {
        let sampled = harness.step(&[(row, prompt)], &[Part::prefill(row, 0, prompt, true)]);
        sequences[row].push(sampled[0].0);
    }
    for _ in 1..NUM_TOKENS {
        let parts: Vec<Part> = sequences
            .iter()
            .enumerate()
            .map(|(row, sequence)| Part::decode(row, sequence.len() - 1))
            .collect();
        harness.launch(&[], &parts);
        for (row, token) in harness.wait().into_iter().enumerate() {
            sequences[row].push(token);
        }
    }
    let mut num_clear = 0;
    for (sequence, prompt) in sequences.iter().zip(&prompts) {
        let wanted = oracle(&checkpoint, sequence);
        for at in prompt.len()..sequence.len() {
            let logits = &wanted[at - 1];
            if margin(logits) > CLEAR_MARGIN {
                num_clear += 1;
                assert_eq!(sequence[at], best(logits), "token {at} after {prompt:?}");
            }
        }
    }
    assert!(num_clear > 100, "{num_clear} clear tokens mean little");
}
