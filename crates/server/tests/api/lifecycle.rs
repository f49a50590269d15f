//! Coming and going: clients that leave, a full ring, a lost engine, shutting down.

use std::time::Duration;

use axum::http::StatusCode;
use izar_server::ServerOptions;
use izar_transport::mock_engine::{Reply, ReplyEnd};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{Harness, answering, chat_body, saying, server, tokens_of};

/// A mock that never ends an answer by itself.
fn endless() -> izar_transport::mock_engine::MockOptions {
    answering(|_| Reply {
        end: ReplyEnd::Hang,
        ..Reply::tokens(tokens_of("endless"))
    })
}

fn request(body: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn connect(address: std::net::SocketAddr, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.expect("connected");
    socket
        .write_all(request(body).as_bytes())
        .await
        .expect("sent");
    socket
}

#[tokio::test]
async fn client_that_leaves_in_any_phase_frees_its_slot() {
    let harness = Harness::new(endless());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let router = harness.router.clone();
    tokio::spawn(async move { axum::serve(listener, router).await });
    for stream in [false, true] {
        let mut socket = connect(
            address,
            &chat_body(json!({"stream": stream, "ignore_eos": true, "n": 3})),
        )
        .await;
        while harness.client.stats().slots_in_use < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if stream {
            let mut first = [0; 64];
            assert!(socket.read(&mut first).await.expect("a head") > 0);
        }
        drop(socket);
        harness.until_idle().await;
    }
    assert_eq!(harness.metric("vllm:request_success_total").await, 6.0);
    assert_eq!(harness.metric("izar:http_requests_in_flight").await, 0.0);
}

#[tokio::test]
async fn full_ring_is_429_with_when_to_come_back_and_recovers() {
    let harness = Harness::new(endless());
    let mut held = Vec::new();
    loop {
        let order = izar_transport::client::Submission::new(&[1], 100);
        match harness.client.submit(&order) {
            Ok(handle) => held.push(handle),
            Err(izar_transport::client::SubmitError::Full { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    for stream in [false, true] {
        let answer = harness.chat(json!({"stream": stream})).await;
        assert_eq!(
            (answer.status, answer.error("type")),
            (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error".into())
        );
        assert!(
            answer.headers["retry-after"]
                .to_str()
                .expect("text")
                .parse::<u32>()
                .expect("seconds")
                >= 1
        );
    }
    assert_eq!(harness.metric("izar:admission_rejections_total").await, 2.0);
    held.clear();
    harness.until_idle().await;
    assert_eq!(
        harness.chat(json!({"max_tokens": 2})).await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn sequences_of_a_request_that_does_not_fit_whole_are_given_back() {
    let harness = Harness::new(endless());
    let free = harness.client.stats().num_slots;
    let held: Vec<_> = (0..free - 2)
        .map(|_| {
            harness
                .client
                .submit(&izar_transport::client::Submission::new(&[1], 100))
        })
        .collect::<Result<_, _>>()
        .expect("slots");
    assert_eq!(
        harness.chat(json!({"n": 3})).await.status,
        StatusCode::TOO_MANY_REQUESTS
    );
    drop(held);
    harness.until_idle().await;
}

#[tokio::test]
async fn engine_that_stops_is_503_and_unhealthy() {
    let mut harness = Harness::new(saying("ok"));
    harness.stop_engine();
    let answer = harness.chat(json!({})).await;
    assert_eq!(
        (answer.status, answer.error("code")),
        (StatusCode::SERVICE_UNAVAILABLE, "engine_unavailable".into())
    );
    assert_eq!(
        harness.get("/health").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(harness.metric("izar:engine_up").await, 0.0);
}

#[tokio::test]
async fn healthy_server_says_so_and_its_version() {
    let harness = Harness::new(saying("ok"));
    assert_eq!(harness.get("/health").await.status, StatusCode::OK);
    assert_eq!(
        harness.get("/version").await.json()["version"],
        env!("CARGO_PKG_VERSION")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_lets_answers_end_and_refuses_new_ones() {
    let mut mock = saying("a slow answer");
    mock.step_time = Duration::from_millis(20);
    let (server, _client, _engine) = server(mock, ServerOptions::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(listener, async {
        let _ = stopped.await;
    }));
    let mut slow = connect(address, &chat_body(json!({"stream": true}))).await;
    let mut head = [0; 16];
    slow.read_exact(&mut head).await.expect("a head");
    stop.send(()).expect("serving");
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut refused = connect(address, &chat_body(json!({}))).await;
    refused.read_exact(&mut head).await.expect("an answer");
    assert_eq!(&head[9..12], b"503");
    let mut rest = Vec::new();
    drop(refused);
    while !String::from_utf8_lossy(&rest).contains("[DONE]") {
        let num_bytes = slow.read_buf(&mut rest).await.expect("the rest");
        assert!(num_bytes > 0, "cut off: {}", String::from_utf8_lossy(&rest));
    }
    let ended = tokio::time::timeout(Duration::from_secs(5), serving)
        .await
        .expect("in time");
    ended.expect("no panic");
}

#[tokio::test]
async fn unseeded_requests_differ_and_seeds_reach_the_engine() {
    let (seeds, seen) = std::sync::mpsc::channel();
    let seeds = std::sync::Mutex::new(seeds);
    let mut mock = saying("ok");
    mock.script = std::sync::Arc::new(move |request, _| {
        let seed = request.seed.expect("a seed");
        seeds
            .lock()
            .expect("unpoisoned")
            .send(seed)
            .expect("a receiver");
        Reply::tokens(tokens_of("ok"))
    });
    let harness = Harness::new(mock);
    harness.chat(json!({})).await;
    harness.chat(json!({})).await;
    harness.chat(json!({"seed": -1, "n": 2})).await;
    let mut seeds: Vec<u64> = seen.try_iter().collect();
    assert_ne!(seeds[0], seeds[1]);
    seeds[2..].sort_unstable();
    assert_eq!(seeds[2..], [0, u64::MAX]);
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let harness = Harness::new(saying("abc"));
    harness.chat(json!({"n": 2})).await;
    harness.until_idle().await;
    assert_eq!(harness.metric("vllm:generation_tokens_total").await, 8.0);
    assert_eq!(
        harness
            .metric("vllm:time_to_first_token_seconds_count")
            .await,
        2.0
    );
    assert_eq!(
        harness
            .metric("vllm:inter_token_latency_seconds_count")
            .await,
        6.0
    );
    assert_eq!(harness.metric("vllm:request_success_total").await, 2.0);
    assert_eq!(harness.metric("izar:ring_slots_in_use").await, 0.0);
    assert_eq!(harness.metric("izar:engine_up").await, 1.0);
}

#[tokio::test]
async fn everything_is_503_while_loading_and_the_listener_is_free_afterwards() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    listener.set_nonblocking(true).expect("nonblocking");
    let address = listener.local_addr().expect("an address");
    let early = TcpListener::from_std(listener.try_clone().expect("cloned")).expect("registered");
    let (load, loaded) = tokio::sync::oneshot::channel::<()>();
    let refusing = tokio::spawn(izar_server::refuse_while_loading(early, async {
        let _ = loaded.await;
    }));
    let mut head = [0; 12];
    let mut refused = connect(address, "{}").await;
    refused.read_exact(&mut head).await.expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 503");
    drop(refused);
    // Accepted while loading, asks when it is over.
    let mut late = tokio::net::TcpStream::connect(address)
        .await
        .expect("connected");
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    load.send(()).expect("refusing");
    refusing.await.expect("no panic");
    late.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .expect("sent");
    late.read_exact(&mut head).await.expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 503");
    let harness = Harness::new(saying("ok"));
    let listener = TcpListener::from_std(listener).expect("registered");
    let router = harness.router.clone();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut answered = connect(address, &chat_body(json!({}))).await;
    answered.read_exact(&mut head).await.expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 200");
}
