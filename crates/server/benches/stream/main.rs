//! What streaming costs: a mock engine, real sockets, `NUM_CLIENTS` streams of `NUM_TOKENS` tokens at a time.
//!
//!     cargo bench -p izar-server --bench stream [-- SECONDS]
//!
//! Prints CPU time a token on the server's threads (the kernel's part of its socket writes included; clients run on threads of
//! their own and are not counted) for three servers: a bare writer that sends the same bytes through the same HTTP library, Izar
//! with tokens that are ready at once, and Izar with a token every 10 ms, where every token is a wake-up and a write of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::routing::post;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[path = "../tests/api/support.rs"]
mod support;

use http_body_util::BodyExt;
use izar_server::ServerOptions;
use izar_transport::mock_engine::Reply;
use support::{answering, server};
use tower::ServiceExt;

const NUM_CLIENTS: usize = 256;
const NUM_TOKENS: u64 = 64;

fn main() {
    let seconds = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .next()
        .unwrap_or(5);
    let time = Duration::from_secs(seconds);
    let at_once = answering(|_| Reply::counting(97));
    let mut paced = at_once.clone();
    paced.step_time = Duration::from_millis(10);
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"Hi"}}],"stream":true,"ignore_eos":true,"max_tokens":{NUM_TOKENS}}}"#
    );
    let (at_once, _client, _engine) = server(at_once, ServerOptions::default());
    let whole = runtime().block_on(answer(at_once.router(), body.clone()));
    let num_bytes = whole.len() as u64 / NUM_TOKENS;
    println!("{NUM_CLIENTS} clients, {NUM_TOKENS} tokens an answer, {num_bytes} bytes a token");
    let repeat = move || std::future::ready(Body::from(whole.clone()));
    let bare = Router::new().route("/v1/chat/completions", post(repeat));
    measure("bare writer", bare, &body, b"[DONE]\n\n", time);
    measure("izar, at once", at_once.router(), &body, CHUNKED_END, time);
    let (paced, _client, _engine) = server(paced, ServerOptions::default());
    measure("izar, paced", paced.router(), &body, CHUNKED_END, time);
}

/// The whole body of one answer.
async fn answer(router: Router, body: String) -> Bytes {
    let request = Request::post("/v1/chat/completions").body(Body::from(body));
    let response = router.oneshot(request.expect("a request")).await;
    let body = response.expect("infallible").into_body();
    body.collect().await.expect("a whole body").to_bytes()
}

/// How a chunked body ends.
const CHUNKED_END: &[u8] = b"\r\n0\r\n\r\n";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Serves `router` from one thread and prints what its answers, which end with `end`, cost.
fn measure(name: &str, router: Router, body: &str, end: &'static [u8], time: Duration) {
    let (address, addresses) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let reader_before = cpu_time_of("izar-tokens");
    let server = std::thread::spawn(move || {
        runtime().block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
            address
                .send(listener.local_addr().expect("an address"))
                .expect("a receiver");
            tokio::select! {
                _ = axum::serve(listener, router).into_future() => {}
                _ = stopped => {}
            }
        });
        cpu_time("/proc/thread-self/schedstat")
    });
    let address = addresses.recv().expect("listening");
    let begun = Instant::now();
    let num_answers = runtime().block_on(clients(address, body, end, time));
    let wall = begun.elapsed();
    let reader = cpu_time_of("izar-tokens") - reader_before;
    drop(stop);
    let http = server.join().expect("no panic");
    let num_tokens = num_answers * NUM_TOKENS;
    let per_token = |cpu: Duration| cpu.as_secs_f64() * 1e6 / num_tokens as f64;
    println!(
        "{name:>13}: {:.0} tokens/s, {:.2} µs a token on the HTTP thread + {:.2} µs on the token reader = {:.0} tokens/s per core",
        num_tokens as f64 / wall.as_secs_f64(),
        per_token(http),
        per_token(reader),
        num_tokens as f64 / (http + reader).as_secs_f64(),
    );
}

/// Clients that ask again and again until `time` is over; returns the number of answers.
async fn clients(address: SocketAddr, body: &str, end: &'static [u8], time: Duration) -> u64 {
    let request: Arc<str> = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into();
    let (num_answers, over) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let clients: Vec<_> = (0..NUM_CLIENTS)
        .map(|_| {
            let (request, num_answers, over) = (
                Arc::clone(&request),
                Arc::clone(&num_answers),
                Arc::clone(&over),
            );
            tokio::spawn(async move {
                let mut socket = TcpStream::connect(address).await.expect("connected");
                let mut buffer = vec![0; 64 * 1024];
                while !over.load(Relaxed) {
                    socket.write_all(request.as_bytes()).await.expect("sent");
                    read_answer(&mut socket, &mut buffer, end).await;
                    num_answers.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    over.store(true, Relaxed);
    for client in clients {
        client.await.expect("no panic");
    }
    num_answers.load(Relaxed)
}

/// Reads one answer.
async fn read_answer(socket: &mut TcpStream, buffer: &mut [u8], end: &[u8]) {
    let mut num_read = 0;
    while !buffer[..num_read].ends_with(end) {
        num_read += socket
            .read(&mut buffer[num_read..])
            .await
            .expect("an answer");
    }
}

fn cpu_time(schedstat: &str) -> Duration {
    let stat = std::fs::read_to_string(schedstat).unwrap_or_default();
    Duration::from_nanos(
        stat.split(' ')
            .next()
            .and_then(|ns| ns.parse().ok())
            .unwrap_or(0),
    )
}

/// CPU time of this process's threads called `name`.
fn cpu_time_of(name: &str) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task")
        .expect("Linux")
        .flatten();
    let named = tasks.filter(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    named
        .map(|task| cpu_time(task.path().join("schedstat").to_str().expect("UTF-8")))
        .sum()
}
