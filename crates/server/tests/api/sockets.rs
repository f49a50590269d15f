//! Clients on real connections: those that leave, those that do not read, and more of them than there is room for.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use izar_ring::{RingGeometry, RingOptions};
use izar_server::ServerOptions;
use izar_tokenizer::{ChatEncoder, ChatTemplate, SpecialTokens};
use izar_transport::mock_engine::{MockOptions, Reply, ReplyEnd};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::common::{Harness, IM_END, answering, tokens_of};
use crate::support::server_with;

const STEP: Duration = Duration::from_millis(20);

/// Serves the harness's router; the server lives as long as the runtime.
async fn listen(harness: &Harness) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address");
    let router = harness.router.clone();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Sends a completion request and reads nothing.
async fn send(address: SocketAddr, body: &Value) -> TcpStream {
    send_on(TcpStream::connect(address).await.expect("connected"), body).await
}

async fn send_on(mut socket: TcpStream, body: &Value) -> TcpStream {
    let body = body.to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let request = head + &body;
    socket.write_all(request.as_bytes()).await.expect("sent");
    socket
}

/// Reads an answer to its end.
async fn read(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.expect("an answer");
    String::from_utf8(answer).expect("UTF-8")
}

/// A server whose ring has `num_slots`.
fn small(num_slots: u32, mock: MockOptions) -> Harness {
    let ring = RingOptions {
        geometry: RingGeometry {
            num_slots,
            ..RingGeometry::default()
        },
        ..RingOptions::default()
    };
    let template = ChatTemplate::new("{{ messages[0].content }}", SpecialTokens::default());
    let encoder = ChatEncoder::new(crate::support::tokenizer(), template.expect("a template"));
    let (server, client, engine) =
        server_with(encoder, vec![IM_END], &ring, mock, ServerOptions::default());
    Harness::around(&server, client, engine)
}

/// Where a request is when its client leaves.
#[derive(Debug, Clone, Copy)]
enum Phase {
    Queued,
    BeforeTheFirstToken,
    Generating,
}

#[tokio::test]
async fn a_client_that_leaves_in_any_phase_frees_its_slots_within_a_few_steps() {
    for phase in [Phase::Queued, Phase::BeforeTheFirstToken, Phase::Generating] {
        for (stream, n) in [(true, 1), (false, 1), (true, 3), (false, 3)] {
            let mut mock = answering(move |_| Reply {
                end: ReplyEnd::Hang,
                ..Reply::tokens(match phase {
                    Phase::Generating => tokens_of("endless")[..7].to_vec(),
                    _ => Vec::new(),
                })
            });
            mock.step_time = STEP;
            mock.max_num_seqs = if matches!(phase, Phase::Queued) {
                1
            } else {
                64
            };
            let harness = Harness::new(mock);
            let address = listen(&harness).await;
            let order = izar_transport::client::Submission::new(&[1], 100);
            let first = harness.client.submit(&order).expect("a slot");
            let body = json!({"prompt": "x", "stream": stream, "n": n, "ignore_eos": true, "max_tokens": 400});
            let mut socket = send(address, &body).await;
            while harness.client.stats().slots_in_use < 1 + n {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if matches!(phase, Phase::Generating) && stream {
                let mut some = [0; 64];
                assert!(socket.read(&mut some).await.expect("a head") > 0);
            }
            drop(socket);
            let left = Instant::now();
            while harness.client.stats().slots_in_use > 1 {
                assert!(
                    left.elapsed() < 50 * STEP,
                    "{phase:?} stream {stream} n {n}: {:?}",
                    harness.client.stats()
                );
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(first);
            harness.until_idle().await;
            assert_eq!(harness.metric("izar:http_requests_in_flight").await, 0.0);
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_it_sends_its_request_costs_nothing() {
    let harness = Harness::new(answering(|_| Reply::tokens(tokens_of("ok"))));
    let address = listen(&harness).await;
    for part in [
        "P",
        "POST /v1/completions HTTP/1.1\r\n",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"prompt\":",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"pro",
    ] {
        let mut socket = TcpStream::connect(address).await.expect("connected");
        socket.write_all(part.as_bytes()).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(10)).await;
        drop(socket);
    }
    let mut socket = send(address, &json!({"prompt": "x"})).await;
    assert!(read(&mut socket).await.starts_with("HTTP/1.1 200"));
    assert_eq!(harness.client.stats().num_submitted, 1);
    while harness.metric("izar:http_requests_in_flight").await > 0.0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_burst_of_ten_times_the_capacity_gets_results_or_prompt_429s_and_the_server_recovers() {
    const CAPACITY: u32 = 32;
    let mut mock = answering(|_| Reply::tokens(tokens_of("an answer")));
    mock.step_time = Duration::from_millis(2);
    let harness = small(CAPACITY, mock);
    let address = listen(&harness).await;
    for stream in [false, true] {
        let clients: Vec<_> = (0..10 * CAPACITY)
            .map(|_| {
                tokio::spawn(async move {
                    let sent = Instant::now();
                    let mut socket = send(address, &json!({"prompt": "x", "stream": stream})).await;
                    (read(&mut socket).await, sent.elapsed())
                })
            })
            .collect();
        let (mut served, mut refused) = (0, 0);
        for client in clients {
            let (answer, _) = client.await.expect("no panic");
            match &answer[9..12] {
                "200" => {
                    assert!(answer.contains("\"finish_reason\":\"stop\""), "{answer}");
                    served += 1;
                }
                "429" => {
                    assert!(answer.to_lowercase().contains("retry-after: "), "{answer}");
                    refused += 1;
                }
                other => panic!("{other}: {answer}"),
            }
        }
        assert_eq!(served + refused, 10 * CAPACITY);
        assert!(served >= CAPACITY, "{served} served, {refused} refused");
        harness.until_idle().await;
        assert_eq!(harness.client.stats().slots_in_use, 0);
        let mut socket = send(address, &json!({"prompt": "x"})).await;
        assert!(read(&mut socket).await.starts_with("HTTP/1.1 200"));
    }
}

#[tokio::test]
async fn clients_that_do_not_read_stall_nobody_else() {
    let harness = Harness::new(answering(|_| Reply::counting(97)));
    let address = listen(&harness).await;
    let body = json!({"prompt": "x", "stream": true, "max_tokens": 500, "ignore_eos": true, "n": 64, "logprobs": 5});
    // Each answer is some 12 MB, more than the buffers of its connection take.
    let mut stalled = Vec::new();
    for _ in 0..4 {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .set_recv_buffer_size(16 * 1024)
            .expect("a small buffer");
        let socket = socket.connect(address).await.expect("connected");
        stalled.push(send_on(socket, &body).await);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(harness.metric("izar:http_requests_in_flight").await, 4.0);
    let begun = Instant::now();
    for _ in 0..20 {
        let mut socket = send(
            address,
            &json!({"prompt": "x", "max_tokens": 20, "ignore_eos": true, "stream": true}),
        )
        .await;
        assert!(read(&mut socket).await.contains("[DONE]"));
    }
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    drop(stalled);
    harness.until_idle().await;
    while harness.metric("izar:http_requests_in_flight").await > 0.0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
