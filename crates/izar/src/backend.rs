//! From flags to a running engine and a client of its ring: the one place where engine and front end meet.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use izar_engine::cpu::Arithmetic;
use izar_engine::driver::{Engine, Placement};
use izar_engine::{CpuEngine, CpuEngineOptions, CudaEngine, CudaEngineOptions};
use izar_model::{Checkpoint, LoadFormat};
use izar_server::SamplingDefaults;
use izar_tokenizer::ModelText;
use izar_transport::InProcess;
use izar_transport::client::{ClientOptions, EngineHealth, RingClient};

use crate::cli::{ComputeType, DeviceChoice, EngineArgs, Format, Scheduler};
use crate::doctor;
use crate::memory;
use crate::progress::Loading;
use crate::text;

/// How long a started engine may take to say that it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// A running engine, the way to reach it, and the model's text side.
pub struct Backend {
    /// Submits requests. Dropped before the engine: it gives its slots back.
    pub client: Arc<RingClient>,
    /// The engine.
    pub engine: Engine,
    /// Tokenizer, chat template, end-of-sequence ids.
    pub text: ModelText,
    /// Sampling where a request says nothing, as the model's generation configuration has it.
    pub defaults: SamplingDefaults,
}

impl Backend {
    /// Loads the model and starts an engine for it. `model_name` is what logs and metrics call it.
    pub fn start(args: &EngineArgs, model_name: &str) -> Result<Self> {
        let scheduler = args.scheduler.map(placement);
        let path = &args.model;
        ensure!(
            path.exists(),
            "there is no model at {}: give a directory or a .gguf file",
            path.display()
        );
        let format = match args.load_format {
            Format::Auto => LoadFormat::Auto,
            Format::Dummy => LoadFormat::Dummy,
        };
        let begun = Instant::now();
        let checkpoint = Checkpoint::open_with(path, format)?;
        let text = text::load(&checkpoint, path, args.chat_template.as_deref())?;
        let defaults = text::sampling_defaults(&checkpoint);
        let bar = Loading::start(&format!("loading {model_name}"));
        let mut progress = |done, total| bar.set(done, total);
        let running = match device(args)? {
            Device::Cpu => start_cpu(&checkpoint, args, scheduler, model_name, &mut progress)?,
            Device::Cuda => start_cuda(&checkpoint, args, scheduler, model_name, &mut progress)?,
        };
        drop(bar);
        let client = RingClient::connect(running.transport, ClientOptions::default())
            .context("cannot connect to the engine's ring")?;
        match client.wait_ready(READY_TIMEOUT)? {
            EngineHealth::Ready => {}
            health => bail!("the engine did not become ready: {health}"),
        }
        // The checkpoint's file stays mapped no longer than it is needed.
        drop(checkpoint);
        memory::give_back_freed();
        let seconds = begun.elapsed().as_secs_f32();
        tracing::info!("loaded {model_name} in {seconds:.1} s: {}", running.summary);
        Ok(Self {
            client: Arc::new(client),
            engine: running.engine,
            text,
            defaults,
        })
    }
}

/// What computes.
#[derive(Debug, PartialEq, Eq)]
enum Device {
    Cpu,
    Cuda,
}

/// A running engine, how to reach it, and what was decided.
struct Running {
    engine: Engine,
    transport: Arc<InProcess>,
    summary: String,
}

fn device(args: &EngineArgs) -> Result<Device> {
    let exact = args.dtype == ComputeType::Float32;
    match args.device {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Cuda => {
            ensure!(
                !exact,
                "--dtype float32 is computed on the CPU alone: use --device cpu"
            );
            izar_engine::cuda::probe().context("--device cuda")?;
            Ok(Device::Cuda)
        }
        DeviceChoice::Auto if exact => Ok(Device::Cpu),
        DeviceChoice::Auto => match izar_engine::cuda::probe() {
            Ok(()) => Ok(Device::Cuda),
            Err(reason) => {
                tracing::debug!("on the CPU: {reason}");
                Ok(Device::Cpu)
            }
        },
    }
}

fn start_cpu(
    checkpoint: &Checkpoint,
    args: &EngineArgs,
    scheduler: Option<Placement>,
    model_name: &str,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Running> {
    let defaults = CpuEngineOptions::default();
    let options = CpuEngineOptions {
        placement: scheduler.unwrap_or(defaults.placement),
        arithmetic: match args.dtype {
            ComputeType::Auto => Arithmetic::Auto,
            ComputeType::Float32 => Arithmetic::F32,
        },
        num_threads: args.threads.map(|threads| threads as usize),
        block_size: args.block_size,
        num_kv_blocks: args.num_kv_blocks,
        max_model_len: args.max_model_len,
        max_num_seqs: args.max_num_seqs.unwrap_or(defaults.max_num_seqs),
        max_num_batched_tokens: args
            .max_num_batched_tokens
            .unwrap_or(defaults.max_num_batched_tokens),
        prefix_caching: args.prefix_caching(),
        chunked_prefill: args.chunked_prefill(),
        seed: args.seed,
        model_name: model_name.to_owned(),
        hardware: doctor::processor(args.threads),
        ..defaults
    };
    let running = CpuEngine::start(checkpoint, &options, progress)?;
    let (weights, kv) = (
        mib(running.summary.weight_bytes),
        mib(running.summary.kv_bytes),
    );
    let (blocks, threads, max_model_len) = (
        running.summary.num_kv_blocks,
        running.summary.num_threads,
        running.summary.max_model_len,
    );
    Ok(Running {
        engine: running.engine,
        transport: running.transport,
        summary: format!(
            "{weights} MiB of weights, {blocks} KV blocks ({kv} MiB when full), context {max_model_len}, \
             {threads} threads, scheduler {}",
            options.placement
        ),
    })
}

fn start_cuda(
    checkpoint: &Checkpoint,
    args: &EngineArgs,
    scheduler: Option<Placement>,
    model_name: &str,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Running> {
    let options = cuda_options(args, scheduler, model_name)?;
    let running = CudaEngine::start(checkpoint, &options, progress)?;
    Ok(Running {
        engine: running.engine,
        transport: running.transport,
        summary: format!("{}, scheduler {}", running.summary, running.placement),
    })
}

/// The CUDA engine's options as the flags have them.
pub fn cuda_options(
    args: &EngineArgs,
    scheduler: Option<Placement>,
    model_name: &str,
) -> Result<CudaEngineOptions> {
    ensure!(
        args.block_size == izar_engine::cuda::BLOCK_SIZE,
        "the CUDA engine has KV blocks of {} tokens: leave --block-size out",
        izar_engine::cuda::BLOCK_SIZE
    );
    let defaults = CudaEngineOptions::default();
    Ok(CudaEngineOptions {
        placement: scheduler.unwrap_or(defaults.placement),
        gpu_memory_utilization: args.gpu_memory_utilization,
        num_kv_blocks: args.num_kv_blocks,
        max_model_len: args.max_model_len,
        max_num_seqs: args.max_num_seqs.unwrap_or(defaults.max_num_seqs),
        max_num_batched_tokens: args
            .max_num_batched_tokens
            .unwrap_or(defaults.max_num_batched_tokens),
        prefix_caching: args.prefix_caching(),
        chunked_prefill: args.chunked_prefill(),
        seed: args.seed,
        model_name: model_name.to_owned(),
        hardware: doctor::first_gpu().unwrap_or_else(|| "unknown GPU".to_owned()),
        ..defaults
    })
}

fn placement(scheduler: Scheduler) -> Placement {
    match scheduler {
        Scheduler::HostSync => Placement::HostSync,
        Scheduler::HostAsync => Placement::HostAsync,
        Scheduler::Gpu => Placement::Gpu,
    }
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// What a model is called where nobody named it: its file's name without `.gguf`, or its directory's.
pub fn default_name(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if path.is_dir() {
        path.file_name()
    } else {
        path.file_stem()
    };
    name.map_or_else(
        || "model".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_called_after_their_files() {
        assert_eq!(
            default_name(Path::new("/nowhere/SmolLM2-135M.Q4_1.gguf")),
            "SmolLM2-135M.Q4_1"
        );
        assert_eq!(default_name(Path::new("/")), "model");
    }

    #[test]
    fn every_scheduler_has_its_placement() {
        let names = [Scheduler::HostSync, Scheduler::HostAsync, Scheduler::Gpu];
        let names = names.map(|scheduler| placement(scheduler).to_string());
        assert_eq!(names, ["host-sync", "host-async", "gpu"]);
    }
}
