//! Greedy ids against transformers in fp32 over the same weights.
//!
//! They must be equal up to the first step at which the two likeliest tokens are so close that two correct engines may part:
//! less than 0.1 apart in float32; in `auto`, which also quantises activations, less than 0.4. Beyond that step an engine must still
//! agree with itself: alone, in a batch, in chunks, with a cold prefix cache and a warm one.
//!
//! The four settings are a covering of the eight: every pair of arithmetic, scheduler and step size occurs.

use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::server::{Completion, Server};

const BLOCK_SIZE: usize = 16;
const BATCH: usize = 16;

struct Reference {
    prompt: Value,
    num_prompt_tokens: usize,
    /// The ids that are certain.
    certain: Vec<u32>,
    /// How many to ask for.
    num_tokens: usize,
    /// What the first answer was.
    first: OnceLock<Vec<u32>>,
}

fn references(dtype: &str) -> Vec<Reference> {
    let certain_margin = if dtype == "float32" { 0.1 } else { 0.4 };
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../engine/tests/data/smollm2_reference.json"
    );
    let file: Value = serde_json::from_slice(&std::fs::read(path).expect(path)).expect("JSON");
    let results = file["results"].as_array().expect("results");
    let references: Vec<_> = results
        .iter()
        .map(|result| reference(result, certain_margin))
        .collect();
    let num_certain: usize = references.iter().map(|one| one.certain.len()).sum();
    assert!(num_certain >= 40, "{num_certain} ids are too few");
    references
}

fn reference(result: &Value, certain_margin: f64) -> Reference {
    let fp32 = &result["transformers_fp32"];
    let margins: Vec<f64> =
        serde_json::from_value(fp32["top1_minus_top2_logit"].clone()).expect("margins");
    let ids: Vec<u32> = serde_json::from_value(fp32["generated_ids"].clone()).expect("ids");
    let certain = margins
        .iter()
        .take_while(|&&margin| margin >= certain_margin);
    Reference {
        prompt: result["prompt_ids"].clone(),
        num_prompt_tokens: result["prompt_ids"].as_array().expect("ids").len(),
        certain: ids[..certain.count()].to_vec(),
        num_tokens: ids.len(),
        first: OnceLock::new(),
    }
}

impl Reference {
    #[track_caller]
    fn check(&self, server: &Server) -> Completion {
        let body = json!({"prompt": self.prompt, "max_tokens": self.num_tokens, "temperature": 0});
        let completion = server.complete(&body);
        assert!(
            completion.ids.starts_with(&self.certain),
            "{:?} wanted: {completion:?}",
            self.certain
        );
        let first = self.first.get_or_init(|| completion.ids.clone());
        assert_eq!(&completion.ids, first, "another time it was another answer");
        completion
    }

    /// Prompt tokens that a cache of whole blocks can hold. One token is always computed.
    fn num_cacheable_tokens(&self) -> u64 {
        ((self.num_prompt_tokens - 1) / BLOCK_SIZE * BLOCK_SIZE) as u64
    }
}

/// One after the other: first with a cold prefix cache, then with a warm one.
fn check_alone_cold_and_hit(server: &Server, references: &[Reference]) {
    for reference in references {
        let cold = reference.check(server);
        // Chats begin with the same system message, so some of it may be there.
        let cacheable = reference.num_cacheable_tokens();
        assert!(cold.num_cached_tokens < cacheable.max(1), "{cold:?}");
    }
    check_alone_hit(server, references);
}

fn check_alone_hit(server: &Server, references: &[Reference]) {
    for reference in references {
        let hit = reference.check(server);
        assert_eq!(hit.num_cached_tokens, reference.num_cacheable_tokens());
    }
}

/// [`BATCH`] at once.
fn check_batch(server: &Server, references: &[Reference]) {
    std::thread::scope(|scope| {
        for reference in references.iter().cycle().take(BATCH) {
            scope.spawn(|| reference.check(server));
        }
    });
}

fn start(dtype: &str, scheduler: &str, max_num_batched_tokens: &str) -> Server {
    Server::start(&[
        "--dtype",
        dtype,
        "--scheduler",
        scheduler,
        "--max-num-batched-tokens",
        max_num_batched_tokens,
        "--max-num-seqs",
        "16",
        "--max-model-len",
        "512",
    ])
}

#[test]
fn ids_are_fp32s_in_float32_on_host_sync_with_whole_prompts() {
    let (server, references) = (start("float32", "host-sync", "512"), references("float32"));
    check_alone_cold_and_hit(&server, &references);
    check_batch(&server, &references);
}

#[test]
fn ids_are_fp32s_in_float32_on_host_async_with_chunks_of_16() {
    let (server, references) = (start("float32", "host-async", "16"), references("float32"));
    check_batch(&server, &references);
    check_alone_hit(&server, &references);
}

#[test]
fn ids_are_fp32s_in_auto_on_host_sync_with_chunks_of_16() {
    let (server, references) = (start("auto", "host-sync", "16"), references("auto"));
    check_batch(&server, &references);
    check_alone_hit(&server, &references);
}

#[test]
fn ids_are_fp32s_in_auto_on_host_async_with_whole_prompts() {
    let (server, references) = (start("auto", "host-async", "512"), references("auto"));
    check_alone_cold_and_hit(&server, &references);
    check_batch(&server, &references);
}

#[test]
fn without_a_prefix_cache_every_prompt_is_computed_anew() {
    let server = Server::start(&["--no-enable-prefix-caching", "--max-model-len", "512"]);
    let references = references("auto");
    let longest = references.iter().max_by_key(|one| one.num_prompt_tokens);
    for _ in 0..2 {
        let completion = longest.expect("a reference").check(&server);
        assert_eq!(completion.num_cached_tokens, 0);
    }
    assert_eq!(server.metric("vllm:prefix_cache_hits_total"), 0.0);
}
