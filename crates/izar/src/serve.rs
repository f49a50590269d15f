//! `izar serve`: engine and front end in one process, until a signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use izar_server::{
    Cors, SamplingDefaults, ServedModel, Server, ServerOptions, TraceOptions, refuse_while_loading,
};
use izar_tokenizer::ModelText;
use izar_transport::client::{EngineHealth, FinishReason, Progress, RingClient, Submission};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::backend::{Backend, default_name};
use crate::cli::{DefaultsFrom, ServeArgs};
use crate::listen::{self, Bound};
use crate::text;

/// How often the engine is looked after.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Serves until SIGTERM or ctrl-C, then drains.
pub fn run(args: &ServeArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(num_http_threads())
        .enable_all()
        .build()?;
    // Bound before the model is loaded: a port that is taken should not cost a minute to find out, and probes get an answer.
    let api_keys = listen::api_keys(args)?;
    let bound = runtime.block_on(Bound::bind(args))?;
    let loaded = answer_while_loading(&runtime, &bound)?;
    let names = match args.served_model_name.as_slice() {
        [] => vec![default_name(&args.engine.model)],
        names => names.to_vec(),
    };
    let backend = Backend::start(&args.engine, &names[0])?;
    let (client, engine) = (backend.client, backend.engine);
    let model = served_model(args, names, backend.text, backend.defaults);
    if api_keys.is_empty() && bound.is_public() {
        tracing::warn!(
            "whoever reaches this machine can use the API: give keys with --api-key-file"
        );
    }
    tracing::info!("serving {} on {}", model.names.join(", "), bound.url()?);
    let server = Server::new(model, Arc::clone(&client), options(args, api_keys)?)?;
    runtime.block_on(prove_alive(&client))?;
    // The receiver is gone only where the early answers failed; there is nothing to end then.
    let _ = loaded.send(());
    let engine_ended = runtime.block_on(serve(server, &bound, &client))?;
    // Connections that outlived the shutdown timeout go with the runtime, and their requests with them.
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(client);
    engine.stop().context("the engine failed")?;
    if engine_ended {
        bail!("the engine ended by itself");
    }
    tracing::info!("stopped");
    Ok(())
}

/// Answers 503 until the returned sender is used.
fn answer_while_loading(runtime: &Runtime, bound: &Bound) -> Result<oneshot::Sender<()>> {
    let (loaded, has_loaded) = oneshot::channel();
    let _inside = runtime.enter();
    let listener = bound.listener()?;
    runtime.spawn(refuse_while_loading(listener, async {
        let _ = has_loaded.await;
    }));
    Ok(loaded)
}

/// Generates one token, so that a server which says that it is healthy can.
async fn prove_alive(client: &RingClient) -> Result<()> {
    let mut tokens = Vec::new();
    let mut request = client.submit(&Submission::new(&[0], 1))?;
    let reason = loop {
        match request.next(&mut tokens).await {
            Progress::More => {}
            Progress::Finished(finish) => break finish.reason,
        }
    };
    match reason {
        FinishReason::Failed(error) => Err(error).context("the engine cannot generate a token"),
        _ => Ok(()),
    }
}

fn served_model(
    args: &ServeArgs,
    names: Vec<String>,
    mut text: ModelText,
    defaults: SamplingDefaults,
) -> ServedModel {
    let (tool_format, reasoning_format) = text::message_formats(args, &text);
    let chat = text::chat_encoder(&mut text);
    if chat.is_none() {
        tracing::warn!(
            "the model has no chat template: /v1/chat/completions is refused; give one with --chat-template"
        );
    }
    ServedModel {
        names,
        root: args.engine.model.display().to_string(),
        tokenizer: text.tokenizer,
        chat,
        tool_format,
        reasoning_format,
        eos_token_ids: text.eos_ids,
        defaults: match args.generation_config {
            DefaultsFrom::Auto => defaults,
            DefaultsFrom::Vllm => SamplingDefaults::default(),
        },
    }
}

fn options(args: &ServeArgs, api_keys: Vec<String>) -> Result<ServerOptions> {
    let cors = args.allowed_origins.as_ref().map(|origins| {
        let (methods, headers) = (&args.allowed_methods.0, &args.allowed_headers.0);
        Cors::new(&origins.0, methods, headers, args.allow_credentials)
    });
    let traces = args
        .otlp_traces_endpoint
        .clone()
        .map(|collector| TraceOptions {
            collector,
            service_name: args.otel_service_name.clone(),
        });
    Ok(ServerOptions {
        api_keys,
        max_body_bytes: (args.max_body_mib as usize) << 20,
        max_messages: args.max_messages as usize,
        max_concurrent_requests: args.max_concurrent_requests.map(|n| n as usize),
        max_queued_sequences: args.max_num_queued_requests.map(|n| n as usize),
        request_timeout: args
            .request_timeout
            .map(|seconds| Duration::from_secs(seconds.into())),
        cors: cors.transpose()?,
        traces,
        trust_request_chat_template: args.trust_request_chat_template,
        page: !args.no_ui,
        seed: args.engine.seed,
        shutdown_timeout: args.shutdown_timeout,
    })
}

/// Serves to the end; returns whether that was the engine's doing.
async fn serve(server: Server, bound: &Bound, client: &RingClient) -> Result<bool> {
    let listener = bound.listener()?;
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let engine_ended = AtomicBool::new(false);
    let shutdown = async {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM"),
            _ = interrupt.recv() => {
                tracing::info!("ctrl-C: again to stop at once");
                tokio::spawn(async move {
                    interrupt.recv().await;
                    std::process::exit(130);
                });
            }
            () = until_engine_ends(client) => engine_ended.store(true, Ordering::Relaxed),
        }
    };
    server.serve(listener, shutdown).await;
    // Relaxed: written by this same task.
    Ok(engine_ended.load(Ordering::Relaxed))
}

async fn until_engine_ends(client: &RingClient) {
    loop {
        if let health @ (EngineHealth::Stopped | EngineHealth::Failed(_)) = client.engine_health() {
            tracing::error!("the engine is gone: {health}");
            return;
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// A few threads carry thousands of streams; the rest of the machine is the engine's.
fn num_http_threads() -> usize {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .div_ceil(4)
        .clamp(1, 8)
}
