//! From flags to a running engine and a client of its ring: the one place where engine and front end meet.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use izar_engine::cpu::Arithmetic;
use izar_engine::driver::{Engine, Placement};
use izar_engine::{CpuEngine, CpuEngineOptions};
use izar_model::{Checkpoint, LoadFormat};
use izar_server::SamplingDefaults;
use izar_tokenizer::ModelText;
use izar_transport::client::{ClientOptions, EngineHealth, RingClient};

use crate::cli::{ComputeType, EngineArgs, Format, Scheduler};
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
        let placement = placement(args.scheduler)?;
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
        let running = start_engine(&checkpoint, args, placement, model_name)?;
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
        let (weights, kv) = (
            mib(running.summary.weight_bytes),
            mib(running.summary.kv_bytes),
        );
        let (blocks, threads, max_model_len) = (
            running.summary.num_kv_blocks,
            running.summary.num_threads,
            running.summary.max_model_len,
        );
        tracing::info!(
            "loaded {model_name} in {seconds:.1} s: {weights} MiB of weights, {blocks} KV blocks ({kv} MiB when full), \
             context {max_model_len}, {threads} threads, scheduler {placement}"
        );
        Ok(Self {
            client: Arc::new(client),
            engine: running.engine,
            text,
            defaults,
        })
    }
}

fn start_engine(
    checkpoint: &Checkpoint,
    args: &EngineArgs,
    placement: Placement,
    model_name: &str,
) -> Result<CpuEngine> {
    let options = CpuEngineOptions {
        placement,
        arithmetic: match args.dtype {
            ComputeType::Auto => Arithmetic::Auto,
            ComputeType::Float32 => Arithmetic::F32,
        },
        num_threads: args.threads.map(|threads| threads as usize),
        block_size: args.block_size,
        num_kv_blocks: args.num_kv_blocks,
        max_model_len: args.max_model_len,
        max_num_seqs: args.max_num_seqs,
        max_num_batched_tokens: args.max_num_batched_tokens,
        prefix_caching: args.prefix_caching(),
        chunked_prefill: args.chunked_prefill(),
        seed: args.seed,
        model_name: model_name.to_owned(),
    };
    let bar = Loading::start(&format!("loading {model_name}"));
    Ok(CpuEngine::start(
        checkpoint,
        &options,
        &mut |done, total| bar.set(done, total),
    )?)
}

fn placement(scheduler: Scheduler) -> Result<Placement> {
    match scheduler {
        Scheduler::HostSync => Ok(Placement::HostSync),
        Scheduler::HostAsync => Ok(Placement::HostAsync),
        Scheduler::Gpu => bail!(
            "--scheduler gpu needs a build with CUDA, and this one has none: use host-sync or host-async"
        ),
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
    fn scheduler_on_the_gpu_is_refused_with_what_to_use() {
        let error = placement(Scheduler::Gpu)
            .expect_err("no CUDA here")
            .to_string();
        assert!(error.contains("host-sync"), "{error}");
    }
}
