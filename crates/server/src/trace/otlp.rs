//! Spans as OTLP's JSON has them (opentelemetry-proto, `ExportTraceServiceRequest`): ids in hexadecimal, 64-bit integers as strings.

use serde_json::{Value, json};

use super::{Ended, RequestSpan};

/// `SPAN_KIND_SERVER`.
const KIND_SERVER: u32 = 2;
/// `STATUS_CODE_ERROR`.
const STATUS_ERROR: u32 = 2;

/// One ended span.
#[derive(Debug)]
pub struct Span(Value);

impl Span {
    /// What `request` came to at `ended_ns`, Unix time.
    pub fn new(request: &RequestSpan, ended: &Ended<'_>, ended_ns: u64) -> Self {
        let mut attributes = vec![
            text("http.request.method", ended.method),
            text("url.path", ended.path),
            int("http.response.status_code", ended.status.into()),
            text("gen_ai.request.id", ended.id),
        ];
        if ended.prompt_tokens > 0 {
            attributes.push(int("gen_ai.usage.prompt_tokens", ended.prompt_tokens));
            attributes.push(int(
                "gen_ai.usage.completion_tokens",
                ended.completion_tokens,
            ));
            let e2e_s = ended_ns.saturating_sub(request.began_ns) as f64 / 1e9;
            attributes.push(double("gen_ai.latency.e2e", e2e_s));
        }
        if let Some(us) = ended.first_token_us {
            attributes.push(double(
                "gen_ai.latency.time_to_first_token",
                us as f64 / 1e6,
            ));
        }
        let failed = ended.status >= 500 || !ended.whole;
        let mut span = json!({
            "traceId": format!("{:032x}", request.trace_id),
            "spanId": format!("{:016x}", request.span_id),
            "name": "llm_request",
            "kind": KIND_SERVER,
            "startTimeUnixNano": request.began_ns.to_string(),
            "endTimeUnixNano": ended_ns.to_string(),
            "attributes": attributes,
            "status": if failed { json!({"code": STATUS_ERROR}) } else { json!({}) },
        });
        if let Some(parent) = request.parent_id {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        Self(span)
    }
}

/// The body of one export.
pub fn body(service_name: &str, spans: Vec<Span>) -> String {
    let spans: Vec<Value> = spans.into_iter().map(|span| span.0).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", service_name)]},
        "scopeSpans": [{
            "scope": {"name": "izar", "version": env!("CARGO_PKG_VERSION")},
            "spans": spans,
        }],
    }]})
    .to_string()
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn int(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

fn double(key: &str, value: f64) -> Value {
    json!({"key": key, "value": {"doubleValue": value}})
}
