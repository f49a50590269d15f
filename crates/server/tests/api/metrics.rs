//! Metrics: what they say of an idle server, after everybody has left, and that what charts them names what exists.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Harness, saying};
use crate::operations::hanging;

/// vLLM's metrics that its dashboards and the Kubernetes gateway's endpoint picker read, with their types.
const VLLM: [(&str, &str); 29] = [
    ("vllm:num_requests_running", "gauge"),
    ("vllm:num_requests_waiting", "gauge"),
    ("vllm:num_requests_waiting_by_reason", "gauge"),
    ("vllm:kv_cache_usage_perc", "gauge"),
    ("vllm:cache_config_info", "gauge"),
    ("vllm:prefix_cache_queries_total", "counter"),
    ("vllm:prefix_cache_hits_total", "counter"),
    ("vllm:num_preemptions_total", "counter"),
    ("vllm:prompt_tokens_total", "counter"),
    ("vllm:prompt_tokens_by_source_total", "counter"),
    ("vllm:prompt_tokens_cached_total", "counter"),
    ("vllm:generation_tokens_total", "counter"),
    ("vllm:request_success_total", "counter"),
    ("vllm:iteration_tokens_total", "histogram"),
    ("vllm:time_to_first_token_seconds", "histogram"),
    ("vllm:inter_token_latency_seconds", "histogram"),
    ("vllm:request_time_per_output_token_seconds", "histogram"),
    ("vllm:e2e_request_latency_seconds", "histogram"),
    ("vllm:request_queue_time_seconds", "histogram"),
    ("vllm:request_inference_time_seconds", "histogram"),
    ("vllm:request_prefill_time_seconds", "histogram"),
    ("vllm:request_decode_time_seconds", "histogram"),
    ("vllm:request_prompt_tokens", "histogram"),
    ("vllm:request_generation_tokens", "histogram"),
    ("vllm:request_prefill_kv_computed_tokens", "histogram"),
    ("vllm:request_max_num_generation_tokens", "histogram"),
    ("vllm:request_params_n", "histogram"),
    ("vllm:request_params_max_tokens", "histogram"),
    ("process_resident_memory_bytes", "gauge"),
];

/// Files whose queries name metrics.
const CHARTS: [&str; 2] = ["deploy/grafana/izar.json", "deploy/prometheus/alerts.yml"];

fn repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Types by metric, and every sample by its name.
fn parse(page: &str) -> (HashMap<&str, &str>, BTreeSet<&str>) {
    let types = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let samples = page
        .lines()
        .filter_map(|line| Some(line.split_once('{')?.0))
        .collect();
    (types, samples)
}

/// Every word of `text` that begins like a metric of ours.
fn metrics_named_in(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c| !is_part(c))
        .filter(|word| {
            word.starts_with("vllm:") || word.starts_with("izar:") || word.starts_with("process_")
        })
        .collect()
}

#[tokio::test]
async fn metrics_have_vllms_names_types_and_labels() {
    let harness = Harness::new(saying("ok"));
    let page = harness.get("/metrics").await;
    assert_eq!(
        page.headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let (types, _) = parse(&page.text);
    for (name, kind) in VLLM {
        assert_eq!(types.get(name), Some(&kind), "{name}");
    }
    for line in page.text.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.contains("model_name=\"mock\",engine=\"0\""), "{line}");
    }
    assert!(page.text.contains("block_size=\"16\",num_gpu_blocks=\""));
}

#[tokio::test]
async fn every_query_of_dashboard_and_alerts_names_a_metric_that_exists() {
    let harness = Harness::new(saying("ok"));
    let page = harness.get("/metrics").await.text;
    let (_, samples) = parse(&page);
    for path in CHARTS {
        let text = repository(path);
        let named = metrics_named_in(&text);
        assert!(named.len() > 5, "{path}");
        for metric in named {
            assert!(samples.contains(metric), "{path}: {metric}");
        }
    }
    let dashboard: Value = serde_json::from_str(&repository(CHARTS[0])).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let queries: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().expect("a query"))
        .collect();
    assert!(queries.len() > 30);
    for query in queries {
        assert!(!metrics_named_in(query).is_empty(), "{query}");
        assert_eq!(
            query.matches('(').count(),
            query.matches(')').count(),
            "{query}"
        );
    }
}

#[tokio::test]
async fn operators_manual_names_every_metric_and_no_other() {
    let harness = Harness::new(saying("ok"));
    let page = harness.get("/metrics").await.text;
    let (types, samples) = parse(&page);
    let manual = repository("docs/operations.md");
    let named = metrics_named_in(&manual);
    for metric in types.keys() {
        assert!(named.contains(metric), "docs/operations.md lacks {metric}");
    }
    for metric in named {
        assert!(
            types.contains_key(metric) || samples.contains(metric),
            "docs/operations.md: {metric}"
        );
    }
}

const IDLE: [&str; 7] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "izar:ring_slots_in_use",
    "izar:ring_sequences_pending",
    "izar:ring_input_used_bytes",
    "izar:http_requests_in_flight",
];

async fn assert_idle(harness: &Harness) {
    harness.until_idle().await;
    for name in IDLE {
        let mut value = f64::NAN;
        // The engine publishes its gauges a moment after the last slot is free.
        for _ in 0..400 {
            value = harness.metric(name).await;
            if value == 0.0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(value, 0.0, "{name}");
    }
}

#[tokio::test]
async fn gauges_are_zero_before_the_first_request_and_after_the_last() {
    let harness = Harness::new(saying("abc"));
    assert_idle(&harness).await;
    for extra in [json!({}), json!({"n": 3}), json!({"stream": true})] {
        harness.chat(extra).await;
    }
    assert_idle(&harness).await;
}

#[tokio::test]
async fn counters_and_gauges_agree_after_everybody_has_left_at_once() {
    let mut mock = hanging("abcd");
    mock.max_num_seqs = 8;
    let harness = Harness::new(mock);
    let mut running = Vec::new();
    for _ in 0..8 {
        running.push(harness.begin_stream().await);
    }
    let waiting: Vec<_> = (0..24)
        .map(|_| tokio::spawn(harness.post_chat(json!({"n": 2}))))
        .collect();
    while harness.client.stats().slots_in_use < 8 + 48 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(harness.metric("izar:http_requests_in_flight").await, 32.0);
    assert!(harness.metric("vllm:num_requests_running").await <= 8.0);
    drop(running);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    drop(waiting);
    assert_idle(&harness).await;

    let page = harness.get("/metrics").await.text;
    assert!(
        page.contains("engine=\"0\",finished_reason=\"abort\"} 56"),
        "{page}"
    );
    assert_eq!(harness.metric("vllm:request_success_total").await, 56.0);
    let prompt = harness.metric("vllm:prompt_tokens_total").await;
    let by_source = harness.metric("vllm:prompt_tokens_by_source_total").await;
    assert_eq!(prompt, by_source);
    // Eight prompts were computed, perhaps some more when rows came free.
    assert!(prompt > 0.0);
    // None of them finished, so nothing of them is in the histograms of finished requests.
    assert_eq!(
        harness
            .metric("vllm:e2e_request_latency_seconds_count")
            .await,
        0.0
    );
}

#[tokio::test]
async fn counters_add_up_across_metrics() {
    let harness = Harness::new(saying("abc"));
    for _ in 0..5 {
        harness.chat(json!({"n": 2})).await;
    }
    assert_idle(&harness).await;
    let metric = async |name: &str| harness.metric(name).await;
    let num_sequences = metric("vllm:request_success_total").await;
    assert_eq!(num_sequences, 10.0);
    for histogram in [
        "vllm:e2e_request_latency_seconds_count",
        "vllm:time_to_first_token_seconds_count",
        "vllm:request_generation_tokens_count",
        "vllm:request_params_max_tokens_count",
        "vllm:request_inference_time_seconds_count",
    ] {
        assert_eq!(metric(histogram).await, num_sequences, "{histogram}");
    }
    for histogram in [
        "vllm:request_prompt_tokens_count",
        "vllm:request_params_n_count",
        "vllm:request_max_num_generation_tokens_count",
    ] {
        assert_eq!(metric(histogram).await, 5.0, "{histogram}");
    }
    assert_eq!(
        metric("vllm:generation_tokens_total").await,
        metric("vllm:request_generation_tokens_sum").await
    );
    assert_eq!(
        metric("vllm:prompt_tokens_total").await,
        metric("vllm:request_prompt_tokens_sum").await
    );
    assert_eq!(
        metric("vllm:generation_tokens_total").await,
        metric("vllm:inter_token_latency_seconds_count").await + num_sequences
    );
}

#[tokio::test]
async fn engine_that_has_ended_runs_nothing() {
    let mut harness = Harness::new(hanging("ab"));
    let body = harness.begin_stream().await;
    harness.stop_engine();
    drop(body);
    assert_eq!(harness.metric("izar:engine_up").await, 0.0);
    assert_eq!(harness.metric("vllm:num_requests_running").await, 0.0);
    assert_eq!(harness.metric("izar:http_requests_in_flight").await, 0.0);
}
