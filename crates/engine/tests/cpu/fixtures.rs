//! Every architecture and variant against the logits transformers computes.

use izar_engine::cpu::{Arithmetic, CpuOptions, Isa};
use serde::Deserialize;

use crate::harness::{Harness, best, fixtures, open};

#[derive(Deserialize)]
struct Reference {
    vocab_size: usize,
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    tokens: Vec<u32>,
    max_model_len: usize,
    first_row: usize,
    greedy: Vec<u32>,
    greedy_margins: Vec<f32>,
}

fn reference(name: &str) -> (Reference, Vec<f32>) {
    let dir = fixtures().join(name);
    let reference =
        serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let bytes = std::fs::read(dir.join("logits.f32")).unwrap();
    (
        reference,
        bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect(),
    )
}

fn all() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("reference.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 20, "fixtures are missing: {names:?}");
    names
}

/// Largest error of a fixture's logits, relative to the largest logit, over all its prompts.
fn logits_error(name: &str, options: impl Fn(&mut CpuOptions)) -> f32 {
    let checkpoint = open(name);
    let (reference, logits) = reference(name);
    let mut worst = 0.0f32;
    for prompt in &reference.prompts {
        let mut harness = Harness::with(&checkpoint, 1, |o| {
            o.max_model_len = prompt.max_model_len;
            options(o);
        });
        let got = harness.prompt(0, &prompt.tokens).concat();
        let expected = &logits[prompt.first_row * reference.vocab_size..][..got.len()];
        let largest = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        for (a, b) in got.iter().zip(expected) {
            assert!(a.is_finite(), "{name}, prompt {}: {a}", prompt.name);
            worst = worst.max((a - b).abs() / largest);
        }
    }
    worst
}

#[test]
fn f32_logits_are_those_of_transformers() {
    for name in all() {
        let error = logits_error(&name, |o| o.arithmetic = Arithmetic::F32);
        assert!(error < 2e-5, "{name}: relative error {error}");
    }
}

#[test]
fn every_instruction_set_gives_transformers_logits() {
    for name in [
        "llama2-legacy",
        "llama-k",
        "qwen3moe-mixed",
        "phi4-longrope-f16",
    ] {
        for isa in Isa::available() {
            let error = logits_error(name, |o| (o.arithmetic, o.isa) = (Arithmetic::F32, isa));
            assert!(
                error < 2e-5,
                "{name} on {}: relative error {error}",
                isa.name()
            );
        }
    }
}

#[test]
fn fast_logits_are_near_those_of_transformers() {
    for name in all() {
        // 8-bit activations in quantised models; float models round nothing but the KV cache.
        let limit = if name.contains("q8_0") || name.contains("legacy") || name.contains("-k") {
            0.06
        } else {
            2e-3
        };
        let error = logits_error(&name, |o| o.arithmetic = Arithmetic::Auto);
        assert!(error < limit, "{name}: relative error {error}");
    }
}

#[test]
fn f32_greedy_ids_are_those_of_transformers_while_the_margin_is_clear() {
    for name in all() {
        let checkpoint = open(&name);
        for prompt in reference(&name).0.prompts {
            let mut harness = Harness::with(&checkpoint, 1, |o| {
                (o.arithmetic, o.max_model_len) = (Arithmetic::F32, prompt.max_model_len);
            });
            let clear = prompt
                .greedy_margins
                .iter()
                .take_while(|&&margin| margin > 1e-3)
                .count();
            let got = harness.greedy(0, &prompt.tokens, prompt.greedy.len());
            let got: Vec<u32> = got.iter().map(|row| best(row)).collect();
            assert_eq!(
                got[..clear],
                prompt.greedy[..clear],
                "{name}, prompt {}",
                prompt.name
            );
        }
    }
}
