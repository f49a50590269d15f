//! The Prometheus text format (version 0.0.4).

use std::fmt::Write;

use super::{Counter, EngineSnapshot, FinishedReason, Histogram, Metrics};

/// Gauges that are read at scrape time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gauges {
    /// The engine's numbers.
    pub engine: EngineSnapshot,
    /// Ring slots that hold a sequence of this front end.
    pub ring_slots_in_use: u64,
    /// Ring slots of this front end.
    pub ring_slots: u64,
    /// HTTP requests that generate, now.
    pub requests_in_flight: u64,
    /// Whether the engine is ready and alive.
    pub engine_up: bool,
}

struct Page {
    out: String,
    /// `model_name="…",engine="0"`.
    labels: String,
}

/// Renders everything as one page, labelled with `model_name`.
pub fn render(metrics: &Metrics, gauges: &Gauges, model_name: &str) -> String {
    let escaped = model_name
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    let mut page = Page {
        out: String::with_capacity(16 * 1024),
        labels: format!("model_name=\"{escaped}\",engine=\"0\""),
    };
    page.engine(&gauges.engine);
    page.tokens(metrics);
    page.latencies(metrics);
    page.requests(metrics);
    page.ours(metrics, gauges);
    page.out
}

impl Page {
    fn engine(&mut self, e: &EngineSnapshot) {
        self.gauge(
            "vllm:num_requests_running",
            "Sequences in the running batch",
            e.num_running as f64,
        );
        self.gauge(
            "vllm:num_requests_waiting",
            "Sequences waiting for a place in the batch",
            e.num_waiting as f64,
        );
        self.gauge(
            "vllm:kv_cache_usage_perc",
            "Share of KV blocks in use, 0 to 1",
            e.kv_cache_usage,
        );
        self.count(
            "vllm:prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache",
            e.prefix_cache_queries,
        );
        self.count(
            "vllm:prefix_cache_hits",
            "Prompt tokens found in the prefix cache",
            e.prefix_cache_hits,
        );
        self.count(
            "vllm:num_preemptions",
            "Sequences preempted",
            e.num_preemptions,
        );
        self.head("vllm:cache_config_info", "gauge", "Shape of the KV cache");
        let (blocks, size) = (e.num_kv_blocks, e.block_size);
        let _ = writeln!(
            self.out,
            "vllm:cache_config_info{{{},block_size=\"{size}\",num_gpu_blocks=\"{blocks}\"}} 1",
            self.labels
        );
    }

    fn tokens(&mut self, m: &Metrics) {
        self.counter(
            "vllm:prompt_tokens",
            "Prompt tokens of submitted requests",
            &m.prompt_tokens,
        );
        self.counter(
            "vllm:prompt_tokens_cached",
            "Prompt tokens whose KV came from the prefix cache",
            &m.prompt_tokens_cached,
        );
        self.counter(
            "vllm:generation_tokens",
            "Tokens generated",
            &m.generation_tokens,
        );
    }

    fn latencies(&mut self, m: &Metrics) {
        self.histogram(
            "vllm:time_to_first_token_seconds",
            "Request received to first token, server's clock",
            &m.time_to_first_token,
        );
        self.histogram(
            "vllm:inter_token_latency_seconds",
            "Gap between two output tokens, engine's clock",
            &m.inter_token_latency,
        );
        let help = "Per sequence: (end to end - first token) / (output tokens - 1)";
        self.histogram(
            "vllm:request_time_per_output_token_seconds",
            help,
            &m.time_per_output_token,
        );
        self.histogram(
            "vllm:e2e_request_latency_seconds",
            "Request received to last token, server's clock",
            &m.e2e_latency,
        );
        self.histogram(
            "vllm:request_queue_time_seconds",
            "Request received to claimed by the scheduler",
            &m.queue_time,
        );
        self.histogram(
            "vllm:request_prefill_time_seconds",
            "Claimed to first token",
            &m.prefill_time,
        );
        self.histogram(
            "vllm:request_decode_time_seconds",
            "First token to last token",
            &m.decode_time,
        );
        self.histogram(
            "vllm:request_inference_time_seconds",
            "Claimed to last token",
            &m.inference_time,
        );
    }

    fn requests(&mut self, m: &Metrics) {
        self.head(
            "vllm:request_success_total",
            "counter",
            "Sequences finished, by reason",
        );
        for reason in FinishedReason::ALL {
            let (labels, label, count) = (
                &self.labels,
                reason.label(),
                m.finished[reason as usize].get(),
            );
            let _ = writeln!(
                self.out,
                "vllm:request_success_total{{{labels},finished_reason=\"{label}\"}} {count}"
            );
        }
        self.histogram(
            "vllm:request_prompt_tokens",
            "Prompt length of a request",
            &m.request_prompt_tokens,
        );
        self.histogram(
            "vllm:request_generation_tokens",
            "Output length of a sequence",
            &m.request_generation_tokens,
        );
        self.histogram(
            "vllm:request_params_n",
            "`n` of a request",
            &m.request_params_n,
        );
        self.histogram(
            "vllm:request_params_max_tokens",
            "Limit on the output of a sequence",
            &m.request_params_max_tokens,
        );
    }

    fn ours(&mut self, m: &Metrics, g: &Gauges) {
        self.counter(
            "izar:admission_rejections",
            "Requests refused because no ring slot was free",
            &m.admission_rejections,
        );
        self.gauge(
            "izar:ring_slots_in_use",
            "Ring slots that hold a sequence",
            g.ring_slots_in_use as f64,
        );
        self.gauge(
            "izar:ring_slots",
            "Ring slots of this front end",
            g.ring_slots as f64,
        );
        self.gauge(
            "izar:http_requests_in_flight",
            "HTTP requests that are generating",
            g.requests_in_flight as f64,
        );
        self.gauge(
            "izar:engine_up",
            "1 while the engine is ready and its heart beats",
            f64::from(u8::from(g.engine_up)),
        );
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.out, "{name}{{{}}} {value}", self.labels);
    }

    fn count(&mut self, name: &str, help: &str, value: u64) {
        let name = format!("{name}_total");
        self.head(&name, "counter", help);
        let _ = writeln!(self.out, "{name}{{{}}} {value}", self.labels);
    }

    fn counter(&mut self, name: &str, help: &str, counter: &Counter) {
        self.count(name, help, counter.get());
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let Self { out, labels } = self;
        let (sum, count) = histogram.cumulative(|bound, count| {
            let _ = if bound.is_finite() {
                writeln!(out, "{name}_bucket{{{labels},le=\"{bound:?}\"}} {count}")
            } else {
                writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")
            };
        });
        let _ = writeln!(
            out,
            "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_one_type_line_per_name_and_a_value_on_every_sample() {
        let metrics = Metrics::default();
        metrics.time_to_first_token.observe(2_000_000);
        let page = render(&metrics, &Gauges::default(), "a\"b");
        let mut names = std::collections::HashSet::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(names.insert(rest.to_owned()), "{line}");
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').expect("name and value");
                assert!(
                    value.parse::<f64>().is_ok() && name.contains("model_name=\"a\\\"b\""),
                    "{line}"
                );
            }
        }
        assert!(page.contains("vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",engine=\"0\",le=\"0.005\"} 1"), "{page}");
        assert!(page.contains(
            "vllm:time_to_first_token_seconds_sum{model_name=\"a\\\"b\",engine=\"0\"} 0.002"
        ));
    }

    #[test]
    fn every_finish_reason_is_there_from_the_start() {
        let page = render(&Metrics::default(), &Gauges::default(), "m");
        for reason in ["stop", "length", "abort", "error"] {
            assert!(page.contains(&format!("finished_reason=\"{reason}\"}} 0")));
        }
    }
}
