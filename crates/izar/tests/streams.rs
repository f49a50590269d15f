//! Engine, ring and server together on a tiny real checkpoint: many streams at once, some of them abandoned.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use izar_engine::cpu::Arithmetic;
use izar_engine::driver::Placement;
use izar_engine::{CpuEngine, CpuEngineOptions};
use izar_model::Checkpoint;
use izar_server::{SamplingDefaults, ServedModel, Server, ServerOptions};
use izar_tokenizer::Tokenizer;
use izar_transport::client::{ClientOptions, RingClient};
use serde_json::{Map, Value, json};
use tower::ServiceExt;

const NUM_STREAMS: usize = 200;
const VOCAB_SIZE: u32 = 128;

/// A server over the fixture `llama31`, with fewer KV blocks than its 16 rows could fill, so that sequences are preempted.
fn start(placement: Placement) -> (Router, CpuEngine, Arc<RingClient>) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/llama31");
    let checkpoint = Checkpoint::open(&fixture).expect("the fixture");
    let options = CpuEngineOptions {
        placement,
        arithmetic: Arithmetic::F32,
        num_threads: Some(2),
        max_num_seqs: 16,
        max_num_batched_tokens: 64,
        num_kv_blocks: Some(48),
        ..CpuEngineOptions::default()
    };
    let engine = CpuEngine::start(&checkpoint, &options, &mut |_, _| {}).expect("an engine");
    let client =
        RingClient::connect(engine.transport.clone(), ClientOptions::default()).expect("a lease");
    client.wait_ready(Duration::from_secs(30)).expect("a ring");
    let client = Arc::new(client);
    let model = ServedModel {
        names: vec!["tiny".to_owned()],
        root: "tiny".to_owned(),
        tokenizer: tokenizer(),
        chat: None,
        tool_format: None,
        reasoning_format: None,
        eos_token_ids: Vec::new(),
        defaults: SamplingDefaults::default(),
    };
    let server =
        Server::new(model, Arc::clone(&client), ServerOptions::default()).expect("a server");
    (server.router(), engine, client)
}

/// A vocabulary in which every id has a text.
fn tokenizer() -> Arc<Tokenizer> {
    let vocab: Map<String, Value> = (0..VOCAB_SIZE)
        .map(|id| (format!("<{id}>"), id.into()))
        .collect();
    let definition = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    Arc::new(Tokenizer::from_json(definition).expect("a valid definition"))
}

/// Request `i`: prompt and output of lengths that differ from request to request; a third sampled, the rest greedy.
fn request(i: usize) -> Request<Body> {
    let prompt: Vec<usize> = (0..1 + i * 7 % 60)
        .map(|at| 3 + (at * 31 + i * 17) % 120)
        .collect();
    let body = json!({
        "prompt": prompt, "max_tokens": 1 + i * 13 % 60, "ignore_eos": true, "stream": true, "return_token_ids": true,
        "temperature": if i % 3 == 1 { 0.8 } else { 0.0 }, "seed": i,
    });
    Request::post("/v1/completions")
        .body(Body::from(body.to_string()))
        .expect("a request")
}

/// Token ids of request `i`; with `leave_early`, only the beginning of the stream is read and `None` returned.
async fn ids(router: Router, i: usize, leave_early: bool) -> Option<Vec<u64>> {
    let response = router.oneshot(request(i)).await.expect("infallible");
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        if leave_early {
            return None;
        }
        text.extend_from_slice(&frame.expect("infallible").into_data().expect("data"));
    }
    let text = String::from_utf8(text).expect("UTF-8");
    let mut events: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(events.pop(), Some("data: [DONE]"));
    let chunks = events
        .iter()
        .map(|event| serde_json::from_str::<Value>(&event["data: ".len()..]).expect("JSON"));
    Some(
        chunks
            .flat_map(|chunk| {
                chunk["choices"][0]["token_ids"]
                    .as_array()
                    .expect("ids")
                    .clone()
            })
            .map(|id| id.as_u64().expect("an id"))
            .collect(),
    )
}

async fn metric(router: &Router, name: &str) -> f64 {
    let request = Request::get("/metrics")
        .body(Body::empty())
        .expect("a request");
    let page = router
        .clone()
        .oneshot(request)
        .await
        .expect("infallible")
        .into_body()
        .collect()
        .await
        .expect("a page")
        .to_bytes();
    let page = String::from_utf8(page.to_vec()).expect("UTF-8");
    let sample = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' '));
    sample
        .unwrap_or_else(|| panic!("no {name}"))
        .1
        .parse()
        .expect("a number")
}

async fn streams_complete_exactly(placement: Placement) {
    let (router, engine, client) = start(placement);
    let mut alone = Vec::new();
    for i in (0..NUM_STREAMS).filter(|i| i % 3 != 2) {
        alone.push(ids(router.clone(), i, false).await);
    }
    let together: Vec<_> = (0..NUM_STREAMS)
        .map(|i| tokio::spawn(ids(router.clone(), i, i % 3 == 2)))
        .collect();
    let mut kept = Vec::new();
    for (i, stream) in together.into_iter().enumerate() {
        let ids = stream.await.expect("no panic");
        if i % 3 != 2 {
            assert_eq!(ids.as_ref().map(Vec::len), Some(1 + i * 13 % 60));
            kept.push(ids);
        }
    }
    assert!(kept == alone, "a stream's tokens depend on its neighbours");
    for _ in 0..2000 {
        if client.stats().slots_in_use == 0
            && metric(&router, "vllm:kv_cache_usage_perc").await == 0.0
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for name in [
        "izar:ring_slots_in_use",
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
    ] {
        assert_eq!(metric(&router, name).await, 0.0, "{name}");
    }
    assert_eq!(client.stats().output_used_bytes, 0);
    drop((router, client));
    engine.engine.stop().expect("no failure");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_streams_complete_exactly_while_a_third_leaves_host_sync() {
    streams_complete_exactly(Placement::HostSync).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_streams_complete_exactly_while_a_third_leaves_host_async() {
    streams_complete_exactly(Placement::HostAsync).await;
}
