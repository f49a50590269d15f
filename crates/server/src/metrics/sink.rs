//! Where a walk over the registry goes: a page for Prometheus, or a record of what has changed since the last one.

use izar_transport::client::StepHistogram;

/// Takes every metric in turn: its announcement, then its samples.
pub trait Sink {
    /// A metric of type `kind` (gauge, counter, histogram) follows.
    fn head(&mut self, name: &'static str, kind: &'static str, help: &str);

    /// A sample of the metric announced last, with `label`, such as `reason="x"`, or none.
    fn sample(&mut self, name: &'static str, label: &str, value: f64);

    /// The distribution of the histogram announced last.
    fn distribution(&mut self, name: &'static str, distribution: Distribution);

    /// A metric with one sample and no label of its own.
    fn gauge(&mut self, name: &'static str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.sample(name, "", value);
    }

    /// As [`Sink::gauge`], of a number that only grows.
    fn counter(&mut self, name: &'static str, help: &str, value: f64) {
        self.head(name, "counter", help);
        self.sample(name, "", value);
    }

    /// A histogram.
    fn histogram(&mut self, name: &'static str, help: &str, distribution: Distribution) {
        self.head(name, "histogram", help);
        self.distribution(name, distribution);
    }
}

/// How observations are distributed, in the unit that is printed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Distribution {
    /// Upper bounds, inclusive, rising.
    pub bounds: Vec<f64>,
    /// Observations by bucket, one more than bounds: the last holds what exceeds them all.
    pub counts: Vec<u64>,
    /// Sum of all observations.
    pub sum: f64,
}

impl Distribution {
    /// A histogram of the engine's with the upper bounds `bounds`; a printed unit is `scale` observed ones.
    pub fn of_steps(histogram: &StepHistogram, bounds: &[u64], scale: f64) -> Self {
        Self {
            bounds: bounds.iter().map(|&bound| bound as f64 / scale).collect(),
            counts: histogram.counts[..=bounds.len()].to_vec(),
            sum: histogram.sum as f64 / scale,
        }
    }
}
