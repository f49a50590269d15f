//! A page in the Prometheus text format (version 0.0.4).

use std::fmt::Write;

use izar_transport::client::StepHistogram;

use super::{Counter, Histogram};

/// A page being written; all samples carry the same labels and perhaps more.
pub struct Page {
    out: String,
    /// `model_name="…",engine="0"`.
    labels: String,
}

impl Page {
    /// An empty page for samples of `model_name`.
    pub fn new(model_name: &str) -> Self {
        let escaped = model_name
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        Self {
            out: String::with_capacity(32 * 1024),
            labels: format!("model_name=\"{escaped}\",engine=\"0\""),
        }
    }

    /// The text.
    pub fn finish(self) -> String {
        self.out
    }

    /// Announces a metric whose samples follow.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample with `label`, such as `reason="x"`, beside the page's own.
    pub fn sample(&mut self, name: &str, label: &str, value: f64) {
        let _ = writeln!(self.out, "{name}{{{},{label}}} {value}", self.labels);
    }

    /// A gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.out, "{name}{{{}}} {value}", self.labels);
    }

    /// A number that only grows; the name is given without `_total`.
    pub fn count(&mut self, name: &str, help: &str, value: f64) {
        let name = format!("{name}_total");
        self.head(&name, "counter", help);
        let _ = writeln!(self.out, "{name}{{{}}} {value}", self.labels);
    }

    /// As [`Page::count`].
    pub fn counter(&mut self, name: &str, help: &str, counter: &Counter) {
        self.count(name, help, counter.get() as f64);
    }

    /// A histogram of the server's.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let (sum, count) = histogram.cumulative(|bound, count| self.bucket(name, bound, count));
        self.totals(name, sum, count);
    }

    /// A histogram of the engine's with the upper bounds `bounds`; a printed unit is `scale` observed ones.
    pub fn steps(
        &mut self,
        name: &str,
        help: &str,
        histogram: &StepHistogram,
        bounds: &[u64],
        scale: f64,
    ) {
        self.head(name, "histogram", help);
        let mut total = 0;
        for (idx, &count) in histogram.counts.iter().take(bounds.len() + 1).enumerate() {
            total += count;
            let bound = bounds
                .get(idx)
                .map_or(f64::INFINITY, |&bound| bound as f64 / scale);
            self.bucket(name, bound, total);
        }
        self.totals(name, histogram.sum as f64 / scale, total);
    }

    fn bucket(&mut self, name: &str, bound: f64, count: u64) {
        let labels = &self.labels;
        let _ = if bound.is_finite() {
            writeln!(
                self.out,
                "{name}_bucket{{{labels},le=\"{bound:?}\"}} {count}"
            )
        } else {
            writeln!(self.out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")
        };
    }

    fn totals(&mut self, name: &str, sum: f64, count: u64) {
        let labels = &self.labels;
        let _ = writeln!(
            self.out,
            "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}"
        );
    }
}
