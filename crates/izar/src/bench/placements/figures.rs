//! What is known of a stretch of steps.

use izar_engine::driver::{StepRecord, StepTimes};
use serde_json::{Value, json};

/// Windows in which the share of time that the device computes is counted.
const WINDOW_NS: u64 = 20_000_000;

/// Means over the steps of one run; see [`super`] for the names. Microseconds unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    pub num_steps: usize,
    pub t1_us: f64,
    pub t2_us: f64,
    pub t3_us: f64,
    pub t4_us: f64,
    pub t5_us: f64,
    /// From the end of a step to the start of the next.
    pub exposed_us: f64,
    /// From the end of a step to the end of the next.
    pub period_us: f64,
    pub tokens_per_s: f64,
    /// Blocks that sequences own when a step has run.
    pub blocks_allocated: f64,
    /// Blocks that hold tokens by then.
    pub blocks_used: f64,
    /// The most that were owned and not used after any step.
    pub most_unused: u32,
    /// Share of the time that a step runs: over all windows, and in the one with the least.
    pub busy_mean: f64,
    pub busy_least: f64,
    pub num_windows: usize,
}

impl Figures {
    /// Figures of `steps`, in each of which `batch` sequences decode; `times` are of about the same steps.
    pub fn new(batch: u32, times: &StepTimes, steps: &[StepRecord]) -> Self {
        let us = |ns: u64| ns as f64 / 1e3 / times.num_steps.max(1) as f64;
        let (first, last) = (&steps[0], &steps[steps.len() - 1]);
        let pairs = (steps.len() - 1) as f64;
        let period_us = (last.finished_ns - first.finished_ns) as f64 / 1e3 / pairs;
        let gaps = steps
            .windows(2)
            .map(|pair| pair[1].started_ns.saturating_sub(pair[0].finished_ns));
        let mean = |blocks: fn(&StepRecord) -> u32| {
            steps
                .iter()
                .map(|step| f64::from(blocks(step)))
                .sum::<f64>()
                / steps.len() as f64
        };
        let unused = |step: &StepRecord| step.blocks_allocated.saturating_sub(step.blocks_used);
        let busy = busy_shares(steps);
        Self {
            num_steps: steps.len(),
            t1_us: us(times.planning_ns.saturating_sub(times.filling_ns)),
            t2_us: us(times.filling_ns + times.launching_ns),
            t3_us: us(times.forward_ns),
            t4_us: us(times.sampling_ns),
            t5_us: us(times.publishing_ns),
            exposed_us: gaps.sum::<u64>() as f64 / 1e3 / pairs,
            period_us,
            tokens_per_s: f64::from(batch) * 1e6 / period_us,
            blocks_allocated: mean(|step| step.blocks_allocated),
            blocks_used: mean(|step| step.blocks_used),
            most_unused: steps.iter().map(unused).max().unwrap_or(0),
            busy_mean: busy.iter().sum::<f64>() / busy.len().max(1) as f64,
            busy_least: busy.iter().copied().fold(1.0, f64::min),
            num_windows: busy.len(),
        }
    }

    /// Medians over runs, figure by figure.
    pub fn median(runs: &[Self]) -> Self {
        let middle = |figure: fn(&Self) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Self {
            num_steps: runs[0].num_steps,
            t1_us: middle(|f| f.t1_us),
            t2_us: middle(|f| f.t2_us),
            t3_us: middle(|f| f.t3_us),
            t4_us: middle(|f| f.t4_us),
            t5_us: middle(|f| f.t5_us),
            exposed_us: middle(|f| f.exposed_us),
            period_us: middle(|f| f.period_us),
            tokens_per_s: middle(|f| f.tokens_per_s),
            blocks_allocated: middle(|f| f.blocks_allocated),
            blocks_used: middle(|f| f.blocks_used),
            most_unused: runs.iter().map(|f| f.most_unused).max().unwrap_or(0),
            busy_mean: middle(|f| f.busy_mean),
            busy_least: middle(|f| f.busy_least),
            num_windows: runs[0].num_windows,
        }
    }

    /// For the file.
    pub fn to_json(self, name: &str) -> Value {
        json!({"variant": name, "steps": self.num_steps, "t1_us": self.t1_us, "t2_us": self.t2_us, "t3_us": self.t3_us,
            "t4_us": self.t4_us, "t5_us": self.t5_us, "exposed_us": self.exposed_us, "period_us": self.period_us,
            "tokens_per_s": self.tokens_per_s, "kv_blocks_allocated": self.blocks_allocated,
            "kv_blocks_used": self.blocks_used, "most_unused_blocks": self.most_unused, "busy_mean": self.busy_mean,
            "busy_least": self.busy_least, "windows_of_20_ms": self.num_windows})
    }
}

/// By whole window from the start of the first step on, the share of it in which a step runs. Where the steps fill none, one
/// share of all their time.
fn busy_shares(steps: &[StepRecord]) -> Vec<f64> {
    let (begun, ended) = (steps[0].started_ns, steps[steps.len() - 1].finished_ns);
    let window = WINDOW_NS.min(ended - begun).max(1);
    let mut busy = vec![0; ((ended - begun) / window) as usize];
    for step in steps {
        let (mut from, to) = (step.started_ns - begun, step.finished_ns - begun);
        while from < to {
            let idx = from / window;
            let end = to.min((idx + 1) * window);
            if let Some(ns) = busy.get_mut(idx as usize) {
                *ns += end - from;
            }
            from = end;
        }
    }
    let share = |&ns: &u64| (ns as f64 / window as f64).min(1.0);
    busy.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(started_ms: u64, finished_ms: u64, allocated: u32, used: u32) -> StepRecord {
        StepRecord {
            step: 0,
            num_entries: 2,
            num_tokens: 2,
            num_preempted: 0,
            blocks_allocated: allocated,
            blocks_used: used,
            started_ns: started_ms * 1_000_000,
            finished_ns: finished_ms * 1_000_000,
            plan: 0,
        }
    }

    #[test]
    fn figures_follow_from_the_steps() {
        let steps = [
            step(100, 110, 3, 3),
            step(115, 135, 5, 3),
            step(135, 141, 4, 4),
        ];
        let figures = Figures::new(2, &StepTimes::default(), &steps);
        assert_eq!(figures.period_us, 15_500.0);
        assert_eq!(figures.exposed_us, 2500.0);
        assert_eq!((figures.blocks_allocated, figures.most_unused), (4.0, 2));
        // 100 to 120: 10 + 5 ms; 120 to 140: all of it; the rest is no whole window.
        assert_eq!(figures.num_windows, 2);
        assert_eq!((figures.busy_mean, figures.busy_least), (0.875, 0.75));
    }

    #[test]
    fn short_runs_have_one_window() {
        let figures = Figures::new(
            2,
            &StepTimes::default(),
            &[step(1, 4, 1, 1), step(5, 6, 1, 1)],
        );
        assert_eq!((figures.num_windows, figures.busy_mean), (1, 0.8));
    }
}
