//! `izar serve`: engine and front end in one process, until a signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use izar_server::{SamplingDefaults, ServedModel, Server, ServerOptions, refuse_while_loading};
use izar_tokenizer::ModelText;
use izar_transport::client::{EngineHealth, RingClient};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::backend::{Backend, default_name};
use crate::cli::{DefaultsFrom, ServeArgs};
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
    let listener = runtime.block_on(listen(args))?;
    let loaded = answer_while_loading(&runtime, listener.try_clone()?);
    let names = match args.served_model_name.as_slice() {
        [] => vec![default_name(&args.engine.model)],
        names => names.to_vec(),
    };
    let backend = Backend::start(&args.engine, &names[0])?;
    let (client, engine) = (backend.client, backend.engine);
    let model = served_model(args, names, backend.text, backend.defaults);
    tracing::info!(
        "serving {} on http://{}/v1",
        model.names.join(", "),
        listener.local_addr()?
    );
    let server = Server::new(model, Arc::clone(&client), options(args))?;
    // The receiver is gone only where the early answers failed; there is nothing to end then.
    let _ = loaded.send(());
    let engine_ended = runtime.block_on(serve(server, listener, &client))?;
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

async fn listen(args: &ServeArgs) -> Result<std::net::TcpListener> {
    let listener = TcpListener::bind((args.host, args.port)).await;
    let listener = listener.with_context(|| {
        format!(
            "cannot listen on {}:{}: choose another --host or --port",
            args.host, args.port
        )
    })?;
    Ok(listener.into_std()?)
}

/// Answers 503 until the returned sender is used.
fn answer_while_loading(runtime: &Runtime, listener: std::net::TcpListener) -> oneshot::Sender<()> {
    let (loaded, has_loaded) = oneshot::channel();
    runtime.spawn(async move {
        let loaded = async {
            let _ = has_loaded.await;
        };
        match TcpListener::from_std(listener) {
            Ok(listener) => refuse_while_loading(listener, loaded).await,
            Err(error) => {
                tracing::warn!(%error, "clients get no answer while the model is loading");
            }
        }
    });
    loaded
}

fn served_model(
    args: &ServeArgs,
    names: Vec<String>,
    mut text: ModelText,
    defaults: SamplingDefaults,
) -> ServedModel {
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
        eos_token_ids: text.eos_ids,
        defaults: match args.generation_config {
            DefaultsFrom::Auto => defaults,
            DefaultsFrom::Vllm => SamplingDefaults::default(),
        },
    }
}

fn options(args: &ServeArgs) -> ServerOptions {
    ServerOptions {
        api_keys: args.api_key.clone(),
        max_body_bytes: (args.max_body_mib as usize) << 20,
        seed: args.engine.seed,
        shutdown_timeout: args.shutdown_timeout,
    }
}

/// Serves to the end; returns whether that was the engine's doing.
async fn serve(
    server: Server,
    listener: std::net::TcpListener,
    client: &RingClient,
) -> Result<bool> {
    let listener = TcpListener::from_std(listener)?;
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
    server.serve(listener, shutdown).await?;
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
