//! `izar bench replay`: do both placements generate the same?
//!
//! First a schedule of arrivals and cancellations, counted in rounds of the engine, is replayed three times, with a KV cache that is too
//! small for all, so that sequences are preempted:
//! - in `host-async`;
//! - in `host-async` with nothing overlapping: one step at a time as in `host-sync`, each token on the host before the next
//!   launch, but planned like the first. Plans and answers must be the same, bit for bit, whatever the step's size;
//! - in `host-sync`, which learns one step earlier what has stopped and so plans differently. Where results do not depend on the step
//!   (on the CPU, and on a GPU up to 64 tokens a step), every answer must still be the same; one that was cancelled may be cut at
//!   another token. On a GPU that holds for requests that were not preempted: tokens that were decoded are then computed again as
//!   part of a prompt, by other kernels.
//!
//! Then both placements run freely with the engine's own step size: all requests at once. Where the same request gets different tokens, the
//! first decision that differs is listed with its margin; above the tolerance that is a failure.

mod compare;
mod run;
mod schedule;

use std::fs;

use anyhow::{Context, Result, ensure};
use izar_engine::driver::{Overlap, Placement};
use izar_transport::client::FinishReason;
use serde_json::{Value, json};

use self::compare::{Contradictions, Divergence};
use self::run::{Run, Target};
use self::schedule::Schedule;
use super::engine::{Sizes, on_cuda};
use super::{open, write_json};
use crate::cli::BenchReplayArgs;

/// Most tokens of a step whose results do not depend on the step, on a GPU.
const INVARIANT_TOKENS: u32 = 64;

/// Prints a line for each run and every divergence; fails if runs differ that must not.
pub fn run(args: &BenchReplayArgs) -> Result<()> {
    let checkpoint = open(&args.model)?;
    let on_cuda = on_cuda(args.device)?;
    let schedule = schedule(args)?;
    let sizes = Sizes {
        max_model_len: schedule.max_len,
        max_num_seqs: Some(args.max_num_seqs),
        max_num_batched_tokens: Some(args.max_num_batched_tokens.max(args.max_num_seqs)),
        num_kv_blocks: Some(schedule.num_kv_blocks),
        prefix_caching: true,
    };
    let promise = match on_cuda {
        false => Promise::All,
        true if sizes.max_num_batched_tokens <= Some(INVARIANT_TOKENS) => Promise::Undisturbed,
        true => Promise::None,
    };
    let target = Target {
        checkpoint: &checkpoint,
        on_cuda,
        sizes,
    };
    println!(
        "{} requests, up to {} at once, {} KV blocks, {} tokens a step",
        schedule.requests.len(),
        args.max_num_seqs,
        schedule.num_kv_blocks,
        args.max_num_batched_tokens
    );
    let mut verdict = Verdict::default();
    let replayed = replay(&target, &schedule, promise, &mut verdict)?;
    let free = match args.no_free {
        true => Value::Null,
        false => {
            let sizes = Sizes {
                max_num_seqs: None,
                max_num_batched_tokens: args.free_num_batched_tokens,
                num_kv_blocks: None,
                ..sizes
            };
            run_freely(&Target { sizes, ..target }, &schedule, args, &mut verdict)?
        }
    };
    let figures = json!({"requests": schedule.requests.len(), "replayed": replayed, "free": free, "failures": verdict.0});
    write_json(args.model.json.as_deref(), &figures)?;
    ensure!(verdict.0.is_empty(), "{}", verdict.0.join("; "));
    Ok(())
}

/// Which answers must not depend on the plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// All.
    All,
    /// Those of requests that were not preempted.
    Undisturbed,
    /// None: results depend on the step's size.
    None,
}

impl Promise {
    fn explanation(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Undisturbed => " (these may: other kernels compute again what was decoded)",
            Self::None => " (all may: results depend on the step's size)",
        }
    }
}

/// What must not be.
#[derive(Default)]
struct Verdict(Vec<String>);

impl Verdict {
    fn expect(&mut self, holds: bool, failure: impl FnOnce() -> String) {
        if !holds {
            self.0.push(failure());
        }
    }
}

fn schedule(args: &BenchReplayArgs) -> Result<Schedule> {
    let mut schedule = match &args.schedule {
        Some(file) => {
            let text = fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            Schedule::parse(&text).with_context(|| file.display().to_string())?
        }
        None => {
            let lengths = (args.input, args.output);
            Schedule::make(args.requests, args.seed, lengths, args.max_num_seqs)
        }
    };
    schedule.num_kv_blocks = args.num_kv_blocks.unwrap_or(schedule.num_kv_blocks);
    if let Some(file) = &args.record {
        fs::write(file, format!("{}\n", schedule.to_json()))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(schedule)
}

fn replay(
    target: &Target<'_>,
    schedule: &Schedule,
    promise: Promise,
    verdict: &mut Verdict,
) -> Result<Value> {
    heading();
    let ahead = target.replay(schedule, Placement::HostAsync, Overlap::ALL)?;
    let ahead_line = line("host-async", &ahead);
    let stepwise = target.replay(schedule, Placement::HostAsync, Overlap::NONE)?;
    let stepwise_line = line("same plans, in step", &stepwise);
    let sync = target.replay(schedule, Placement::HostSync, Overlap::ALL)?;
    let sync_line = line("host-sync", &sync);
    let other_plan = compare::first_other_plan(&ahead, &stepwise);
    verdict.expect(other_plan.is_none(), || {
        format!("plans differ from step {other_plan:?} on though the schedule is the same")
    });
    let different = compare::different_answers(&ahead, &stepwise);
    verdict.expect(different.is_empty(), || {
        format!("same plans, but requests {different:?} were answered differently")
    });
    let Contradictions {
        undisturbed,
        preempted,
    } = Contradictions::find(&ahead, &sync);
    let kept = undisturbed.is_empty() && (preempted.is_empty() || promise != Promise::All);
    verdict.expect(kept || promise == Promise::None, || {
        format!(
            "host-sync and host-async contradict each other in requests {undisturbed:?} and, preempted, {preempted:?}"
        )
    });
    let plans = other_plan.map_or("plans equal".to_owned(), |step| {
        format!("plans differ from step {step} on")
    });
    println!(
        "host-async and the same plans in step: {plans}, {} of {} answers differ\n\
         host-async and host-sync on plans of their own: {} answers contradict each other, and {} of preempted requests{}",
        different.len(),
        schedule.requests.len(),
        undisturbed.len(),
        preempted.len(),
        promise.explanation()
    );
    Ok(
        json!({"runs": [ahead_line, stepwise_line, sync_line], "first_other_plan": other_plan,
        "different_on_same_plans": different, "contradictory_on_own_plans": undisturbed,
        "contradictory_and_preempted": preempted}),
    )
}

fn run_freely(
    target: &Target<'_>,
    schedule: &Schedule,
    args: &BenchReplayArgs,
    verdict: &mut Verdict,
) -> Result<Value> {
    println!("\nfreely, all requests at once");
    heading();
    let sync = target.run_freely(schedule, Placement::HostSync)?;
    let sync_line = line("host-sync", &sync);
    let ahead = target.run_freely(schedule, Placement::HostAsync)?;
    let ahead_line = line("host-async", &ahead);
    let vocab = target.checkpoint.config().vocab_size;
    let found = compare::divergences(schedule, vocab, &sync, &ahead)?;
    println!(
        "{} of {} answers part; a margin below {} explains it",
        found.len(),
        schedule.requests.len(),
        args.tolerance
    );
    for divergence in &found {
        describe(divergence);
    }
    let is_firm = |d: &&Divergence| d.margin.is_none_or(|margin| margin >= args.tolerance);
    let firm: Vec<usize> = found.iter().filter(is_firm).map(|d| d.request).collect();
    verdict.expect(firm.is_empty(), || {
        format!("running freely, requests {firm:?} part where the decision was firm")
    });
    let divergences: Vec<Value> = found.iter().map(to_json).collect();
    Ok(
        json!({"runs": [sync_line, ahead_line], "tolerance": args.tolerance, "divergences": divergences}),
    )
}

fn heading() {
    println!(
        "{:<20} {:>7} {:>7} {:>8} {:>9} {:>9} {:>10} {:>8} {:>17}",
        "",
        "rounds",
        "steps",
        "tokens",
        "preempted",
        "cancelled",
        "hit tokens",
        "stopped",
        "all ids"
    );
}

/// Prints a run and returns its figures.
fn line(name: &str, run: &Run) -> Value {
    let count =
        |which: fn(&FinishReason) -> bool| run.outcomes.iter().filter(|o| which(&o.reason)).count();
    let tokens: usize = run.outcomes.iter().map(|o| o.tokens.len()).sum();
    let cancelled = count(|reason| *reason == FinishReason::Cancelled);
    let stopped = count(|reason| matches!(reason, FinishReason::Stop { .. }));
    let failed = count(|reason| matches!(reason, FinishReason::Failed(_)));
    let (preempted, hits) = (run.stats.num_preemptions, run.stats.prefix_hit_tokens);
    let print = format!("{:016x}", compare::fingerprint(run));
    println!(
        "{name:<20} {:>7} {:>7} {tokens:>8} {preempted:>9} {cancelled:>9} {hits:>10} {stopped:>8} {print:>17}",
        run.num_rounds,
        run.steps.len()
    );
    json!({"name": name, "rounds": run.num_rounds, "steps": run.steps.len(), "tokens": tokens, "preemptions": preempted,
        "cancelled": cancelled, "prefix_hit_tokens": hits, "stopped": stopped, "failed": failed, "ids": print})
}

fn describe(divergence: &Divergence) {
    let Divergence {
        request,
        at,
        tokens: [a, b],
        is_sampled,
        margin,
    } = divergence;
    let name = |token: &Option<u32>| token.map_or("the end".to_owned(), |id| id.to_string());
    let kind = if *is_sampled { "sampled" } else { "greedy" };
    let margin = margin.map_or("none".to_owned(), |margin| format!("{margin:.5}"));
    println!(
        "  request {request:>4} token {at:>3}: {:>7} / {:>7} {kind}, margin {margin}",
        name(a),
        name(b)
    );
}

fn to_json(divergence: &Divergence) -> Value {
    json!({"request": divergence.request, "at": divergence.at, "tokens": divergence.tokens,
        "sampled": divergence.is_sampled, "margin": divergence.margin})
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use izar_model::Checkpoint;

    use super::*;
    use crate::cli::{BenchCommand, Cli, Command};

    fn fixture(name: &str) -> String {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        fixtures.join(name).display().to_string()
    }

    fn args(model: &str, more: &[&str]) -> BenchReplayArgs {
        let words = ["izar", "bench", "replay", model, "--device", "cpu"];
        let cli = Cli::try_parse_from(words.iter().chain(more)).expect("valid flags");
        let Command::Bench(bench) = cli.command else {
            panic!("not a benchmark")
        };
        let BenchCommand::Replay(args) = bench.command else {
            panic!("not a replay")
        };
        args
    }

    fn read(file: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(file).expect("a file")).expect("JSON")
    }

    #[test]
    fn both_placements_replay_a_thousand_requests_to_the_same_ids() {
        let dir = tempfile::tempdir().expect("a directory");
        let json = dir.path().join("figures.json").display().to_string();
        run(&args(&fixture("qwen3"), &["--no-free", "--json", &json])).expect("placements agree");
        let figures = read(&json);
        let runs = figures["replayed"]["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 3);
        for run in runs {
            let number = |key: &str| run[key].as_u64().expect("a number");
            assert_eq!(number("failed"), 0, "{run}");
            for key in ["preemptions", "cancelled", "prefix_hit_tokens", "stopped"] {
                assert!(number(key) > 20, "{key} in {run}");
            }
        }
        let steps = |run: usize| &runs[run]["steps"];
        assert_ne!(steps(0), steps(2), "host-sync plans differently");
    }

    #[test]
    fn recorded_schedule_gives_the_same_ids_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| dir.path().join(name).display().to_string();
        let (json, recorded) = (file("figures.json"), file("schedule.json"));
        let always = ["--no-free", "--json", &json];
        let made = ["--requests", "60", "--seed", "5", "--record", &recorded];
        let ids = |more: &[&str]| {
            run(&args(&fixture("llama31"), &[&always, more].concat())).expect("placements agree");
            read(&json)["replayed"]["runs"][0]["ids"].clone()
        };
        assert_eq!(ids(&made), ids(&["--schedule", &recorded]));
    }

    #[test]
    fn free_runs_on_the_cpu_never_part() {
        let args = args(&fixture("llama31"), &["--requests", "120"]);
        let checkpoint = Checkpoint::open(&args.model.model).expect("a fixture");
        let schedule = schedule(&args).expect("a schedule");
        let target = Target {
            checkpoint: &checkpoint,
            on_cuda: false,
            sizes: Sizes {
                max_model_len: schedule.max_len,
                prefix_caching: true,
                ..Sizes::default()
            },
        };
        let mut verdict = Verdict::default();
        let figures = run_freely(&target, &schedule, &args, &mut verdict).expect("runs");
        assert_eq!(verdict.0, [""; 0]);
        assert_eq!(figures["divergences"], json!([]));
    }
}
