//! The whole engine through ring and policy, in both placements.

use std::sync::Arc;
use std::time::Duration;

use izar_engine::driver::Placement;
use izar_engine::{CudaEngine, CudaEngineOptions};
use izar_model::Checkpoint;
use izar_transport::Transport;
use izar_transport::client::{
    ClientOptions, FinishReason, Progress, RequestHandle, RingClient, SamplingParams, Submission,
};

use super::checkpoints::{all, write};
use super::harness::prompt;
use super::has_device;

pub const TIMEOUT: Duration = Duration::from_secs(60);
const NUM_REQUESTS: u32 = 200;

pub struct Running {
    pub engine: CudaEngine,
    pub client: RingClient,
}

pub fn start(checkpoint: &Checkpoint, options: CudaEngineOptions) -> Running {
    let options = CudaEngineOptions {
        gpu_memory_utilization: 0.5,
        max_model_len: Some(400),
        seed: Some(3),
        ..options
    };
    let engine = CudaEngine::start(checkpoint, &options, &mut |_, _| {}).unwrap();
    let transport = Arc::clone(&engine.transport) as Arc<dyn Transport>;
    let client = RingClient::connect(transport, ClientOptions::default()).unwrap();
    client.wait_ready(TIMEOUT).unwrap();
    Running { engine, client }
}

pub fn finish(handle: &mut RequestHandle) -> (Vec<u32>, FinishReason) {
    let mut tokens = Vec::new();
    loop {
        match handle.wait(&mut tokens, TIMEOUT).expect("tokens in time") {
            Progress::More => {}
            Progress::Finished(finish) => {
                return (tokens.iter().map(|t| t.token).collect(), finish.reason);
            }
        }
    }
}

/// A mix of greedy and seeded requests of many lengths, half of them with common beginnings.
pub fn traffic(running: &Running, vocab: usize) -> Vec<(Vec<u32>, FinishReason)> {
    let requests: Vec<(Vec<u32>, u32)> = (0..NUM_REQUESTS)
        .map(|i| {
            let mut tokens = prompt(i % 5, 40, vocab);
            tokens.extend(prompt(1000 + i, 1 + i as usize * 7 % 120, vocab));
            (tokens, 1 + i * 13 % 90)
        })
        .collect();
    let mut handles: Vec<RequestHandle> = requests
        .iter()
        .enumerate()
        .map(|(i, (tokens, max_tokens))| {
            let sampling = SamplingParams {
                temperature: if i % 2 == 0 { 0.0 } else { 0.9 },
                top_p: 0.95,
                seed: Some(i as u64),
                ..SamplingParams::default()
            };
            running
                .client
                .submit(&Submission {
                    sampling,
                    ignore_eos: true,
                    ..Submission::new(tokens, *max_tokens)
                })
                .unwrap()
        })
        .collect();
    let outcomes: Vec<_> = handles.iter_mut().map(finish).collect();
    for ((tokens, reason), (_, max_tokens)) in outcomes.iter().zip(&requests) {
        assert_eq!(
            (tokens.len() as u32, reason.clone()),
            (*max_tokens, FinishReason::Length)
        );
    }
    outcomes
}

#[test]
fn both_placements_give_every_request_the_same_tokens() {
    if !has_device() {
        return;
    }
    let tiny = write(&all()[0].1);
    let vocab = tiny.checkpoint.config().vocab_size;
    let mut outcomes = Vec::new();
    for placement in [Placement::HostSync, Placement::HostAsync] {
        let running = start(
            &tiny.checkpoint,
            CudaEngineOptions {
                placement,
                max_num_seqs: 48,
                max_num_batched_tokens: 64,
                ..CudaEngineOptions::default()
            },
        );
        outcomes.push(traffic(&running, vocab));
        let times = running.engine.engine.times();
        let per_step = |ns: u64| ns as f64 / 1e3 / times.num_steps as f64;
        eprintln!(
            "{placement}: {} steps, us a step: planning {:.1}, forward {:.1}, sampling {:.1}, publishing {:.1}, gap {:.1}",
            times.num_steps,
            per_step(times.planning_ns),
            per_step(times.forward_ns),
            per_step(times.sampling_ns),
            per_step(times.publishing_ns),
            per_step(times.gap_ns)
        );
        drop(running.client);
        running.engine.engine.stop().unwrap();
    }
    // No step has more than 64 tokens, and up to there a token's result does not depend on its step.
    let parted = outcomes[0].iter().zip(&outcomes[1]);
    let parted: Vec<usize> = parted
        .enumerate()
        .filter(|(_, (sync, ahead))| sync != ahead)
        .map(|(idx, _)| idx)
        .collect();
    assert!(
        parted.is_empty(),
        "requests {parted:?} differ between the placements"
    );
}

#[test]
fn preempted_sequences_come_back() {
    if !has_device() {
        return;
    }
    let tiny = write(&all()[0].1);
    let vocab = tiny.checkpoint.config().vocab_size;
    let running = start(
        &tiny.checkpoint,
        CudaEngineOptions {
            num_kv_blocks: Some(60),
            max_num_seqs: 16,
            max_num_batched_tokens: 128,
            ..CudaEngineOptions::default()
        },
    );
    traffic(&running, vocab);
    let stats = running.client.engine_status().unwrap().stats;
    assert!(
        stats.num_preemptions > 0,
        "60 blocks do not hold 16 sequences"
    );
    drop(running.client);
    running.engine.engine.stop().unwrap();
}
