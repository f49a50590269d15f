//! `izar bench`: how fast the engine's parts are here, beside what the hardware allows.

mod engine;
mod gaps;
mod kernels;
mod placements;
mod replay;
mod step;

use std::path::Path;

use anyhow::{Context, Result};
use izar_engine::cuda::bench::StepBench;
use izar_model::{Checkpoint, LoadFormat};
use serde_json::Value;

use crate::cli::{BenchArgs, BenchCommand, BenchModelArgs, Format};
use crate::progress::Loading;

/// Runs one benchmark and prints its table; with `--json`, writes the figures to a file too.
pub fn run(args: &BenchArgs) -> Result<()> {
    match &args.command {
        BenchCommand::Step(args) => step::run(args),
        BenchCommand::Kernels(args) => kernels::run(args),
        BenchCommand::Gaps(args) => gaps::run(args),
        BenchCommand::Placements(args) => placements::run(args),
        BenchCommand::Replay(args) => replay::run(args),
    }
}

fn open(args: &BenchModelArgs) -> Result<Checkpoint> {
    let format = match args.load_format {
        Format::Auto => LoadFormat::Auto,
        Format::Dummy => LoadFormat::Dummy,
    };
    Ok(Checkpoint::open_with(&args.model, format)?)
}

/// A bench with room for what will be measured.
fn start(
    checkpoint: &Checkpoint,
    max_batch: u32,
    max_context: u32,
    max_tokens: u32,
) -> Result<StepBench> {
    let bar = Loading::start("loading");
    let mut progress = |done, total| bar.set(done, total);
    let bench = StepBench::start(
        checkpoint,
        max_batch,
        max_context,
        max_tokens,
        &mut progress,
    );
    Ok(bench?)
}

/// The device's name and read rate, for the head of a table.
fn hardware(bench: &StepBench) -> String {
    let name = crate::doctor::first_gpu().unwrap_or_else(|| "unknown GPU".to_owned());
    format!("{name}, reads {:.2} TB/s", bench.read_rate() / 1e12)
}

fn write_json(path: Option<&Path>, figures: &Value) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, format!("{figures:#}\n"))
        .with_context(|| format!("cannot write {}", path.display()))
}
