//! A page in the Prometheus text format (version 0.0.4).

use std::fmt::Write;

use super::sink::{Distribution, Sink};

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
}

impl Sink for Page {
    fn head(&mut self, name: &'static str, kind: &'static str, help: &str) {
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &'static str, label: &str, value: f64) {
        let (labels, comma) = (&self.labels, if label.is_empty() { "" } else { "," });
        let _ = writeln!(self.out, "{name}{{{labels}{comma}{label}}} {value}");
    }

    fn distribution(&mut self, name: &'static str, distribution: Distribution) {
        let (labels, mut total) = (&self.labels, 0);
        for (idx, count) in distribution.counts.iter().enumerate() {
            total += count;
            let _ = match distribution.bounds.get(idx) {
                Some(bound) => writeln!(
                    self.out,
                    "{name}_bucket{{{labels},le=\"{bound:?}\"}} {total}"
                ),
                None => writeln!(self.out, "{name}_bucket{{{labels},le=\"+Inf\"}} {total}"),
            };
        }
        let sum = distribution.sum;
        let _ = writeln!(
            self.out,
            "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {total}"
        );
    }
}
