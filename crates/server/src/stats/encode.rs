//! Events as bytes (`docs/stats.md`). Encoded once, whoever and how many watch.

use std::fmt::Write;

use bytes::{Bytes, BytesMut};
use izar_transport::client::StepRecord;

use super::sample::Sample;
use super::window::{Latency, Rates};
use super::{INTERVAL, Live};
use crate::metrics::{Distribution, SLOT_STATES};
use crate::output::json::put_string;

/// Names of what [`put_step`] writes.
const STEP_FIELDS: &str = r#"["step","plan_start_us","plan_us","launch_us","start_us","forward_us","sample_us","publish_start_us","publish_us","gap_us","tokens","sequences"]"#;

/// Everything as of the last sample.
pub(super) fn snapshot(about: &str, live: &Live) -> Bytes {
    let (mut out, last) = (begin("snapshot", 32 * 1024), &live.last);
    let (seq, time_ms, interval_ms) = (live.seq, last.time_ms, INTERVAL.as_millis());
    let num_slots = last.slots.len();
    write(
        &mut out,
        format_args!("\"seq\":{seq},\"time_ms\":{time_ms},\"interval_ms\":{interval_ms},{about}"),
    );
    write(
        &mut out,
        format_args!(",\"num_slots\":{num_slots},\"slot_states\":["),
    );
    list(&mut out, SLOT_STATES, |out, (_, name)| {
        put_string(out, name);
    });
    let health = last.health;
    write(
        &mut out,
        format_args!("],\"step_fields\":{STEP_FIELDS},\"health\":\"{health}\",\"values\":{{"),
    );
    list(&mut out, &last.values, |out, (name, value)| {
        put_value(out, name, *value);
    });
    put(&mut out, "},\"histograms\":{");
    list(&mut out, &last.histograms, |out, (name, distribution)| {
        put_distribution(out, name, distribution);
    });
    put(&mut out, "}");
    put_rates(&mut out, live);
    put(&mut out, ",\"slots\":[");
    put_runs(&mut out, &[], &last.slots);
    put(&mut out, "],\"steps\":[");
    list(&mut out, &live.steps, put_step);
    put(&mut out, "]");
    finish(out)
}

/// What `sample` has that what was told before has not. Sequence number and window are the new ones already.
pub(super) fn delta(live: &Live, sample: &Sample) -> Bytes {
    let (mut out, last) = (begin("delta", 4 * 1024), &live.last);
    let (seq, time_ms) = (live.seq, sample.time_ms);
    write(
        &mut out,
        format_args!("\"seq\":{seq},\"time_ms\":{time_ms}"),
    );
    if sample.health != last.health {
        let health = sample.health;
        write(&mut out, format_args!(",\"health\":\"{health}\""));
    }
    put_changed_values(&mut out, last, sample);
    put_changed_histograms(&mut out, last, sample);
    put_rates(&mut out, live);
    if sample.slots != last.slots {
        put(&mut out, ",\"slots\":[");
        put_runs(&mut out, &last.slots, &sample.slots);
        put(&mut out, "]");
    }
    if !sample.steps.is_empty() {
        put(&mut out, ",\"steps\":[");
        list(&mut out, &sample.steps, put_step);
        put(&mut out, "]");
    }
    if sample.num_steps_missed > 0 {
        let missed = sample.num_steps_missed;
        write(&mut out, format_args!(",\"steps_missed\":{missed}"));
    }
    finish(out)
}

/// The last event.
pub(super) fn end(reason: &'static str) -> Bytes {
    let mut out = begin("end", 64);
    write(&mut out, format_args!("\"reason\":\"{reason}\""));
    finish(out)
}

fn begin(event: &str, capacity: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(capacity);
    write(&mut out, format_args!("event: {event}\ndata: {{"));
    out
}

fn finish(mut out: BytesMut) -> Bytes {
    put(&mut out, "}\n\n");
    out.freeze()
}

fn put(out: &mut BytesMut, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn write(out: &mut BytesMut, text: std::fmt::Arguments<'_>) {
    // Memory cannot be written to wrongly.
    let _ = out.write_fmt(text);
}

/// Writes each of `items`, separated by commas.
fn list<T>(
    out: &mut BytesMut,
    items: impl IntoIterator<Item = T>,
    put_item: impl Fn(&mut BytesMut, T),
) {
    for (idx, item) in items.into_iter().enumerate() {
        if idx > 0 {
            put(out, ",");
        }
        put_item(out, item);
    }
}

fn put_value(out: &mut BytesMut, name: &str, value: f64) {
    put_string(out, name);
    put(out, ":");
    put_number(out, Some(value));
}

fn put_number(out: &mut BytesMut, value: Option<f64>) {
    match value.filter(|value| value.is_finite()) {
        Some(value) => write(out, format_args!("{value}")),
        None => put(out, "null"),
    }
}

fn put_changed_values(out: &mut BytesMut, last: &Sample, sample: &Sample) {
    // The walk's order does not change, so neither do places, unless something has come or gone.
    let unchanged = |idx: usize, new: &(String, f64)| last.values.get(idx) == Some(new);
    let changed: Vec<_> = sample
        .values
        .iter()
        .enumerate()
        .filter(|(idx, new)| !unchanged(*idx, new))
        .map(|(_, new)| new)
        .collect();
    if !changed.is_empty() {
        put(out, ",\"values\":{");
        list(out, changed, |out, (name, value)| {
            put_value(out, name, *value);
        });
        put(out, "}");
    }
}

fn put_distribution(out: &mut BytesMut, name: &str, distribution: &Distribution) {
    put_string(out, name);
    put(out, ":{\"bounds\":[");
    list(out, &distribution.bounds, |out, bound| {
        put_number(out, Some(*bound));
    });
    put(out, "],\"counts\":[");
    list(out, &distribution.counts, |out, count| {
        write(out, format_args!("{count}"));
    });
    put(out, "],\"sum\":");
    put_number(out, Some(distribution.sum));
    put(out, "}");
}

fn put_changed_histograms(out: &mut BytesMut, last: &Sample, sample: &Sample) {
    let pairs = sample.histograms.iter().zip(&last.histograms);
    let changed: Vec<_> = pairs.filter(|(new, old)| new != old).collect();
    if changed.is_empty() {
        return;
    }
    put(out, ",\"histograms\":{");
    list(out, changed, |out, ((name, new), (_, old))| {
        put_string(out, name);
        put(out, ":{\"counts\":{");
        let counts = new.counts.iter().zip(&old.counts).enumerate();
        let changed = counts.filter(|(_, (new, old))| new != old);
        list(out, changed, |out, (idx, (count, _))| {
            write(out, format_args!("\"{idx}\":{count}"));
        });
        put(out, "},\"sum\":");
        put_number(out, Some(new.sum));
        put(out, "}");
    });
    put(out, "}");
}

fn put_rates(out: &mut BytesMut, live: &Live) {
    put(out, ",\"now\":");
    put_span(out, live.window.now().as_ref(), |rates| {
        vec![("itl", rates.itl)]
    });
    put(out, ",\"window\":");
    put_span(out, live.window.whole().as_ref(), |rates| {
        vec![
            ("ttft", rates.ttft),
            ("itl", rates.itl),
            ("tpot", rates.tpot),
        ]
    });
}

fn put_span(
    out: &mut BytesMut,
    rates: Option<&Rates>,
    latencies: impl Fn(&Rates) -> Vec<(&'static str, Latency)>,
) {
    let Some(rates) = rates else {
        return put(out, "null");
    };
    put(out, "{");
    let figures = [
        ("seconds", Some(rates.seconds)),
        ("tokens_per_second", Some(rates.tokens_per_second)),
        (
            "prompt_tokens_per_second",
            Some(rates.prompt_tokens_per_second),
        ),
        ("requests_per_second", Some(rates.requests_per_second)),
        ("steps_per_second", Some(rates.steps_per_second)),
        ("host_cpu", rates.host_cpu),
        ("process_cpus", rates.process_cpus),
    ];
    list(out, figures, |out, (name, value)| {
        put_rounded(out, name, value)
    });
    for (name, latency) in latencies(rates) {
        put(out, ",");
        put_latency(out, name, &latency);
    }
    put(out, "}");
}

fn put_latency(out: &mut BytesMut, name: &str, latency: &Latency) {
    let count = latency.count;
    write(out, format_args!("\"{name}\":{{\"count\":{count},"));
    let figures = latency.figures;
    let figures = [
        ("mean", figures.map(|it| it.mean)),
        ("p50", figures.map(|it| it.p50)),
        ("p90", figures.map(|it| it.p90)),
        ("p99", figures.map(|it| it.p99)),
    ];
    list(out, figures, |out, (name, value)| {
        put_rounded(out, name, value)
    });
    put(out, "}");
}

/// A figure to six places: microseconds, where it is seconds.
fn put_rounded(out: &mut BytesMut, name: &str, value: Option<f64>) {
    write(out, format_args!("\"{name}\":"));
    put_number(out, value.map(|value| (value * 1e6).round() / 1e6));
}

/// Runs of `first, count, state` of the slots whose state is not what it was.
fn put_runs(out: &mut BytesMut, old: &[u8], new: &[u8]) {
    let changed = |idx: usize| old.get(idx) != Some(&new[idx]);
    let (mut first, mut is_first_run) = (0, true);
    while first < new.len() {
        if !changed(first) {
            first += 1;
            continue;
        }
        let state = new[first];
        let count = (first..new.len())
            .take_while(|&idx| new[idx] == state && changed(idx))
            .count();
        let comma = if is_first_run { "" } else { "," };
        write(out, format_args!("{comma}{first},{count},{state}"));
        (first, is_first_run) = (first + count, false);
    }
}

fn put_step(out: &mut BytesMut, step: &StepRecord) {
    let at = |ns: u64| ns / 1000;
    // To a tenth of a microsecond: gaps may be shorter than one.
    let lasting = |ns: u64| (ns / 100) as f64 / 10.0;
    write(
        out,
        format_args!(
            "[{},{},{},{},{},{},{},{},{},{},{},{}]",
            step.step,
            at(step.planning_started_ns),
            lasting(step.planning_ns),
            lasting(step.launching_ns),
            at(step.started_ns),
            lasting(step.forward_ns),
            lasting(step.sampling_ns),
            at(step.publishing_started_ns),
            lasting(step.publishing_ns),
            lasting(step.gap_ns),
            step.num_tokens,
            step.num_sequences,
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(old: &[u8], new: &[u8]) -> String {
        let mut out = BytesMut::new();
        put_runs(&mut out, old, new);
        String::from_utf8(out.to_vec()).expect("digits")
    }

    #[test]
    fn runs_cover_what_has_changed_and_nothing_else() {
        assert_eq!(runs(&[], &[0, 0, 3, 3, 3, 0]), "0,2,0,2,3,3,5,1,0");
        assert_eq!(runs(&[0, 0, 3], &[0, 0, 3]), "");
        // A slot that has not changed ends a run, whatever its state.
        assert_eq!(runs(&[0, 3, 0, 0], &[3, 3, 3, 1]), "0,1,3,2,1,3,3,1,1");
    }

    #[test]
    fn numbers_are_json_whatever_they_are() {
        for (value, text) in [
            (0.0, "0"),
            (1e15, "1000000000000000"),
            (0.000_000_25, "0.00000025"),
            (f64::NAN, "null"),
            (f64::INFINITY, "null"),
        ] {
            let mut out = BytesMut::new();
            put_number(&mut out, Some(value));
            assert_eq!(&out[..], text.as_bytes());
        }
    }

    #[test]
    fn step_has_as_many_numbers_as_names() {
        let mut out = BytesMut::new();
        let step = StepRecord {
            step: 7,
            gap_ns: 1_234,
            ..StepRecord::default()
        };
        put_step(&mut out, &step);
        let numbers: Vec<f64> = serde_json::from_slice(&out).expect("JSON");
        let names: Vec<String> = serde_json::from_str(STEP_FIELDS).expect("JSON");
        assert_eq!(numbers.len(), names.len());
        let gap = names.iter().position(|name| name == "gap_us");
        assert_eq!(numbers[gap.expect("a name")], 1.2);
    }
}
