//! `izar bench placements`: what planning costs on the token path, where it is done between steps and where it overlaps them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use izar_engine::driver::{Placement, StepTimes};
use izar_engine::{CudaEngine, CudaEngineOptions};
use izar_model::Checkpoint;
use izar_transport::client::{
    ClientOptions, Progress, RequestHandle, RingClient, SamplingParams, Submission,
};
use serde_json::{Value, json};

use super::{open, write_json};
use crate::cli::BenchPlacementsArgs;
use crate::progress::Loading;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Prints a line for each placement: parts of a step as in Albireo's table 1, means over all steps.
pub fn run(args: &BenchPlacementsArgs) -> Result<()> {
    let checkpoint = open(&args.model)?;
    println!(
        "{} requests at once, {} + {} tokens, sampled with top-p and penalties",
        args.batch, args.input, args.output
    );
    println!(
        "{:<12} {:>6} {:>10} {:>10} {:>8} {:>8} {:>10} {:>9}",
        "", "steps", "T1+T2 us", "T3 us", "T4 us", "T5 us", "exposed us", "tokens/s"
    );
    let mut figures = Vec::new();
    for placement in [Placement::HostSync, Placement::HostAsync] {
        figures.push(measure(&checkpoint, args, placement)?);
    }
    write_json(args.model.json.as_deref(), &Value::Array(figures))
}

fn measure(
    checkpoint: &Checkpoint,
    args: &BenchPlacementsArgs,
    placement: Placement,
) -> Result<Value> {
    let options = CudaEngineOptions {
        placement,
        max_model_len: Some(args.input + args.output),
        prefix_caching: false,
        seed: Some(1),
        ..CudaEngineOptions::default()
    };
    let bar = Loading::start("loading");
    let running = CudaEngine::start(checkpoint, &options, &mut |done, total| {
        bar.set(done, total)
    })?;
    drop(bar);
    let client = RingClient::connect(running.transport, ClientOptions::default())
        .context("cannot connect to the engine's ring")?;
    client.wait_ready(TIMEOUT)?;
    let begun = Instant::now();
    let vocab = checkpoint.config().vocab_size as u32;
    let mut handles = (0..args.batch)
        .map(|request| submit(&client, args, request, vocab))
        .collect::<Result<Vec<_>>>()?;
    let mut prefilled = StepTimes::default();
    for (idx, handle) in handles.iter_mut().enumerate() {
        first_token(handle)?;
        if idx + 1 == args.batch as usize {
            // From here on all of them decode.
            prefilled = running.engine.times();
        }
    }
    for handle in &mut handles {
        finish(handle)?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let times = running.engine.times();
    drop((handles, client));
    running.engine.stop()?;
    let steps = times.num_steps - prefilled.num_steps;
    let mean_us = |part: fn(&StepTimes) -> u64| {
        (part(&times) - part(&prefilled)) as f64 / 1e3 / steps.max(1) as f64
    };
    let [planning, forward, sampling, publishing, exposed] = [
        mean_us(|t| t.planning_ns),
        mean_us(|t| t.forward_ns),
        mean_us(|t| t.sampling_ns),
        mean_us(|t| t.publishing_ns),
        mean_us(|t| t.gap_ns),
    ];
    let rate = f64::from(args.batch * args.output) / seconds;
    let name = placement.to_string();
    println!(
        "{name:<12} {steps:>6} {planning:>10.1} {forward:>10.1} {sampling:>8.1} {publishing:>8.1} {exposed:>10.1} {rate:>9.0}"
    );
    Ok(
        json!({"placement": name, "batch": args.batch, "steps": steps, "t1_t2_us": planning, "t3_us": forward,
        "t4_us": sampling, "t5_us": publishing, "exposed_us": exposed, "tokens_per_s": rate}),
    )
}

fn submit(
    client: &RingClient,
    args: &BenchPlacementsArgs,
    request: u32,
    vocab: u32,
) -> Result<RequestHandle> {
    let prompt: Vec<u32> = (0..args.input)
        .map(|i| (request * 7919 + i * 104_729) % vocab)
        .collect();
    let sampling = SamplingParams {
        temperature: 0.8,
        top_p: 0.95,
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        seed: Some(request.into()),
        ..SamplingParams::default()
    };
    Ok(client.submit(&Submission {
        sampling,
        ignore_eos: true,
        ..Submission::new(&prompt, args.output)
    })?)
}

fn first_token(handle: &mut RequestHandle) -> Result<()> {
    let mut tokens = Vec::new();
    handle
        .wait(&mut tokens, TIMEOUT)
        .context("no token within two minutes")?;
    Ok(())
}

fn finish(handle: &mut RequestHandle) -> Result<()> {
    let mut tokens = Vec::new();
    while handle
        .wait(&mut tokens, TIMEOUT)
        .context("no token within two minutes")?
        == Progress::More
    {}
    Ok(())
}
