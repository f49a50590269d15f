//! `izar bench placements`: Albireo's figures for both placements on this machine.
//!
//! - Its table 1: what T1, T2, T4 and T5 of a step take, and how much of it keeps the device waiting.
//! - What each mechanism of `host-async` is worth: how long the device waits between two steps with it switched off. They hide the same
//!   time in part, so their shares need not add up.
//! - Tokens a second with every sampling feature on and with none.
//! - KV blocks allocated and used, step by step, and how busy the device is in windows of 20 ms.
//!
//! Figures are of the steps in which all requests decode. Variants are measured in turns, because clocks drift.

mod figures;
mod load;

use std::sync::Arc;

use anyhow::Result;
use izar_engine::driver::{Overlap, OverlapSwitch, Placement, StepLog, Study};
use izar_model::Checkpoint;
use serde_json::{Value, json};

use self::figures::Figures;
use self::load::{Features, Load};
use super::engine::{Running, Sizes, on_cuda};
use super::{open, write_json};
use crate::cli::BenchPlacementsArgs;

/// What is measured: a name, the mechanisms that are on, the sampling.
type Variant = (&'static str, Overlap, Features);

const WITHOUT_SCHEDULING: Overlap = Overlap {
    scheduling: false,
    ..Overlap::ALL
};
const WITHOUT_BACKFILL: Overlap = Overlap {
    backfill: false,
    ..Overlap::ALL
};
const WITHOUT_OUTPUT: Overlap = Overlap {
    output: false,
    ..Overlap::ALL
};

/// The first of host-async is what the others are compared with.
const ASYNC: [Variant; 6] = [
    ("host-async", Overlap::ALL, Features::All),
    ("  no async scheduling", WITHOUT_SCHEDULING, Features::All),
    ("  no backfill", WITHOUT_BACKFILL, Features::All),
    ("  no output overlap", WITHOUT_OUTPUT, Features::All),
    ("  none of them", Overlap::NONE, Features::All),
    ("host-async, greedy", Overlap::ALL, Features::None),
];
const SYNC: [Variant; 2] = [
    ("host-sync", Overlap::ALL, Features::All),
    ("host-sync, greedy", Overlap::ALL, Features::None),
];

/// Prints all tables.
pub fn run(args: &BenchPlacementsArgs) -> Result<()> {
    let checkpoint = open(&args.model)?;
    let on_cuda = on_cuda(args.device)?;
    println!(
        "{} requests at once, {} + {} tokens, all sampling features unless greedy; medians of {}",
        args.batch, args.input, args.output, args.rounds
    );
    let mut measured = measure(&checkpoint, on_cuda, Placement::HostSync, &SYNC, args)?;
    measured.extend(measure(
        &checkpoint,
        on_cuda,
        Placement::HostAsync,
        &ASYNC,
        args,
    )?);
    show_parts(&measured);
    show_mechanisms(&measured);
    show_features(&measured);
    show_steps(&measured);
    let figures: Vec<Value> = measured
        .iter()
        .map(|(name, figures)| figures.to_json(name.trim()))
        .collect();
    let head = json!({"batch": args.batch, "input": args.input, "output": args.output, "rounds": args.rounds,
        "variants": figures});
    write_json(args.model.json.as_deref(), &head)
}

type Measured = Vec<(&'static str, Figures)>;

fn measure(
    checkpoint: &Checkpoint,
    on_cuda: bool,
    placement: Placement,
    variants: &[Variant],
    args: &BenchPlacementsArgs,
) -> Result<Measured> {
    let (switch, log) = (
        Arc::new(OverlapSwitch::default()),
        Arc::new(StepLog::with_capacity(4 * args.output as usize)),
    );
    let study = Study {
        overlap: Some(Arc::clone(&switch)),
        gate: None,
        log: Some(Arc::clone(&log)),
    };
    let sizes = Sizes {
        max_model_len: args.input + args.output,
        max_num_seqs: Some(args.batch),
        ..Sizes::default()
    };
    let running = Running::start(checkpoint, on_cuda, placement, sizes, study)?;
    let load = Load {
        batch: args.batch,
        input: args.input,
        output: args.output,
        vocab: checkpoint.config().vocab_size as u32,
    };
    // Not counted: the device warms up.
    load.run(&running, &log, Features::All)?;
    let mut rounds: Vec<Vec<Figures>> = vec![Vec::new(); variants.len()];
    for _ in 0..args.rounds {
        for (&(_, overlap, features), figures) in variants.iter().zip(&mut rounds) {
            switch.set(overlap);
            figures.push(load.run(&running, &log, features)?);
        }
    }
    running.stop()?;
    let names = variants.iter().map(|&(name, ..)| name);
    Ok(names
        .zip(rounds.iter().map(|r| Figures::median(r)))
        .collect())
}

fn find<'a>(measured: &'a Measured, name: &str) -> &'a Figures {
    let found = measured.iter().find(|(known, _)| *known == name);
    let Some((_, figures)) = found else {
        unreachable!("{name} is measured always")
    };
    figures
}

fn show_parts(measured: &Measured) {
    println!(
        "\n{:<12} {:>6} {:>7} {:>7} {:>9} {:>8} {:>7} {:>11} {:>9}",
        "us a step", "steps", "T1", "T2", "T3", "T4", "T5", "exposed", "tokens/s"
    );
    for name in ["host-sync", "host-async"] {
        let f = find(measured, name);
        println!(
            "{name:<12} {:>6} {:>7.1} {:>7.1} {:>9.1} {:>8.1} {:>7.1} {:>11.1} {:>9.0}",
            f.num_steps, f.t1_us, f.t2_us, f.t3_us, f.t4_us, f.t5_us, f.exposed_us, f.tokens_per_s
        );
    }
}

fn show_mechanisms(measured: &Measured) {
    let (all, none) = (
        find(measured, ASYNC[0].0).exposed_us,
        find(measured, ASYNC[4].0).exposed_us,
    );
    println!(
        "\n{:<22} {:>11} {:>10} {:>9} {:>10}",
        "switched off", "exposed us", "costs us", "of all", "step us"
    );
    for (name, figures) in &measured[SYNC.len()..][..5] {
        let costs = figures.exposed_us - all;
        println!(
            "{name:<22} {:>11.1} {costs:>10.1} {:>8.0}% {:>10.1}",
            figures.exposed_us,
            100.0 * costs / (none - all),
            figures.period_us
        );
    }
}

fn show_features(measured: &Measured) {
    println!(
        "\n{:<12} {:>14} {:>17} {:>7}",
        "tokens/s", "no features", "all features", "share"
    );
    for (name, greedy) in [
        ("host-sync", "host-sync, greedy"),
        ("host-async", "host-async, greedy"),
    ] {
        let (all, none) = (find(measured, name), find(measured, greedy));
        println!(
            "{name:<12} {:>14.0} {:>17.0} {:>7.3}",
            none.tokens_per_s,
            all.tokens_per_s,
            all.tokens_per_s / none.tokens_per_s
        );
    }
}

fn show_steps(measured: &Measured) {
    println!(
        "\n{:<12} {:>15} {:>11} {:>12} {:>12} {:>14} {:>8}",
        "", "KV allocated", "KV used", "most unused", "busy, mean", "busy, least", "windows"
    );
    for name in ["host-sync", "host-async"] {
        let f = find(measured, name);
        println!(
            "{name:<12} {:>15.1} {:>11.1} {:>12} {:>11.2}% {:>13.2}% {:>8}",
            f.blocks_allocated,
            f.blocks_used,
            f.most_unused,
            100.0 * f.busy_mean,
            100.0 * f.busy_least,
            f.num_windows
        );
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cli::{BenchModelArgs, DeviceChoice, Format};

    #[test]
    fn every_figure_is_measured_on_the_cpu_engine() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/qwen3");
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("figures.json");
        let args = BenchPlacementsArgs {
            model: BenchModelArgs {
                model: fixture,
                load_format: Format::Auto,
                json: Some(file.clone()),
            },
            device: DeviceChoice::Cpu,
            batch: 4,
            input: 20,
            output: 30,
            rounds: 1,
        };
        run(&args).expect("a benchmark");
        let text = std::fs::read_to_string(file).expect("figures");
        let figures: Value = serde_json::from_str(&text).expect("JSON");
        let variants = figures["variants"].as_array().expect("variants");
        assert_eq!(variants.len(), 8);
        for variant in variants {
            let number = |key: &str| variant[key].as_f64().expect("a number");
            assert!(number("steps") > 20.0, "{variant}");
            for key in [
                "t1_us",
                "t2_us",
                "t3_us",
                "t4_us",
                "t5_us",
                "period_us",
                "tokens_per_s",
            ] {
                assert!(number(key) > 0.0, "{key} in {variant}");
            }
            let (allocated, used) = (number("kv_blocks_allocated"), number("kv_blocks_used"));
            assert!(used > 0.0 && allocated >= used, "{variant}");
            // A sequence is planned one step ahead at most, so it owns one block too many at most.
            assert!(number("most_unused_blocks") <= 4.0, "{variant}");
            let busy = number("busy_mean");
            assert!(busy > 0.0 && busy <= 1.0, "{variant}");
        }
        // What host-sync owns, it uses.
        assert_eq!(variants[0]["most_unused_blocks"], 0);
    }
}
