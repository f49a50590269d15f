//! `izar bench gaps`: the time between two steps, from device timestamps, with the scheduler on the host and on the device.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use izar_engine::driver::{Placement, StepTimes};
use izar_engine::{CudaEngine, CudaEngineOptions};
use izar_model::Checkpoint;
use izar_transport::Transport;
use izar_transport::client::{ClientOptions, RequestHandle, RingClient, Submission};
use serde_json::{Value, json};

use super::engine::{TIMEOUT, finish};
use super::{open, write_json};
use crate::cli::BenchGapsArgs;
use crate::progress::Loading;

/// Prints a line for each placement, means over all steps that decode.
pub fn run(args: &BenchGapsArgs) -> Result<()> {
    let checkpoint = open(&args.model)?;
    println!(
        "{} requests at once, {} + {} tokens, greedy; us",
        args.batch, args.input, args.output
    );
    println!(
        "{:<12} {:>8} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10}",
        "", "steps", "step", "gap mean", "gap p50", "gap p99", "gap max", "planning", "publishing"
    );
    let figures = [Placement::HostAsync, Placement::Gpu]
        .map(|placement| measure(&checkpoint, args, placement));
    let figures = figures.into_iter().collect::<Result<Vec<Value>>>()?;
    write_json(args.model.json.as_deref(), &Value::Array(figures))
}

fn measure(checkpoint: &Checkpoint, args: &BenchGapsArgs, placement: Placement) -> Result<Value> {
    let options = CudaEngineOptions {
        placement,
        max_model_len: Some(args.input + args.output),
        max_num_seqs: args.batch,
        prefix_caching: false,
        ..CudaEngineOptions::default()
    };
    let bar = Loading::start("loading");
    let mut progress = |done, total| bar.set(done, total);
    let running = CudaEngine::start(checkpoint, &options, &mut progress)?;
    drop(bar);
    ensure!(
        running.placement == placement,
        "this device does not launch graphs"
    );
    let transport = Arc::clone(&running.transport) as Arc<dyn Transport>;
    let client = RingClient::connect(transport, ClientOptions::default())
        .context("cannot connect to the engine's ring")?;
    client.wait_ready(TIMEOUT)?;
    let vocab = checkpoint.config().vocab_size as u32;
    let mut handles = (0..args.batch)
        .map(|request| submit(&client, args, request, vocab))
        .collect::<Result<Vec<_>>>()?;
    for handle in &mut handles {
        handle
            .wait(&mut Vec::new(), TIMEOUT)
            .context("no token within two minutes")?;
    }
    let (begun, before) = (Instant::now(), running.engine.times());
    for handle in &mut handles {
        finish(handle)?;
    }
    let took_us = begun.elapsed().as_secs_f64() * 1e6;
    drop(handles);
    drop(client);
    let resident = running.resident.clone();
    // The figures of a scheduler on the device are complete when it has ended.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let times = running.engine.times();
    running.engine.stop()?;
    let mut gaps = resident.as_ref().map_or_else(Vec::new, |r| r.gaps_ns());
    gaps.sort_unstable();
    Ok(show(
        placement,
        before,
        times,
        took_us,
        &gaps,
        resident.map(|r| json!(r.figures())),
    ))
}

fn show(
    placement: Placement,
    before: StepTimes,
    after: StepTimes,
    took_us: f64,
    gaps_ns: &[u32],
    resident: Option<Value>,
) -> Value {
    let num_steps = (after.num_steps - before.num_steps).max(1);
    let mean = |a: u64, b: u64| (b - a) as f64 / 1e3 / num_steps as f64;
    let gap = |share: f64| {
        let last = gaps_ns.len().checked_sub(1)?;
        Some(f64::from(gaps_ns[(last as f64 * share) as usize]) / 1e3)
    };
    let shown = |gap: Option<f64>| gap.map_or_else(|| "-".to_owned(), |us| format!("{us:.2}"));
    let (step, gap_mean) = (
        took_us / num_steps as f64,
        mean(before.gap_ns, after.gap_ns),
    );
    let (planning, publishing) = (
        mean(before.planning_ns, after.planning_ns),
        mean(before.publishing_ns, after.publishing_ns),
    );
    println!(
        "{:<12} {num_steps:>8} {step:>9.1} {gap_mean:>9.2} {:>9} {:>9} {:>10} {planning:>10.1} {publishing:>10.1}",
        placement.to_string(),
        shown(gap(0.5)),
        shown(gap(0.99)),
        shown(gap(1.0)),
    );
    json!({"placement": placement.to_string(), "steps": num_steps, "step_us": step, "gap_mean_us": gap_mean,
        "gap_p50_us": gap(0.5), "gap_p99_us": gap(0.99), "gap_max_us": gap(1.0), "planning_us": planning,
        "publishing_us": publishing, "resident": resident})
}

fn submit(
    client: &RingClient,
    args: &BenchGapsArgs,
    request: u32,
    vocab: u32,
) -> Result<RequestHandle> {
    let token = |i: u32| (u64::from(request) * 7919 + u64::from(i) * 104_729) % u64::from(vocab);
    let prompt: Vec<u32> = (0..args.input).map(|i| token(i) as u32).collect();
    Ok(client.submit(&Submission {
        ignore_eos: true,
        ..Submission::new(&prompt, args.output)
    })?)
}
