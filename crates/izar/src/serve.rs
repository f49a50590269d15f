//! `izar serve`: engine and front end in one process, until a signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use izar_server::{SamplingDefaults, ServedModel, Server, ServerOptions};
use izar_transport::client::{EngineHealth, RingClient};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

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
    // Bound before the model is loaded: a port that is taken should not cost a minute to find out.
    let address = (args.host, args.port);
    let listener = runtime
        .block_on(TcpListener::bind(address))
        .with_context(|| {
            format!(
                "cannot listen on {}:{}: choose another --host or --port",
                args.host, args.port
            )
        })?;
    let names = match args.served_model_name.as_slice() {
        [] => vec![default_name(&args.engine.model)],
        names => names.to_vec(),
    };
    let Backend {
        client,
        engine,
        mut text,
        defaults,
    } = Backend::start(&args.engine, &names[0])?;
    let model = ServedModel {
        root: args.engine.model.display().to_string(),
        tokenizer: Arc::clone(&text.tokenizer),
        chat: text::chat_encoder(&mut text),
        eos_token_ids: text.eos_ids,
        defaults: match args.generation_config {
            DefaultsFrom::Auto => defaults,
            DefaultsFrom::Vllm => SamplingDefaults::default(),
        },
        names,
    };
    if model.chat.is_none() {
        tracing::warn!(
            "the model has no chat template: /v1/chat/completions is refused; give one with --chat-template"
        );
    }
    tracing::info!(
        "serving {} on http://{}/v1",
        model.names.join(", "),
        listener.local_addr()?
    );
    let server = Server::new(model, Arc::clone(&client), options(args))?;
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

fn options(args: &ServeArgs) -> ServerOptions {
    ServerOptions {
        api_keys: args.api_key.clone(),
        max_body_bytes: (args.max_body_mib as usize) << 20,
        seed: args.engine.seed,
        shutdown_timeout: args.shutdown_timeout,
    }
}

/// Serves to the end; returns whether that was the engine's doing.
async fn serve(server: Server, listener: TcpListener, client: &RingClient) -> Result<bool> {
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
