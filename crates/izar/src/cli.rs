//! Flags. They have the names and meanings of vLLM's where vLLM has them.

mod bench;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use izar_server::CollectorUrl;

pub use bench::*;

/// Izar runs large language models and serves them over OpenAI's API.
///
/// A MODEL is a directory as Hugging Face publishes them (config.json, *.safetensors, tokenizer.json) or one .gguf file.
///
/// Try it:
///   izar doctor                                      what this machine has
///   izar generate model.gguf --prompt "Hello!"       one answer, here in the terminal
///   izar serve model.gguf                            a server on http://127.0.0.1:8000/v1
#[derive(Debug, Parser)]
#[command(
    name = "izar",
    version,
    verbatim_doc_comment,
    max_term_width = 110,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to log.
    #[command(flatten)]
    pub logging: LoggingArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over OpenAI's API until interrupted
    Serve(Box<ServeArgs>),
    /// Answer one prompt in the terminal
    Generate(Box<GenerateArgs>),
    /// Measure the engine's parts on this machine's GPU
    Bench(BenchArgs),
    /// Report what hardware, drivers and libraries are here, and what Izar would use
    Doctor,
}

/// How to log. Logs go to standard error.
#[derive(Debug, Args)]
pub struct LoggingArgs {
    /// What to log: error, warn, info, debug, trace, or a list like `info,izar_server=debug`
    #[arg(
        long,
        value_name = "LEVELS",
        default_value = "info",
        env = "IZAR_LOG",
        global = true,
        help_heading = "Logging"
    )]
    pub log: String,
    /// One JSON object per line instead of text
    #[arg(long, global = true, help_heading = "Logging")]
    pub log_json: bool,
}

/// `izar serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Which model, and how to run it.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Address to listen on; 0.0.0.0 to be reached from other machines
    #[arg(long, default_value = "127.0.0.1", help_heading = "Server")]
    pub host: IpAddr,
    /// Port to listen on; 0 lets the system choose
    #[arg(long, default_value_t = 8000, help_heading = "Server")]
    pub port: u16,
    /// Key that clients must send as `Authorization: Bearer KEY`; give it several times for several keys
    #[arg(
        long,
        value_name = "KEY",
        env = "IZAR_API_KEY",
        hide_env_values = true,
        help_heading = "Server"
    )]
    pub api_key: Vec<String>,
    /// File with such keys, one a line
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub api_key_file: Vec<PathBuf>,
    /// Listen on a Unix socket instead of a port
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"], help_heading = "Server")]
    pub uds: Option<PathBuf>,
    /// Speak TLS: PEM file with the certificate chain
    #[arg(
        long,
        value_name = "FILE",
        requires = "ssl_keyfile",
        help_heading = "Server"
    )]
    pub ssl_certfile: Option<PathBuf>,
    /// Speak TLS: PEM file with the private key
    #[arg(
        long,
        value_name = "FILE",
        requires = "ssl_certfile",
        help_heading = "Server"
    )]
    pub ssl_keyfile: Option<PathBuf>,
    /// Name clients call the model by; the first of several is the one they are told [default: the file's or directory's name]
    #[arg(long, value_name = "NAME", num_args = 1.., help_heading = "Server")]
    pub served_model_name: Vec<String>,
    /// Largest request body, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Server")]
    pub max_body_mib: u32,
    /// Most messages of a conversation
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Server")]
    pub max_messages: u32,
    /// Most requests that generate at once; further ones get 429 [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Server")]
    pub max_concurrent_requests: Option<u32>,
    /// Most sequences that wait beside those the engine can run; further ones get 429 [default: until the ring is full]
    #[arg(long, value_name = "N", help_heading = "Server")]
    pub max_num_queued_requests: Option<u32>,
    /// Seconds that a request may take from its arrival to its last token [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400), help_heading = "Server")]
    pub request_timeout: Option<u32>,
    /// Do not serve the page at `/`
    #[arg(long, help_heading = "Server")]
    pub no_ui: bool,
    /// Origins whose pages may call the API from a browser, as JSON list or separated by commas; `*` is any [default: none]
    #[arg(long, value_name = "ORIGINS", value_parser = list, help_heading = "Server")]
    pub allowed_origins: Option<StringList>,
    /// Methods such pages may use
    #[arg(long, value_name = "METHODS", default_value = "*", value_parser = list, requires = "allowed_origins", help_heading = "Server")]
    pub allowed_methods: StringList,
    /// Headers such pages may send
    #[arg(long, value_name = "HEADERS", default_value = "*", value_parser = list, requires = "allowed_origins", help_heading = "Server")]
    pub allowed_headers: StringList,
    /// Let such pages send cookies and the browser's own credentials
    #[arg(long, requires = "allowed_origins", help_heading = "Server")]
    pub allow_credentials: bool,
    /// Send traces to an OpenTelemetry collector (OTLP over HTTP), for example http://localhost:4318/v1/traces
    #[arg(
        long,
        value_name = "URL",
        env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        help_heading = "Server"
    )]
    pub otlp_traces_endpoint: Option<CollectorUrl>,
    /// What traces call this service
    #[arg(
        long,
        value_name = "NAME",
        default_value = "izar",
        env = "OTEL_SERVICE_NAME",
        help_heading = "Server"
    )]
    pub otel_service_name: String,
    /// Seconds that running answers may take to end after SIGTERM or ctrl-C
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds(), help_heading = "Server")]
    pub shutdown_timeout: Duration,
    /// Where sampling defaults come from: the model's generation_config.json (auto) or OpenAI's values (vllm)
    #[arg(long, value_enum, default_value_t = DefaultsFrom::Auto, help_heading = "Server")]
    pub generation_config: DefaultsFrom,
    /// How the model writes tool calls; auto asks its chat template
    #[arg(long, value_enum, default_value_t = ToolCallParser::Auto, help_heading = "Server")]
    pub tool_call_parser: ToolCallParser,
    /// How the model writes its reasoning, which answers then carry apart; auto asks its chat template
    #[arg(long, value_enum, default_value_t = ReasoningParser::Auto, help_heading = "Server")]
    pub reasoning_parser: ReasoningParser,
    /// Let requests bring chat templates of their own
    #[arg(long, help_heading = "Server")]
    pub trust_request_chat_template: bool,
}

/// `izar generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Which model, and how to run it.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// What to answer or continue
    #[arg(long, short, value_name = "TEXT")]
    pub prompt: String,
    /// System message, for models with a chat template
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Continue the prompt as it is, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Most tokens to generate [default: what the context has room for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// 0 always takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,
    /// Sample among the likeliest tokens whose probabilities sum to this
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Sample among this many likeliest tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: u32,
}

/// Which model, and how to run it.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// A model directory or a .gguf file
    pub model: PathBuf,
    /// Most tokens of prompt and answer together [default: what the model was made for]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..), help_heading = "Engine")]
    pub max_model_len: Option<u32>,
    /// Most sequences computed at once; further ones wait [default: 64 on the CPU, 256 on a GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Engine")]
    pub max_num_seqs: Option<u32>,
    /// Most tokens computed in one step; long prompts are cut into chunks of this size at most [default: 512 on the CPU, 2048 on a GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536), help_heading = "Engine")]
    pub max_num_batched_tokens: Option<u32>,
    /// Tokens in a KV block
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=256), help_heading = "Engine")]
    pub block_size: u32,
    /// KV blocks to allocate [default: on the CPU enough for --max-num-seqs full sequences, within a quarter of the memory; on a
    /// GPU what --gpu-memory-utilization leaves]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Engine")]
    pub num_kv_blocks: Option<u32>,
    /// Root of all random numbers: the same seed and the same order of requests give the same answers [default: random]
    #[arg(long, value_name = "N", help_heading = "Engine")]
    pub seed: Option<u64>,
    /// Type to compute in
    #[arg(long, value_enum, default_value_t = ComputeType::Auto, help_heading = "Engine")]
    pub dtype: ComputeType,
    /// `dummy` makes weights up, to try a model's speed from its config.json and tokenizer alone
    #[arg(long, value_enum, default_value_t = Format::Auto, help_heading = "Engine")]
    pub load_format: Format,
    /// Keep the KV blocks of finished prompts, and reuse them for prompts that begin alike (the default)
    #[arg(
        long,
        overrides_with = "no_enable_prefix_caching",
        help_heading = "Engine"
    )]
    pub enable_prefix_caching: bool,
    /// Compute every prompt anew
    #[arg(long, help_heading = "Engine")]
    pub no_enable_prefix_caching: bool,
    /// Let a step take part of a prompt, so that long prompts do not hold up running answers (the default)
    #[arg(
        long,
        overrides_with = "no_enable_chunked_prefill",
        help_heading = "Engine"
    )]
    pub enable_chunked_prefill: bool,
    /// Compute every prompt in one step
    #[arg(long, help_heading = "Engine")]
    pub no_enable_chunked_prefill: bool,
    /// Jinja file with a chat template to use instead of the model's own
    #[arg(long, value_name = "FILE", help_heading = "Engine")]
    pub chat_template: Option<PathBuf>,
    /// Where steps are planned [default: host-sync on the CPU, host-async on a GPU]
    #[arg(long, value_enum, help_heading = "Engine")]
    pub scheduler: Option<Scheduler>,
    /// What computes: a GPU if there is one this build can use (auto), or what is named
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto, help_heading = "Engine")]
    pub device: DeviceChoice,
    /// Share of the GPU's memory to use, by this and other processes together
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = share, help_heading = "Engine")]
    pub gpu_memory_utilization: f64,
    /// Threads that compute [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Engine")]
    pub threads: Option<u32>,
}

impl EngineArgs {
    /// Whether prompts that begin alike share KV blocks.
    pub fn prefix_caching(&self) -> bool {
        self.enable_prefix_caching || !self.no_enable_prefix_caching
    }

    /// Whether a step may take part of a prompt.
    pub fn chunked_prefill(&self) -> bool {
        self.enable_chunked_prefill || !self.no_enable_chunked_prefill
    }
}

/// Type to compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ComputeType {
    /// What is fastest for the weights as they are stored.
    Auto,
    /// Exact: weights are widened to 32 bits, nothing is quantised on the way.
    Float32,
}

/// Where weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The model's files.
    Auto,
    /// Made up.
    Dummy,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// A GPU if there is one that this build can use, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU (needs a build with CUDA).
    Cuda,
}

/// Where steps are planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scheduler {
    /// On the host, between steps
    HostSync,
    /// On the host, while the step before runs
    HostAsync,
    /// On the GPU itself (needs a build with CUDA)
    Gpu,
}

/// Where sampling defaults come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DefaultsFrom {
    /// The model's generation configuration.
    Auto,
    /// OpenAI's values.
    Vllm,
}

/// How the model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ToolCallParser {
    /// As its chat template tells.
    Auto,
    /// In no way that is known: the model's text is content.
    None,
    /// `<tool_call>{…}</tool_call>`: Hermes, Qwen2.5, Qwen3, QwQ.
    Hermes,
    /// `{"name": …, "parameters": …}`, also after `<|python_tag|>`: Llama 3.1 and later.
    Llama3Json,
    /// `functools[…]` or `<|tool_call|>[…]<|/tool_call|>`: Phi-4.
    Phi4MiniJson,
}

/// How the model writes its reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ReasoningParser {
    /// As its chat template tells.
    Auto,
    /// It does not, or it shall stay in the content.
    None,
    /// `<think>…</think>`: Qwen3, QwQ.
    Qwen3,
    /// All that comes before `</think>`: DeepSeek R1.
    DeepseekR1,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("must be above 0 and at most 1".to_owned()),
    }
}

/// A list in one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StringList(pub Vec<String>);

/// Reads a JSON list of strings, as vLLM's flags have them, or words separated by commas.
fn list(text: &str) -> Result<StringList, String> {
    let entries: Vec<String> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|_| "must be a JSON list of strings".to_owned())?
    } else {
        text.split(',')
            .map(|entry| entry.trim().to_owned())
            .collect()
    };
    if entries.iter().any(String::is_empty) {
        return Err("must not hold an empty entry".to_owned());
    }
    Ok(StringList(entries))
}

fn seconds() -> impl TypedValueParser<Value = Duration> {
    clap::value_parser!(u32)
        .range(0..=86_400)
        .map(|seconds: u32| Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn serve(args: &[&str]) -> Result<Box<ServeArgs>, clap::Error> {
        match Cli::try_parse_from([&["izar", "serve", "m.gguf"], args].concat())?.command {
            Command::Serve(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn vllms_names_are_understood() {
        let args = serve(&[
            "--host",
            "0.0.0.0",
            "--port",
            "1",
            "--api-key",
            "a",
            "--api-key",
            "b",
            "--served-model-name",
            "x",
            "y",
            "--max-model-len",
            "100",
            "--max-num-seqs",
            "4",
            "--max-num-batched-tokens",
            "64",
            "--block-size",
            "32",
            "--num-kv-blocks",
            "9",
            "--seed",
            "3",
            "--dtype",
            "float32",
            "--load-format",
            "dummy",
            "--scheduler",
            "host-async",
            "--chat-template",
            "t.jinja",
            "--shutdown-timeout",
            "5",
        ])
        .expect("valid");
        assert_eq!(
            (args.api_key.len(), args.served_model_name.len(), args.port),
            (2, 2, 1)
        );
        assert_eq!(
            (
                args.engine.max_model_len,
                args.engine.num_kv_blocks,
                args.engine.seed
            ),
            (Some(100), Some(9), Some(3))
        );
        assert_eq!(
            (args.engine.scheduler, args.engine.load_format),
            (Some(Scheduler::HostAsync), Format::Dummy)
        );
        assert_eq!(args.shutdown_timeout, Duration::from_secs(5));
    }

    #[test]
    fn prefix_caching_is_on_and_the_last_word_counts() {
        assert!(serve(&[]).expect("valid").engine.prefix_caching());
        assert!(
            !serve(&["--no-enable-prefix-caching"])
                .expect("valid")
                .engine
                .prefix_caching()
        );
        assert!(
            serve(&["--no-enable-prefix-caching", "--enable-prefix-caching"])
                .expect("valid")
                .engine
                .prefix_caching()
        );
    }

    #[test]
    fn lists_are_json_or_separated_by_commas() {
        let origins = |text| {
            serve(&["--allowed-origins", text])
                .expect("valid")
                .allowed_origins
        };
        let two = Some(StringList(vec!["http://a".into(), "http://b".into()]));
        assert_eq!(origins(r#"["http://a", "http://b"]"#), two);
        assert_eq!(origins("http://a, http://b"), two);
        assert!(serve(&["--allowed-origins", "[1]"]).is_err());
        assert!(serve(&["--allow-credentials"]).is_err(), "no origin");
    }

    #[test]
    fn flags_that_belong_together_are_asked_for_together() {
        assert!(serve(&["--ssl-certfile", "c"]).is_err());
        assert!(serve(&["--ssl-certfile", "c", "--ssl-keyfile", "k"]).is_ok());
        assert!(serve(&["--uds", "s", "--port", "1"]).is_err());
        assert!(serve(&["--otlp-traces-endpoint", "https://c"]).is_err());
        assert!(serve(&["--otlp-traces-endpoint", "http://c:4318"]).is_ok());
    }

    #[test]
    fn nonsense_is_refused() {
        for args in [
            ["--port", "70000"],
            ["--max-num-seqs", "0"],
            ["--scheduler", "fast"],
            ["--host", "here"],
            ["--gpu-memory-utilization", "1.5"],
            ["--gpu-memory-utilization", "0"],
            ["--device", "tpu"],
        ] {
            assert!(serve(&args).is_err(), "{args:?}");
        }
    }
}
