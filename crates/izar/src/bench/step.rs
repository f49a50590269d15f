//! `izar bench step`: whole steps per batch and context, and a prompt in chunks.

use anyhow::{Result, ensure};
use izar_engine::cuda::bench::{Load, StepBench, attention_flops, projection_flops, stage_bytes};
use izar_engine::cuda::{Stage, Variant};
use izar_model::ModelConfig;
use serde_json::{Value, json};

use super::{hardware, open, start, write_json};
use crate::cli::BenchStepArgs;

/// Prints both tables.
pub fn run(args: &BenchStepArgs) -> Result<()> {
    ensure!(
        args.batch.iter().all(|&batch| (1..=1024).contains(&batch)) && args.context > 0,
        "--batch takes sizes from 1 to 1024, --context lengths from 1"
    );
    let checkpoint = open(&args.model)?;
    let config = checkpoint.config();
    let max_batch = args.batch.iter().copied().max().unwrap_or(1);
    let max_context = args.context.max(args.prefill);
    // Room for the longest sequence alone is room for a batch of shorter ones where these are few.
    let context = max_context.min(config.max_model_len() as u32);
    let mut bench = start(&checkpoint, max_batch, context, args.chunk)?;
    let hardware = hardware(&bench);
    println!(
        "{hardware}; {} layers of {}",
        config.num_layers, config.hidden_size
    );
    let decode = decode(&mut bench, config, args)?;
    let prefill = prefill(&mut bench, config, args)?;
    let figures = json!({"hardware": hardware, "decode": decode, "prefill": prefill});
    write_json(args.model.json.as_deref(), &figures)
}

/// Bytes that a decode step must read.
fn decode_bytes(config: &ModelConfig, load: Load, distinct_experts: u32) -> u64 {
    let stages = Stage::ALL.into_iter();
    let bytes = stages.map(|stage| stage_bytes(config, stage, load, distinct_experts));
    bytes.sum()
}

fn decode(bench: &mut StepBench, config: &ModelConfig, args: &BenchStepArgs) -> Result<Vec<Value>> {
    println!("\ndecode, context {}", args.context);
    println!("batch    step us   floor us  / floor   library projections us  / floor");
    let mut rows = Vec::new();
    for &batch in &args.batch {
        let load = Load::Decode {
            batch,
            context: args.context,
        };
        let step_us = f64::from(bench.step_us(load, Variant::FULL)?);
        let experts = bench.distinct_experts()?;
        let floor_us = decode_bytes(config, load, experts) as f64 / bench.read_rate() * 1e6;
        let library_us = f64::from(bench.step_us(load, Variant::FULL.with_library())?);
        println!(
            "{batch:>5} {step_us:>10.1} {floor_us:>10.1} {:>8.3} {library_us:>24.1} {:>8.3}",
            step_us / floor_us,
            library_us / floor_us
        );
        rows.push(json!({"batch": batch, "context": args.context, "step_us": step_us, "floor_us": floor_us,
            "library_us": library_us, "distinct_experts": experts}));
    }
    Ok(rows)
}

fn prefill(bench: &mut StepBench, config: &ModelConfig, args: &BenchStepArgs) -> Result<Value> {
    if args.prefill == 0 {
        return Ok(Value::Null);
    }
    println!(
        "\nprefill of {} tokens in chunks of {}",
        args.prefill, args.chunk
    );
    println!("start       step us   projections alone us   TFLOP/s   of the projections' rate");
    let (mut total_us, mut total_flops, mut rows) = (0.0, 0.0, Vec::new());
    let (mut alone_us, mut alone_flops) = (0.0, 0.0);
    for start in (0..args.prefill).step_by(args.chunk as usize) {
        let tokens = args.chunk.min(args.prefill - start);
        let load = Load::Prefill { start, tokens };
        let step_us = f64::from(bench.step_us(load, Variant::FULL)?);
        let projections = Variant::FULL.only(&Stage::PROJECTIONS);
        let projections_us = f64::from(bench.step_us(load, projections)?);
        let projection_flops = projection_flops(config, tokens);
        let flops = projection_flops + attention_flops(config, start, tokens);
        let (rate, best) = (
            flops / step_us / 1e6,
            projection_flops / projections_us / 1e6,
        );
        println!(
            "{start:>5} {step_us:>13.1} {projections_us:>22.1} {rate:>9.1} {:>26.3}",
            rate / best
        );
        rows.push(json!({"start": start, "tokens": tokens, "step_us": step_us, "projections_us": projections_us,
            "tflops": rate, "projections_tflops": best}));
        (total_us, total_flops) = (total_us + step_us, total_flops + flops);
        (alone_us, alone_flops) = (alone_us + projections_us, alone_flops + projection_flops);
    }
    let (rate, best) = (total_flops / total_us / 1e6, alone_flops / alone_us / 1e6);
    println!(
        "  all {total_us:>13.1} {alone_us:>22.1} {rate:>9.1} {:>26.3}",
        rate / best
    );
    Ok(json!({"chunks": rows, "total_us": total_us, "tflops": rate, "projections_tflops": best}))
}
