//! `izar bench kernels`: where the microseconds of a decode step go, kind of kernel by kind of kernel.

use anyhow::Result;
use izar_engine::cuda::bench::{Load, StepBench, stage_bytes};
use izar_engine::cuda::{Stage, Variant};
use serde_json::{Value, json};

use super::{hardware, open, start, write_json};
use crate::cli::BenchKernelsArgs;

/// Prints a table for each batch. A kind's time is what a step takes less without it; its floor is what must be read.
pub fn run(args: &BenchKernelsArgs) -> Result<()> {
    let checkpoint = open(&args.model)?;
    let config = checkpoint.config();
    let max_batch = args.batch.iter().copied().max().unwrap_or(1);
    let mut bench = start(&checkpoint, max_batch, args.context, max_batch)?;
    let hardware = hardware(&bench);
    println!(
        "{hardware}; {} layers of {}",
        config.num_layers, config.hidden_size
    );
    let mut tables = Vec::new();
    for &batch in &args.batch {
        let load = Load::Decode {
            batch,
            context: args.context,
        };
        let full = f64::from(bench.step_us(load, Variant::FULL)?);
        let experts = bench.distinct_experts()?;
        println!(
            "\nbatch {batch}, context {}: step {full:.1} us",
            args.context
        );
        println!(
            "{:<18} {:>9} {:>9} {:>9} {:>8}",
            "", "us", "floor us", "over us", "us/layer"
        );
        let (mut rows, mut sum) = (Vec::new(), 0.0);
        for stage in Stage::ALL
            .into_iter()
            .filter(|&s| s != Stage::PrefillAttention)
        {
            let us = full - f64::from(bench.step_us(load, Variant::FULL.without(stage))?);
            let floor_us =
                stage_bytes(config, stage, load, experts) as f64 / bench.read_rate() * 1e6;
            let per_layer = us / config.num_layers as f64;
            let (name, over) = (stage.name(), us - floor_us);
            println!("{name:<18} {us:>9.1} {floor_us:>9.1} {over:>9.1} {per_layer:>8.2}");
            rows.push(json!({"stage": name, "us": us, "floor_us": floor_us}));
            sum += us;
        }
        // Kernels overlap: what two of them share counts for neither.
        println!("{:<18} {:>9.1}", "shared or marks", full - sum);
        let combinations = combinations(&mut bench, load)?;
        let mixtures = mixtures(&mut bench, load, full)?;
        tables.push(
            json!({"batch": batch, "context": args.context, "step_us": full, "stages": rows,
                "combinations": combinations, "library_for": mixtures}),
        );
    }
    write_json(
        args.model.json.as_deref(),
        &json!({"hardware": hardware, "tables": tables}),
    )
}

/// Times of growing parts of a step, with our projections and with the library's.
fn combinations(bench: &mut StepBench, load: Load) -> Result<Vec<Value>> {
    use Stage::{DecodeAttention, GateUp, Heads, Norms, Output};
    let layers = Stage::PROJECTIONS;
    let with = |more: &[Stage]| [&layers, more].concat();
    let parts = [
        ("projections", layers.to_vec()),
        ("+ norms", with(&[Norms])),
        ("+ norms, rope", with(&[Norms, Heads])),
        ("+ attention", with(&[Norms, Heads, DecodeAttention])),
        ("attention alone", vec![DecodeAttention]),
        ("rope, attention", vec![Heads, DecodeAttention]),
        ("attention, output", vec![DecodeAttention, Output]),
        ("norms, gate_up", vec![Norms, GateUp]),
    ];
    println!("{:<18} {:>9} {:>9}", "together", "us", "library");
    let mut rows = Vec::new();
    for (name, stages) in parts {
        let part = Variant::FULL.only(&stages);
        let us = bench.step_us(load, part)?;
        let library_us = bench.step_us(load, part.with_library())?;
        println!("{name:<18} {us:>9.1} {library_us:>9.1}");
        rows.push(json!({"stages": name, "us": us, "library_us": library_us}));
    }
    Ok(rows)
}

/// Times of whole steps with some projections by the library, beside `full_us` with none.
fn mixtures(bench: &mut StepBench, load: Load, full_us: f64) -> Result<Vec<Value>> {
    use Stage::{Down, GateUp, Head, Output, Qkv};
    let mixtures: [&[Stage]; 8] = [
        &[Qkv],
        &[Output],
        &[GateUp],
        &[Down],
        &[Head],
        &[Output, Down],
        &[Qkv, Output, Down],
        &[Qkv, Output, GateUp, Down],
    ];
    println!("{:<36} {:>9} {:>9}", "step, by the library", "us", "ratio");
    let mut rows = Vec::new();
    for stages in mixtures {
        let us = f64::from(bench.step_us(load, Variant::FULL.with_library_for(stages))?);
        let names: Vec<_> = stages.iter().map(|stage| stage.name()).collect();
        println!("{:<36} {us:>9.1} {:>9.3}", names.join(", "), us / full_us);
        rows.push(json!({"stages": names, "us": us}));
    }
    Ok(rows)
}
