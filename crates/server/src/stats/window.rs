//! Rates and latencies over the last seconds, from what the registry's counters and histograms have grown by.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::INTERVAL;
use crate::metrics::{Distribution, Gauges, Metrics};
use crate::process::HostCpu;

/// How far back rates reach.
const WINDOW: Duration = Duration::from_secs(10);
/// Points that span it.
const NUM_POINTS: usize = (WINDOW.as_millis() / INTERVAL.as_millis()) as usize + 1;

/// Counters at one moment.
#[derive(Debug, Clone)]
pub struct Point {
    at: Instant,
    generation_tokens: u64,
    prompt_tokens: u64,
    sequences: u64,
    steps: u64,
    host: Option<HostCpu>,
    process_cpu_seconds: Option<f64>,
    ttft: Distribution,
    itl: Distribution,
    tpot: Distribution,
}

/// The points of the last seconds, oldest first.
#[derive(Debug, Default)]
pub struct Window(VecDeque<Point>);

/// What happened between two points. Rates are a second's, latencies in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// From one point to the other.
    pub seconds: f64,
    /// Tokens generated.
    pub tokens_per_second: f64,
    /// Prompt tokens counted.
    pub prompt_tokens_per_second: f64,
    /// Sequences ended, however.
    pub requests_per_second: f64,
    /// Engine steps.
    pub steps_per_second: f64,
    /// Busy share of the host's processors, 0 to 1.
    pub host_cpu: Option<f64>,
    /// Processors' worth of time this process took.
    pub process_cpus: Option<f64>,
    /// Time to first token.
    pub ttft: Latency,
    /// Gaps between tokens.
    pub itl: Latency,
    /// Time per output token.
    pub tpot: Latency,
}

/// A latency's distribution, as far as its histogram's buckets tell.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latency {
    /// Observations.
    pub count: u64,
    /// Mean, median and percentiles; none where nothing was observed.
    pub figures: Option<Figures>,
}

/// See [`Latency`]. Seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Sum over count.
    pub mean: f64,
    /// Half of all are below.
    pub p50: f64,
    /// Nine of ten are below.
    pub p90: f64,
    /// All but one of a hundred are below.
    pub p99: f64,
}

impl Point {
    /// Counters as they were at `at`.
    pub fn new(at: Instant, metrics: &Metrics, gauges: &Gauges) -> Self {
        Self {
            at,
            generation_tokens: metrics.generation_tokens.get(),
            prompt_tokens: metrics.prompt_tokens.get(),
            sequences: metrics.finished.iter().map(|counter| counter.get()).sum(),
            steps: gauges.engine.num_steps,
            host: gauges.host,
            process_cpu_seconds: gauges.process.map(|process| process.cpu_seconds),
            ttft: metrics.time_to_first_token.distribution(),
            itl: metrics.inter_token_latency.distribution(),
            tpot: metrics.time_per_output_token.distribution(),
        }
    }

    /// What has happened since `earlier`.
    fn since(&self, earlier: &Self) -> Rates {
        let seconds = (self.at - earlier.at).as_secs_f64().max(1e-9);
        let rate = |counter: fn(&Self) -> u64| {
            counter(self).saturating_sub(counter(earlier)) as f64 / seconds
        };
        Rates {
            seconds,
            tokens_per_second: rate(|p| p.generation_tokens),
            prompt_tokens_per_second: rate(|p| p.prompt_tokens),
            requests_per_second: rate(|p| p.sequences),
            steps_per_second: rate(|p| p.steps),
            host_cpu: self
                .host
                .zip(earlier.host)
                .and_then(|(now, then)| busy_share(&now, &then)),
            process_cpus: self
                .process_cpu_seconds
                .zip(earlier.process_cpu_seconds)
                .map(|(now, then)| (now - then).max(0.0) / seconds),
            ttft: Latency::between(&earlier.ttft, &self.ttft),
            itl: Latency::between(&earlier.itl, &self.itl),
            tpot: Latency::between(&earlier.tpot, &self.tpot),
        }
    }
}

/// None where the kernel's ticks have not moved.
fn busy_share(now: &HostCpu, then: &HostCpu) -> Option<f64> {
    let busy = now.busy_seconds - then.busy_seconds;
    let all = busy + now.idle_seconds - then.idle_seconds;
    (all > 0.0).then(|| (busy / all).clamp(0.0, 1.0))
}

impl Window {
    /// Adds the latest point and forgets those that are too old.
    pub fn push(&mut self, point: Point) {
        if self.0.len() == NUM_POINTS {
            self.0.pop_front();
        }
        self.0.push_back(point);
    }

    /// Between the last two points; none until there are two.
    pub fn now(&self) -> Option<Rates> {
        let before = self.0.len().checked_sub(2)?;
        Some(self.0.back()?.since(&self.0[before]))
    }

    /// Over all of it; none until there are two points.
    pub fn whole(&self) -> Option<Rates> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        (self.0.len() > 1).then(|| last.since(first))
    }
}

impl Latency {
    /// What was observed after `earlier` and until `later`, of one histogram.
    fn between(earlier: &Distribution, later: &Distribution) -> Self {
        let counts: Vec<u64> = later
            .counts
            .iter()
            .zip(&earlier.counts)
            .map(|(later, earlier)| later.saturating_sub(*earlier))
            .collect();
        let count = counts.iter().sum();
        let quantile = |share: f64| quantile(&later.bounds, &counts, share * count as f64);
        Self {
            count,
            figures: (count > 0).then(|| Figures {
                mean: (later.sum - earlier.sum).max(0.0) / count as f64,
                p50: quantile(0.5),
                p90: quantile(0.9),
                p99: quantile(0.99),
            }),
        }
    }
}

/// The value that `rank` observations do not exceed, those in a bucket taken to be spread evenly over it. Beyond the last bound, that bound.
fn quantile(bounds: &[f64], counts: &[u64], rank: f64) -> f64 {
    let (mut below, mut lower) = (0.0, 0.0);
    for (&bound, &count) in bounds.iter().zip(counts) {
        let count = count as f64;
        if count > 0.0 && below + count >= rank {
            return lower + (bound - lower) * ((rank - below) / count).max(0.0);
        }
        (below, lower) = (below + count, bound);
    }
    lower
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distribution(counts: [u64; 4], sum: f64) -> Distribution {
        Distribution {
            bounds: vec![1.0, 2.0, 4.0],
            counts: counts.to_vec(),
            sum,
        }
    }

    #[test]
    fn percentiles_are_of_what_was_observed_in_between() {
        let (earlier, later) = (
            distribution([100, 0, 0, 7], 50.0),
            distribution([100, 10, 10, 7], 80.0),
        );
        let latency = Latency::between(&earlier, &later);
        assert_eq!(latency.count, 20);
        let figures = latency.figures.expect("some");
        assert_eq!((figures.mean, figures.p50), (1.5, 2.0));
        assert!((figures.p90 - 3.6).abs() < 1e-9, "{figures:?}");
        assert_eq!(Latency::between(&later, &later), Latency::default());
    }

    #[test]
    fn beyond_the_last_bound_is_the_last_bound() {
        let none = distribution([0; 4], 0.0);
        let figures = Latency::between(&none, &distribution([0, 0, 0, 3], 300.0)).figures;
        let figures = figures.expect("some");
        assert_eq!((figures.p50, figures.p99, figures.mean), (4.0, 4.0, 100.0));
    }

    #[test]
    fn window_reaches_ten_seconds_back_and_no_further() {
        let (metrics, start) = (Metrics::new(100), Instant::now());
        let mut window = Window::default();
        assert!(window.now().is_none());
        for tick in 0..100_u32 {
            metrics.generation_tokens.add(u64::from(tick));
            window.push(Point::new(
                start + tick * INTERVAL,
                &metrics,
                &Gauges::default(),
            ));
            assert_eq!(window.whole().is_some(), tick > 0);
        }
        let (now, whole) = (window.now().expect("two"), window.whole().expect("two"));
        assert_eq!((now.seconds, now.tokens_per_second), (0.25, 99.0 * 4.0));
        assert_eq!(whole.seconds, 10.0);
        let sum: u32 = (60..100).sum();
        assert_eq!(whole.tokens_per_second, f64::from(sum) / 10.0);
        assert_eq!((now.host_cpu, now.process_cpus), (None, None));
    }
}
