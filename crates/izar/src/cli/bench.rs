//! Flags of `izar bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{DeviceChoice, Format};

/// `izar bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Whole steps, decode and prefill, against the memory's and the library's speed
    Step(BenchStepArgs),
    /// Where the time of a decode step goes, each kind of kernel against its floor
    Kernels(BenchKernelsArgs),
    /// Both placements side by side: parts of a step, what each mechanism of host-async is worth, what sampling features cost, KV
    /// blocks allocated and used, how busy the GPU is
    Placements(BenchPlacementsArgs),
    /// The time between two steps, with the scheduler on the host and on the device
    Gaps(BenchGapsArgs),
    /// Replay a recorded schedule of requests in both placements, and compare what they generate
    Replay(BenchReplayArgs),
}

/// Which model to measure with.
#[derive(Debug, Args)]
pub struct BenchModelArgs {
    /// A model directory or a .gguf file
    pub model: PathBuf,
    /// `dummy` makes weights up from config.json alone
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub load_format: Format,
    /// Write the figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `izar bench step`.
#[derive(Debug, Args)]
pub struct BenchStepArgs {
    /// Which model.
    #[command(flatten)]
    pub model: BenchModelArgs,
    /// Sequences that decode together, one table line for each
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_values_t = [1, 8, 16, 32, 64])]
    pub batch: Vec<u32>,
    /// Tokens of each of them
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub context: u32,
    /// Length of the prompt to compute; 0 for none
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    pub prefill: u32,
    /// Tokens of a chunk of it
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk: u32,
}

/// `izar bench placements`.
#[derive(Debug, Args)]
pub struct BenchPlacementsArgs {
    /// Which model.
    #[command(flatten)]
    pub model: BenchModelArgs,
    /// Where to run it
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub batch: u32,
    /// Tokens of a prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub input: u32,
    /// Tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(8..=65536))]
    pub output: u32,
    /// How often each variant is measured, in turns; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
}

/// `izar bench gaps`.
#[derive(Debug, Args)]
pub struct BenchGapsArgs {
    /// Which model.
    #[command(flatten)]
    pub model: BenchModelArgs,
    /// Requests at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub batch: u32,
    /// Tokens of a prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub input: u32,
    /// Tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(8..=65536))]
    pub output: u32,
}

/// `izar bench kernels`.
#[derive(Debug, Args)]
pub struct BenchKernelsArgs {
    /// Which model.
    #[command(flatten)]
    pub model: BenchModelArgs,
    /// Sequences that decode together, a table for each
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_values_t = [1, 16, 64])]
    pub batch: Vec<u32>,
    /// Tokens of each of them
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
}

/// `izar bench replay`.
#[derive(Debug, Args)]
pub struct BenchReplayArgs {
    /// Which model.
    #[command(flatten)]
    pub model: BenchModelArgs,
    /// Where to run it
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Replay this schedule instead of making one up
    #[arg(long, value_name = "FILE", conflicts_with_all = ["requests", "seed", "input", "output", "num_kv_blocks"])]
    pub schedule: Option<PathBuf>,
    /// Write the schedule to this file, to be replayed elsewhere
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Requests of the schedule
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub requests: u32,
    /// What the schedule is made from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Most tokens of a prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(4..=65536))]
    pub input: u32,
    /// Most tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub output: u32,
    /// Sequences that run at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_num_seqs: u32,
    /// Tokens of a step. Up to 64, a token's result does not depend on its step on any device
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_num_batched_tokens: u32,
    /// KV blocks [default: too few for all sequences at full length, so that some are preempted]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub num_kv_blocks: Option<u32>,
    /// Tokens of a step where the placements run freely [default: the engine's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub free_num_batched_tokens: Option<u32>,
    /// Where the placements run freely, two answers may part at a token whose logits would have to differ by less than this for
    /// another one
    #[arg(long, value_name = "LOGITS", default_value_t = 0.25)]
    pub tolerance: f32,
    /// Leave out the part where the placements run freely
    #[arg(long)]
    pub no_free: bool,
}
