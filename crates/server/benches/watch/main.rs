//! What it costs that somebody watches: a mock engine behind a real ring, real sockets, and one client of `/izar/stats`.
//!
//!     cargo bench -p izar-server --bench watch [-- SECONDS [PAIRS]]
//!
//! First an idle server: the CPU time of all its threads, the mock engine's included, with nobody and with somebody watching. Then
//! `NUM_CLIENTS` streams of `NUM_TOKENS` tokens that are ready at once, in pairs of runs, one with and one without a watcher, in turn
//! one and the other first: tokens a second by the wall clock, which other load on the machine disturbs, and by the CPU time of the server's
//! threads (HTTP, token reader, sampler), which it disturbs less. What counts is the median over the pairs.

#[allow(dead_code)]
#[path = "../stream/clients.rs"]
mod clients;
#[allow(dead_code)]
#[path = "../stream/clock.rs"]
mod clock;
#[allow(dead_code)]
#[path = "../stream/cpu.rs"]
mod cpu;
#[allow(dead_code)]
#[path = "../../tests/api/support.rs"]
mod support;

use std::time::{Duration, Instant};

use axum::Router;
use izar_server::ServerOptions;
use izar_transport::mock_engine::Reply;

use clients::{Load, Measured, Serving, measure, watch};
use support::{answering, server};

const NUM_CLIENTS: usize = 256;
const NUM_TOKENS: u64 = 64;
const STATS: &str = "/izar/stats";

fn main() {
    let mut numbers = std::env::args().filter_map(|arg| arg.parse().ok());
    let time = Duration::from_secs(numbers.next().unwrap_or(3));
    let num_pairs = numbers.next().unwrap_or(15);
    println!("{}", cpu::machine());
    let mock = answering(|_| Reply::counting(97));
    let (server, _client, _engine) = server(mock, ServerOptions::default());
    idle(server.router(), 3 * time);
    loaded(&server.router(), time, num_pairs);
}

/// CPU time of a server without requests, nobody watching and then somebody.
fn idle(router: Router, time: Duration) {
    println!("\nidle, {} s each, percent of a core", time.as_secs());
    let serving = Serving::start(router);
    let share = |before: Duration| (cpu::time_of_all() - before).as_secs_f64() / time.as_secs_f64();
    let before = cpu::time_of_all();
    std::thread::sleep(time);
    let nobody = share(before);
    let watcher = std::thread::Builder::new()
        .name("watcher".into())
        .spawn(watch(serving.address, STATS))
        .expect("a thread");
    // The snapshot is not what is measured.
    std::thread::sleep(Duration::from_millis(500));
    let (before, watchers) = (cpu::time_of_all(), cpu::time_of("watcher"));
    std::thread::sleep(time);
    let somebody =
        share(before) - (cpu::time_of("watcher") - watchers).as_secs_f64() / time.as_secs_f64();
    let stopped = Instant::now();
    serving.stop();
    let num_bytes = watcher.join().expect("no panic");
    println!("      nobody watches: {:.3} %", nobody * 100.0);
    println!(
        "    somebody watches: {:.3} %, {num_bytes} bytes in {:.1} s",
        somebody * 100.0,
        (time + stopped.elapsed()).as_secs_f64() + 0.5
    );
}

/// Pairs of runs under load, with and without a watcher.
fn loaded(router: &Router, time: Duration, num_pairs: u64) {
    println!(
        "\n{NUM_CLIENTS} clients, {NUM_TOKENS} tokens an answer, tokens at once, {num_pairs} pairs of {} s",
        time.as_secs()
    );
    let run = |watched: Option<&str>| {
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"Hi"}}],"stream":true,"ignore_eos":true,"max_tokens":{NUM_TOKENS}}}"#
        );
        let load = Load {
            path: "/v1/chat/completions",
            body: &body,
            end: clients::CHUNKED_END,
            time,
            watched,
        };
        measure("izar", router.clone(), &load)
    };
    run(None);
    let (mut wall, mut core) = (Vec::new(), Vec::new());
    for pair in 0..num_pairs {
        let (without, with) = if pair % 2 == 0 {
            let without = run(None);
            (without, run(Some(STATS)))
        } else {
            let with = run(Some(STATS));
            (run(None), with)
        };
        wall.push(lost(&without, &with, Measured::tokens_per_second));
        core.push(lost(&without, &with, Measured::tokens_per_core_second));
        println!(
            "    pair {:2}: {:9.0} and, watched, {:9.0} tokens/s; {:9.0} and {:9.0} tokens/s per core",
            pair + 1,
            without.tokens_per_second(),
            with.tokens_per_second(),
            without.tokens_per_core_second(),
            with.tokens_per_core_second()
        );
    }
    println!(
        "lost with a watcher, percent: {} of tokens/s; {} of tokens/s per core",
        spread(wall),
        spread(core)
    );
}

/// Share of tokens lost, percent.
fn lost(without: &Measured, with: &Measured, rate: fn(&Measured) -> f64) -> f64 {
    (1.0 - rate(with) / rate(without)) * 100.0
}

/// Median and quartiles.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    format!(
        "median {:.2} (quartiles {:.2} and {:.2})",
        at(0.5),
        at(0.25),
        at(0.75)
    )
}
