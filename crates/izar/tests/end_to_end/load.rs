//! Many at once: nothing is lost, nothing is kept, and nobody's answer depends on the others.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::prompts::{Rng, passage};
use crate::server::Server;

const NUM_REQUESTS: usize = 200;
const MAX_PROMPT_WORDS: usize = 24;
const MAX_TOKENS: usize = 16;
/// Of the requests that run to their end, every so many is compared with the same request alone.
const COMPARED: usize = 8;

/// What one of the clients does.
enum Client {
    /// Reads to the end.
    Stays(Value),
    /// Drops the connection after so many chunks.
    Leaves { body: Value, num_chunks: usize },
    /// Drops the connection as soon as the request is written.
    LeavesAtOnce(Value),
}

fn clients() -> Vec<Client> {
    let mut rng = Rng(2026);
    let client = |i| {
        let num_words = 1 + rng.below(MAX_PROMPT_WORDS);
        let mut body = json!({
            "prompt": passage(&mut rng, num_words),
            "max_tokens": 1 + rng.below(MAX_TOKENS),
            "temperature": 0,
            "ignore_eos": true,
        });
        if i % 3 != 0 {
            return Client::Stays(body);
        }
        body["max_tokens"] = 400.into();
        match rng.below(10) {
            0 => Client::LeavesAtOnce(body),
            num_chunks => Client::Leaves { body, num_chunks },
        }
    };
    (0..NUM_REQUESTS).map(client).collect()
}

/// Runs one client; returns its token ids where it stays.
fn run(server: &Server, client: &Client) -> Option<Vec<u32>> {
    match client {
        Client::Stays(body) => {
            let streamed = server.stream(body).finish();
            assert_eq!(streamed.finish_reason, "length", "{body}");
            assert_eq!(streamed.ids.len() as u64, body["max_tokens"], "{body}");
            Some(streamed.ids)
        }
        Client::Leaves { body, num_chunks } => {
            let mut stream = server.stream(body);
            let read = stream.by_ref().take(*num_chunks).count();
            assert_eq!(read, *num_chunks, "{body}");
            None
        }
        Client::LeavesAtOnce(body) => {
            drop(send_raw(server, body));
            None
        }
    }
}

/// Writes a completion request and waits for nothing.
pub fn send_raw(server: &Server, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut socket = TcpStream::connect(&server.address).expect("connected");
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket
        .write_all(format!("{head}{body}").as_bytes())
        .expect("sent");
    socket
}

#[test]
fn two_hundred_streams_of_which_a_third_leave_end_exactly_and_give_all_back() {
    let server = Server::start(&["--max-model-len", "512", "--max-num-seqs", "48"]);
    let clients = clients();
    let probe = json!({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0});
    let before = server.complete(&probe);

    let answers: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = clients
            .iter()
            .map(|client| scope.spawn(|| run(&server, client)))
            .collect();
        let join = |client: std::thread::ScopedJoinHandle<'_, _>| client.join().expect("no panic");
        running.into_iter().map(join).collect()
    });

    server.until_idle();
    let metrics = server.metrics();
    let num_staying = answers.iter().flatten().count();
    let num_left = clients
        .iter()
        .filter(|client| matches!(client, Client::Leaves { .. }))
        .count();
    let finished = |reason: &str| {
        metrics[&format!("vllm:request_success_total{{finished_reason=\"{reason}\"}}")]
    };
    assert_eq!(finished("length"), num_staying as f64 + 1.0);
    assert!(
        finished("abort") >= num_left as f64,
        "{}",
        finished("abort")
    );
    assert_eq!(finished("error"), 0.0);
    assert_eq!(server.complete(&probe).ids, before.ids);

    let staying = clients
        .iter()
        .zip(&answers)
        .filter_map(|(client, ids)| match client {
            Client::Stays(body) => Some((body, ids.as_ref()?)),
            _ => None,
        });
    for (body, ids) in staying.step_by(COMPARED) {
        assert_eq!(
            &server.complete(body).ids,
            ids,
            "alone is different: {body}"
        );
    }
}

#[test]
fn preempted_sequences_end_as_if_they_had_not_been() {
    // Eight sequences of some 80 tokens need 40 blocks.
    let server = Server::start(&[
        "--max-model-len",
        "160",
        "--max-num-seqs",
        "8",
        "--num-kv-blocks",
        "24",
    ]);
    let mut rng = Rng(7);
    let bodies: Vec<Value> = (0..8)
        .map(|_| json!({"prompt": passage(&mut rng, 30), "max_tokens": 40, "temperature": 0, "ignore_eos": true}))
        .collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = bodies
            .iter()
            .map(|body| scope.spawn(|| server.complete(body)))
            .collect();
        running
            .into_iter()
            .map(|request| request.join().expect("no panic"))
            .collect()
    });
    assert!(server.metric("vllm:num_preemptions_total") > 0.0);
    server.until_idle();
    for (body, together) in bodies.iter().zip(together).step_by(3) {
        assert_eq!(together.ids.len(), 40);
        assert_eq!(server.complete(body).ids, together.ids, "{body}");
    }
}

#[test]
fn seed_gives_the_same_tokens_in_any_company() {
    let server = Server::start(&["--max-model-len", "512", "--max-num-seqs", "16"]);
    let sampled = |seed: u64| json!({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 1.0, "seed": seed});
    let alone = server.complete(&sampled(7)).ids;
    std::thread::scope(|scope| {
        let others: Vec<_> = (100..112)
            .map(|seed| {
                let server = &server;
                scope.spawn(move || server.complete(&sampled(seed)).ids)
            })
            .collect();
        // The others are running by the time this one is.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(server.complete(&sampled(7)).ids, alone);
        for other in others {
            assert_ne!(other.join().expect("no panic"), alone, "seeds matter");
        }
    });
}
