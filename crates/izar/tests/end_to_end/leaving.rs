//! Clients that leave, in every phase a sequence has, and more clients than there is room for.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::load::send_raw;
use crate::prompts::{Rng, passage};
use crate::server::{Server, wait_until};

const MAX_NUM_SEQS: usize = 4;

/// Prompts are computed in chunks of 16 tokens, and four sequences at once: a long prompt takes many steps, and a fifth client waits.
fn start() -> Server {
    Server::start(&[
        "--max-model-len",
        "1024",
        "--max-num-seqs",
        "4",
        "--max-num-batched-tokens",
        "16",
    ])
}

fn long_prompt() -> Value {
    vec![28; 900].into()
}

#[test]
fn a_client_that_leaves_in_any_phase_gives_everything_back() {
    let server = start();
    let probe = json!({"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0});
    let expected = server.complete(&probe).ids;
    let endless = json!({"prompt": "x", "max_tokens": 900, "ignore_eos": true});
    let streaming = json!({"prompt": "x", "max_tokens": 900, "ignore_eos": true, "stream": true});
    let prefilling = json!({"prompt": long_prompt(), "max_tokens": 4});
    let prefilling_stream = json!({"prompt": long_prompt(), "max_tokens": 4, "stream": true});
    for (phase, bodies) in [
        ("prefill", vec![&prefilling, &prefilling_stream]),
        ("decoding, not streamed", vec![&endless]),
        ("streaming", vec![&streaming, &streaming]),
        (
            "queued",
            vec![
                &endless,
                &endless,
                &endless,
                &endless,
                &streaming,
                &prefilling,
            ],
        ),
    ] {
        let mut sockets: Vec<TcpStream> =
            bodies.iter().map(|body| send_raw(&server, body)).collect();
        wait_until("all have arrived", || {
            let metrics = server.metrics();
            metrics["izar:ring_slots_in_use"] == bodies.len() as f64
                && metrics["vllm:num_requests_running"] == bodies.len().min(MAX_NUM_SEQS) as f64
        });
        if phase == "streaming" {
            for socket in &mut sockets {
                assert!(socket.read(&mut [0; 64]).expect("a head") > 0);
            }
        }
        let left = Instant::now();
        // All but the first leave, those that wait among them; then the first does.
        drop(sockets.split_off(1));
        wait_until("those that left are gone", || {
            server.metric("izar:ring_slots_in_use") <= 1.0
        });
        drop(sockets);
        server.until_idle();
        println!("{phase}: idle {:?} after the first left", left.elapsed());
        assert_eq!(server.complete(&probe).ids, expected, "after {phase}");
        server.until_idle();
    }
}

#[test]
fn a_burst_of_ten_times_the_capacity_is_answered_and_the_server_recovers() {
    let server = start();
    let mut rng = Rng(11);
    let bodies: Vec<Value> = (0..10 * MAX_NUM_SEQS)
        .map(|i| json!({"prompt": passage(&mut rng, 8), "max_tokens": 6, "temperature": 0, "stream": i % 2 == 0}))
        .collect();
    std::thread::scope(|scope| {
        let clients: Vec<_> = bodies
            .iter()
            .map(|body| scope.spawn(|| server.try_complete(body)))
            .collect();
        for client in clients {
            let answer = client.join().expect("no panic");
            match answer.status {
                200 => assert!(answer.text.contains("finish_reason"), "{}", answer.text),
                429 => assert!(answer.retry_after_s() >= 1),
                status => panic!("{status}: {}", answer.text),
            }
        }
    });
    server.until_idle();
    assert_eq!(
        server.chat("Name the capital of France."),
        "The capital of France is Paris."
    );
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    let server = start();
    let body = json!({"prompt": "x", "max_tokens": 900, "ignore_eos": true, "stream": true, "logprobs": 20});
    let mut stalled: Vec<TcpStream> = (0..2).map(|_| send_raw(&server, &body)).collect();
    let begun = Instant::now();
    for _ in 0..3 {
        let answer =
            server.complete(&json!({"prompt": "Once", "max_tokens": 8, "ignore_eos": true}));
        assert_eq!(answer.ids.len(), 8);
    }
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
    for socket in &mut stalled {
        socket.flush().expect("open");
    }
    drop(stalled);
    server.until_idle();
}
