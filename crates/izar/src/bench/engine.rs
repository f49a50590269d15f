//! An engine for a benchmark, on whatever device, and a client of its ring.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izar_engine::driver::{Engine, ExecutorFailed, Placement, StepTimes, Study};
use izar_engine::{CpuEngine, CpuEngineOptions, CudaEngine, CudaEngineOptions};
use izar_model::Checkpoint;
use izar_transport::client::{
    ClientOptions, EngineHealth, EngineStats, Finish, GeneratedToken, Progress, RequestHandle,
    RingClient,
};
use izar_transport::{InProcess, Transport};

use crate::cli::DeviceChoice;

/// How long anything may take that should happen.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Sizes of an engine; what is not given is the engine's own choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Longest sequence.
    pub max_model_len: u32,
    /// Sequences at once.
    pub max_num_seqs: Option<u32>,
    /// Tokens of a step.
    pub max_num_batched_tokens: Option<u32>,
    /// KV blocks.
    pub num_kv_blocks: Option<u32>,
    /// Whether prompts share blocks.
    pub prefix_caching: bool,
}

/// A running engine.
pub struct Running {
    /// Dropped before the engine.
    pub client: RingClient,
    engine: Engine,
}

impl Running {
    /// Starts an engine whose unseeded requests draw from a fixed seed.
    pub fn start(
        checkpoint: &Checkpoint,
        on_cuda: bool,
        placement: Placement,
        sizes: Sizes,
        study: Study,
    ) -> Result<Self> {
        let (engine, transport) = match on_cuda {
            true => cuda(checkpoint, placement, sizes, study)?,
            false => cpu(checkpoint, placement, sizes, study)?,
        };
        let client = RingClient::connect(transport as Arc<dyn Transport>, ClientOptions::default())
            .context("cannot connect to the engine's ring")?;
        let health = client.wait_ready(TIMEOUT)?;
        ensure!(
            health == EngineHealth::Ready,
            "the engine did not become ready: {health}"
        );
        Ok(Self { client, engine })
    }

    /// Where its steps' time went so far.
    pub fn times(&self) -> StepTimes {
        self.engine.times()
    }

    /// Its counters as of now.
    pub fn stats(&self) -> Result<EngineStats> {
        Ok(self.client.engine_status()?.stats)
    }

    /// Ends it.
    pub fn stop(self) -> Result<(), ExecutorFailed> {
        drop(self.client);
        self.engine.stop()
    }
}

/// Whether to run on a GPU.
pub fn on_cuda(device: DeviceChoice) -> Result<bool> {
    match device {
        DeviceChoice::Cpu => Ok(false),
        DeviceChoice::Auto => Ok(izar_engine::cuda::probe().is_ok()),
        DeviceChoice::Cuda => {
            izar_engine::cuda::probe().context("--device cuda")?;
            Ok(true)
        }
    }
}

/// Waits for a request's end; returns its tokens.
pub fn finish(handle: &mut RequestHandle) -> Result<(Vec<GeneratedToken>, Finish)> {
    let mut tokens = Vec::new();
    loop {
        let progress = handle.wait(&mut tokens, TIMEOUT);
        if let Progress::Finished(finish) = progress.context("no token within two minutes")? {
            return Ok((tokens, finish));
        }
    }
}

type Started = (Engine, Arc<InProcess>);

fn cpu(
    checkpoint: &Checkpoint,
    placement: Placement,
    sizes: Sizes,
    study: Study,
) -> Result<Started> {
    let defaults = CpuEngineOptions::default();
    let options = CpuEngineOptions {
        placement,
        max_model_len: Some(sizes.max_model_len),
        max_num_seqs: sizes.max_num_seqs.unwrap_or(defaults.max_num_seqs),
        max_num_batched_tokens: sizes
            .max_num_batched_tokens
            .unwrap_or(defaults.max_num_batched_tokens),
        num_kv_blocks: sizes.num_kv_blocks,
        prefix_caching: sizes.prefix_caching,
        seed: Some(1),
        study,
        ..defaults
    };
    let running = CpuEngine::start(checkpoint, &options, &mut |_, _| {})?;
    Ok((running.engine, running.transport))
}

fn cuda(
    checkpoint: &Checkpoint,
    placement: Placement,
    sizes: Sizes,
    study: Study,
) -> Result<Started> {
    let defaults = CudaEngineOptions::default();
    let options = CudaEngineOptions {
        placement,
        max_model_len: Some(sizes.max_model_len),
        max_num_seqs: sizes.max_num_seqs.unwrap_or(defaults.max_num_seqs),
        max_num_batched_tokens: sizes
            .max_num_batched_tokens
            .unwrap_or(defaults.max_num_batched_tokens),
        num_kv_blocks: sizes.num_kv_blocks,
        prefix_caching: sizes.prefix_caching,
        seed: Some(1),
        study,
        ..defaults
    };
    let running = CudaEngine::start(checkpoint, &options, &mut |_, _| {})?;
    Ok((running.engine, running.transport))
}
