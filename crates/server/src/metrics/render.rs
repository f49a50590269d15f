//! The walk over all metrics: which there are, what they are called and what they mean.

use izar_transport::client::{ClientStats, EngineHealth, StepStats};

use super::page::Page;
use super::{Distribution, EngineSnapshot, FinishedReason, Gauges, Metrics, SLOT_STATES, Sink};
use crate::error::Shortage;
use crate::process::{HostCpu, ProcessStats};

/// Renders everything as one page for Prometheus, labelled with `model_name`.
pub fn render(metrics: &Metrics, gauges: &Gauges, model_name: &str) -> String {
    let mut page = Page::new(model_name);
    walk(&mut page, metrics, gauges);
    page.finish()
}

/// Tells `sink` everything, in an order that does not change.
pub fn walk(sink: &mut impl Sink, metrics: &Metrics, gauges: &Gauges) {
    engine(sink, &gauges.engine);
    tokens(sink, metrics);
    latencies(sink, metrics);
    requests(sink, metrics);
    steps(sink, &gauges.engine.steps);
    front_end(sink, metrics, gauges);
    ring(sink, &gauges.ring);
    slots(sink, gauges);
    if let Some(stats) = &gauges.process {
        process(sink, stats);
    }
    if let Some(host) = &gauges.host {
        host_cpu(sink, host);
    }
}

fn engine(sink: &mut impl Sink, e: &EngineSnapshot) {
    let waiting = e.num_waiting as f64;
    sink.gauge(
        "vllm:num_requests_running",
        "Sequences in the running batch",
        e.num_running as f64,
    );
    sink.gauge(
        "vllm:num_requests_waiting",
        "Sequences waiting for a place in the batch",
        waiting,
    );
    let name = "vllm:num_requests_waiting_by_reason";
    sink.head(
        name,
        "gauge",
        "Sequences waiting, by what for: all of them for room",
    );
    sink.sample(name, "reason=\"capacity\"", waiting);
    sink.sample(name, "reason=\"deferred\"", 0.0);
    sink.gauge(
        "vllm:kv_cache_usage_perc",
        "Share of KV blocks in use, 0 to 1",
        e.num_kv_blocks_owned as f64 / e.num_kv_blocks.max(1) as f64,
    );
    sink.counter(
        "vllm:prefix_cache_queries_total",
        "Prompt tokens looked up in the prefix cache",
        e.prefix_cache_queries as f64,
    );
    sink.counter(
        "vllm:prefix_cache_hits_total",
        "Prompt tokens found in the prefix cache",
        e.prefix_cache_hits as f64,
    );
    sink.counter(
        "vllm:num_preemptions_total",
        "Sequences preempted",
        e.num_preemptions as f64,
    );
    let (blocks, size) = (e.num_kv_blocks, e.block_size);
    sink.head("vllm:cache_config_info", "gauge", "Shape of the KV cache");
    sink.sample(
        "vllm:cache_config_info",
        &format!("block_size=\"{size}\",num_gpu_blocks=\"{blocks}\""),
        1.0,
    );
    sink.head(
        "izar:kv_blocks",
        "gauge",
        "KV blocks: of sequences, holding reusable prefixes only, free",
    );
    let free = blocks.saturating_sub(e.num_kv_blocks_owned + e.num_kv_blocks_cached);
    for (state, count) in [
        ("owned", e.num_kv_blocks_owned),
        ("cached", e.num_kv_blocks_cached),
        ("free", free),
    ] {
        sink.sample(
            "izar:kv_blocks",
            &format!("state=\"{state}\""),
            count as f64,
        );
    }
    sink.gauge(
        "izar:max_num_seqs",
        "Most sequences in the running batch",
        e.max_num_seqs as f64,
    );
}

fn tokens(sink: &mut impl Sink, m: &Metrics) {
    sink.counter(
        "vllm:prompt_tokens_total",
        "Tokens of prompts, counted when the first token of an answer comes",
        m.prompt_tokens.get() as f64,
    );
    let name = "vllm:prompt_tokens_by_source_total";
    sink.head(
        name,
        "counter",
        "Tokens of prompts, counted when the answer has ended, by where their KV came from",
    );
    for (source, count) in [
        ("local_compute", m.prompt_tokens_computed.get()),
        ("local_cache_hit", m.prompt_tokens_cached.get()),
        ("external_kv_transfer", 0),
    ] {
        sink.sample(name, &format!("source=\"{source}\""), count as f64);
    }
    sink.counter(
        "vllm:prompt_tokens_cached_total",
        "Tokens of prompts whose KV came from the prefix cache",
        m.prompt_tokens_cached.get() as f64,
    );
    sink.counter(
        "vllm:generation_tokens_total",
        "Tokens generated",
        m.generation_tokens.get() as f64,
    );
}

fn latencies(sink: &mut impl Sink, m: &Metrics) {
    for (name, help, histogram) in [
        (
            "vllm:time_to_first_token_seconds",
            "Request received to first token, server's clock",
            &m.time_to_first_token,
        ),
        (
            "vllm:inter_token_latency_seconds",
            "Gap between two output tokens, engine's clock",
            &m.inter_token_latency,
        ),
        (
            "vllm:request_time_per_output_token_seconds",
            "Per sequence: (end to end - first token) / (output tokens - 1)",
            &m.time_per_output_token,
        ),
        (
            "vllm:e2e_request_latency_seconds",
            "Request received to last token, server's clock",
            &m.e2e_latency,
        ),
        (
            "vllm:request_queue_time_seconds",
            "Request received to claimed by the scheduler",
            &m.queue_time,
        ),
        (
            "vllm:request_prefill_time_seconds",
            "Claimed to first token",
            &m.prefill_time,
        ),
        (
            "vllm:request_decode_time_seconds",
            "First token to last token",
            &m.decode_time,
        ),
        (
            "vllm:request_inference_time_seconds",
            "Claimed to last token",
            &m.inference_time,
        ),
    ] {
        sink.histogram(name, help, histogram.distribution());
    }
}

fn requests(sink: &mut impl Sink, m: &Metrics) {
    let name = "vllm:request_success_total";
    sink.head(name, "counter", "Sequences finished, by reason");
    for reason in FinishedReason::ALL {
        let label = format!("finished_reason=\"{}\"", reason.label());
        sink.sample(name, &label, m.finished[reason as usize].get() as f64);
    }
    for (name, help, histogram) in [
        (
            "vllm:request_prompt_tokens",
            "Prompt length of a request",
            &m.request_prompt_tokens,
        ),
        (
            "vllm:request_prefill_kv_computed_tokens",
            "Prompt length of a request without what came from the prefix cache",
            &m.request_prefill_computed_tokens,
        ),
        (
            "vllm:request_generation_tokens",
            "Output length of a sequence",
            &m.request_generation_tokens,
        ),
        (
            "vllm:request_max_num_generation_tokens",
            "Output length of the longest of a request's sequences",
            &m.request_max_generation_tokens,
        ),
        (
            "vllm:request_params_n",
            "`n` of a request",
            &m.request_params_n,
        ),
        (
            "vllm:request_params_max_tokens",
            "Limit on the output of a sequence",
            &m.request_params_max_tokens,
        ),
    ] {
        sink.histogram(name, help, histogram.distribution());
    }
}

fn steps(sink: &mut impl Sink, s: &StepStats) {
    sink.histogram(
        "vllm:iteration_tokens_total",
        "Tokens computed in a step",
        Distribution::of_steps(&s.tokens, &StepStats::TOKEN_BOUNDS, 1.0),
    );
    for (name, help, histogram) in [
        (
            "izar:step_gap_seconds",
            "End of a step to the start of the next, while there is work",
            &s.gap_ns,
        ),
        (
            "izar:step_planning_seconds",
            "The scheduler planning and launching a step",
            &s.planning_ns,
        ),
        (
            "izar:step_forward_seconds",
            "Forward pass of a step",
            &s.forward_ns,
        ),
        (
            "izar:step_sampling_seconds",
            "Sampling of a step",
            &s.sampling_ns,
        ),
        (
            "izar:step_publishing_seconds",
            "The scheduler publishing a step's tokens",
            &s.publishing_ns,
        ),
    ] {
        let distribution = Distribution::of_steps(histogram, &StepStats::TIME_BOUNDS_NS, 1e9);
        sink.histogram(name, help, distribution);
    }
}

fn front_end(sink: &mut impl Sink, m: &Metrics, g: &Gauges) {
    let name = "izar:admission_rejections_total";
    sink.head(name, "counter", "Requests refused for want of room");
    for shortage in Shortage::ALL {
        let count = m.admission_rejections[shortage as usize].get();
        let label = format!("reason=\"{}\"", shortage.label());
        sink.sample(name, &label, count as f64);
    }
    let name = "izar:http_responses_total";
    sink.head(name, "counter", "HTTP answers by status class");
    for (class, count) in (1..).zip(&m.http_responses) {
        sink.sample(name, &format!("status=\"{class}xx\""), count.get() as f64);
    }
    sink.gauge(
        "izar:http_requests_in_flight",
        "HTTP requests that are generating",
        g.requests_in_flight as f64,
    );
    sink.gauge(
        "izar:engine_up",
        "1 while the engine is ready and its heart beats",
        f64::from(u8::from(g.health == Some(EngineHealth::Ready))),
    );
    sink.gauge(
        "izar:engine_heartbeat_age_seconds",
        "Time since the engine's heart was last seen to beat",
        g.heartbeat_age.as_secs_f64(),
    );
    sink.head("izar:build_info", "gauge", "Version of this server");
    let version = env!("CARGO_PKG_VERSION");
    sink.sample("izar:build_info", &format!("version=\"{version}\""), 1.0);
}

fn ring(sink: &mut impl Sink, r: &ClientStats) {
    for (name, help, value) in [
        (
            "izar:ring_slots",
            "Ring slots of this front end",
            r.num_slots.into(),
        ),
        (
            "izar:ring_slots_in_use",
            "Ring slots that hold a sequence",
            r.slots_in_use.into(),
        ),
        (
            "izar:ring_sequences_pending",
            "Sequences whose first token has not come",
            r.num_pending,
        ),
        (
            "izar:ring_input_bytes",
            "Room for prompts in the ring",
            r.input_bytes,
        ),
        (
            "izar:ring_input_used_bytes",
            "Of which in use",
            r.input_used_bytes,
        ),
        (
            "izar:ring_output_bytes",
            "Room for outputs in the ring",
            r.output_bytes,
        ),
        (
            "izar:ring_output_used_bytes",
            "Of which in use",
            r.output_used_bytes,
        ),
    ] {
        sink.gauge(name, help, value as f64);
    }
    sink.counter(
        "izar:ring_polls_total",
        "Times the token reader has looked at the ring",
        r.num_polls as f64,
    );
    sink.counter(
        "izar:ring_polls_with_news_total",
        "Of which found something",
        r.num_polls_with_news as f64,
    );
}

fn process(sink: &mut impl Sink, stats: &ProcessStats) {
    sink.counter(
        "process_cpu_seconds_total",
        "User and system time of all threads",
        stats.cpu_seconds,
    );
    for (name, help, value) in [
        (
            "process_resident_memory_bytes",
            "Memory in RAM",
            stats.resident_bytes as f64,
        ),
        (
            "process_start_time_seconds",
            "Start of the process, Unix time",
            stats.start_time,
        ),
        (
            "process_open_fds",
            "Open file descriptors",
            stats.num_open_fds as f64,
        ),
    ] {
        sink.gauge(name, help, value);
    }
}

fn slots(sink: &mut impl Sink, gauges: &Gauges) {
    let name = "izar:ring_slots_by_state";
    sink.head(name, "gauge", "Ring slots of all front ends, by state");
    for ((_, label), count) in SLOT_STATES.into_iter().zip(gauges.num_slots_by_state()) {
        sink.sample(name, &format!("state=\"{label}\""), count as f64);
    }
}

fn host_cpu(sink: &mut impl Sink, host: &HostCpu) {
    let name = "izar:host_cpu_seconds_total";
    sink.head(
        name,
        "counter",
        "Time of all of this host's processors, whoever used it",
    );
    for (mode, seconds) in [("busy", host.busy_seconds), ("idle", host.idle_seconds)] {
        sink.sample(name, &format!("mode=\"{mode}\""), seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_one_type_line_per_name_and_a_value_on_every_sample() {
        let metrics = Metrics::new(100);
        metrics.time_to_first_token.observe(2_000_000);
        let mut gauges = Gauges {
            process: ProcessStats::read(),
            ..Gauges::default()
        };
        let steps = &mut gauges.engine.steps;
        steps.gap_ns.observe(&StepStats::TIME_BOUNDS_NS, 1_500);
        let page = render(&metrics, &gauges, "a\"b");
        let mut names = std::collections::HashSet::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().expect("a name");
                assert!(names.insert(name.to_owned()), "{line}");
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').expect("name and value");
                assert!(
                    value.parse::<f64>().is_ok() && name.contains("model_name=\"a\\\"b\""),
                    "{line}"
                );
            }
        }
        let labels = "model_name=\"a\\\"b\",engine=\"0\"";
        for sample in [
            format!("vllm:time_to_first_token_seconds_bucket{{{labels},le=\"0.005\"}} 1"),
            format!("vllm:time_to_first_token_seconds_sum{{{labels}}} 0.002"),
            format!("izar:step_gap_seconds_bucket{{{labels},le=\"1e-6\"}} 0"),
            format!("izar:step_gap_seconds_bucket{{{labels},le=\"2e-6\"}} 1"),
            format!("izar:step_gap_seconds_bucket{{{labels},le=\"+Inf\"}} 1"),
        ] {
            assert!(page.lines().any(|line| line == sample), "{sample}\n{page}");
        }
    }

    #[test]
    fn every_finish_reason_is_there_from_the_start() {
        let page = render(&Metrics::new(100), &Gauges::default(), "m");
        for reason in ["stop", "length", "abort", "error"] {
            assert!(page.contains(&format!("finished_reason=\"{reason}\"}} 0")));
        }
    }
}
