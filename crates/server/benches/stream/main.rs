//! What streaming costs: a mock engine behind a real ring, real sockets, `NUM_CLIENTS` streams of `NUM_TOKENS` tokens at a time.
//!
//!     cargo bench -p izar-server --bench stream [-- SECONDS]
//!
//! First throughput: CPU time a token on the server's threads (the kernel's part of its socket writes included; clients run on
//! threads of their own and are not counted), and from it tokens a second that one core carries. Then added latency at half of
//! what a core carries when every token is a write of its own: from the engine's publishing a token to the client's having read it. Each
//! beside a bare server that sends the same bytes at the same times through the same HTTP library, so that what is left is Izar's own.
//!
//! The HTTP server runs on one thread, as the clients do.

mod bare;
mod clients;
mod clock;
#[allow(dead_code, reason = "the bench of watching uses the rest")]
mod cpu;
mod latency;

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::routing::post;
use http_body_util::BodyExt;
use izar_server::ServerOptions;
use izar_transport::mock_engine::Reply;
use tower::ServiceExt;

#[allow(dead_code)]
#[path = "../../tests/api/support.rs"]
mod support;

use clients::{Load, measure, runtime};
use support::{answering, server};

const NUM_CLIENTS: usize = 256;
const NUM_TOKENS: u64 = 64;
/// From one token of a stream to its next, where they do not come at once.
const PACE: Duration = Duration::from_millis(10);

fn main() {
    let seconds = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .next()
        .unwrap_or(5);
    let time = Duration::from_secs(seconds);
    println!("{}", cpu::machine());
    throughput(time);
    latency::at_half_load(time);
}

/// Tokens that are ready at once, and tokens that come one by one.
fn throughput(time: Duration) {
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"Hi"}}],"stream":true,"ignore_eos":true,"max_tokens":{NUM_TOKENS}}}"#
    );
    let load = |end| Load {
        path: "/v1/chat/completions",
        body: &body,
        end,
        time,
        watched: None,
    };
    let at_once = answering(|_| Reply::counting(97));
    let mut paced = at_once.clone();
    paced.step_time = PACE;
    let (at_once, _client, _engine) = server(at_once, ServerOptions::default());
    let whole = runtime().block_on(answer(at_once.router(), body.clone()));
    let num_bytes = whole.len() as u64 / NUM_TOKENS;
    println!(
        "\nthroughput: {NUM_CLIENTS} clients, {NUM_TOKENS} tokens an answer, {num_bytes} bytes a token"
    );
    let repeat = move || std::future::ready(Body::from(whole.clone()));
    let bare = Router::new().route("/v1/chat/completions", post(repeat));
    let ends_whole = &b"[DONE]\n\n"[..];
    println!(
        "{}",
        measure("bare, one write an answer", bare, &load(ends_whole)).cost()
    );
    println!(
        "{}",
        measure(
            "izar, tokens at once",
            at_once.router(),
            &load(clients::CHUNKED_END)
        )
        .cost()
    );
    let chunk = Bytes::from(vec![b'x'; num_bytes as usize]);
    let bare = bare::router(
        "/v1/chat/completions",
        bare::Pace::lockstep(PACE),
        move || chunk.clone(),
    );
    println!(
        "{}",
        measure("bare, a write a token", bare, &load(clients::CHUNKED_END)).cost()
    );
    let (paced, _client, _engine) = server(paced, ServerOptions::default());
    println!(
        "{}",
        measure(
            "izar, a write a token",
            paced.router(),
            &load(clients::CHUNKED_END)
        )
        .cost()
    );
}

/// The whole body of one answer.
async fn answer(router: Router, body: String) -> Bytes {
    let request = Request::post("/v1/chat/completions").body(Body::from(body));
    let response = router.oneshot(request.expect("a request")).await;
    let body = response.expect("infallible").into_body();
    body.collect().await.expect("a whole body").to_bytes()
}
