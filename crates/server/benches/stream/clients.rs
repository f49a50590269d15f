//! Clients that ask again and again, and what their answers cost the server.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::{NUM_CLIENTS, NUM_TOKENS, clock, cpu};

/// How a chunked body ends.
pub const CHUNKED_END: &[u8] = b"\r\n0\r\n\r\n";

/// What every client sends, and for how long.
pub struct Load<'a> {
    /// Where to.
    pub path: &'a str,
    /// The request's body.
    pub body: &'a str,
    /// How an answer ends.
    pub end: &'static [u8],
    /// How long.
    pub time: Duration,
    /// A path that one more client reads meanwhile.
    pub watched: Option<&'a str>,
}

/// What threads of a server's runtime are called besides the one that serves.
const HELPER: &str = "izar-http";

/// What a run came to.
pub struct Measured {
    name: String,
    num_tokens: u64,
    wall: Duration,
    http: Duration,
    reader: Duration,
    /// From a token's publication to its arrival, µs, where tokens tell their time.
    latencies_us: Vec<u32>,
}

impl Measured {
    /// CPU time a token, as a line.
    pub fn cost(&self) -> String {
        let per_token = |cpu: Duration| cpu.as_secs_f64() * 1e6 / self.num_tokens as f64;
        format!(
            "{:>26}: {:8.0} tokens/s; {:.2} us a token on the HTTP thread + {:.2} us on the token reader = {:.0} tokens/s per core",
            self.name,
            self.tokens_per_second(),
            per_token(self.http),
            per_token(self.reader),
            self.tokens_per_core_second(),
        )
    }

    /// Tokens a second, by the wall clock.
    pub fn tokens_per_second(&self) -> f64 {
        self.num_tokens as f64 / self.wall.as_secs_f64()
    }

    /// Tokens a second that one core carries: by the CPU time of all of the server's threads.
    pub fn tokens_per_core_second(&self) -> f64 {
        self.num_tokens as f64 / (self.http + self.reader).as_secs_f64()
    }

    /// Percentiles of the added latency, as a line.
    pub fn latency(mut self) -> String {
        self.latencies_us.sort_unstable();
        let at = |share: f64| {
            let idx = (self.latencies_us.len() as f64 * share) as usize;
            self.latencies_us[idx.min(self.latencies_us.len() - 1)]
        };
        format!(
            "{:>26}: {:8.0} tokens/s, server threads {:.0} % of a core; added latency p50 {} us, p90 {} us, p99 {} us, p99.9 {} us",
            self.name,
            self.tokens_per_second(),
            (self.http + self.reader).as_secs_f64() / self.wall.as_secs_f64() * 100.0,
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999),
        )
    }
}

/// A runtime of this thread alone.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name(HELPER)
        .build()
        .expect("a runtime")
}

/// A server on a thread of its own.
pub struct Serving {
    /// Where it listens.
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<Duration>,
}

impl Serving {
    /// Serves `router` from one thread.
    pub fn start(router: Router) -> Self {
        let (address, addresses) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
                address
                    .send(listener.local_addr().expect("an address"))
                    .expect("a receiver");
                let listener =
                    axum::serve::ListenerExt::tap_io(listener, |connection: &mut TcpStream| {
                        connection.set_nodelay(true).expect("a socket");
                    });
                tokio::select! {
                    _ = axum::serve(listener, router).into_future() => {}
                    _ = stopped => {}
                }
            });
            cpu::time_here()
        });
        Self {
            address: addresses.recv().expect("listening"),
            stop,
            thread,
        }
    }

    /// Ends it; returns the CPU time of its thread.
    pub fn stop(self) -> Duration {
        drop(self.stop);
        self.thread.join().expect("no panic")
    }
}

/// Serves `router` from one thread under `load`.
pub fn measure(name: &str, router: Router, load: &Load<'_>) -> Measured {
    let helpers = || cpu::time_of("izar-tokens") + cpu::time_of(HELPER);
    let before = helpers();
    let serving = Serving::start(router);
    let watcher = load
        .watched
        .map(|path| std::thread::spawn(watch(serving.address, path)));
    let begun = Instant::now();
    let (num_answers, latencies_us) = runtime().block_on(clients(serving.address, load));
    let wall = begun.elapsed();
    let reader = helpers() - before;
    let http = serving.stop();
    if let Some(watcher) = watcher {
        let num_bytes = watcher.join().expect("no panic");
        assert!(num_bytes > 0, "the watcher was told nothing");
    }
    Measured {
        name: name.to_owned(),
        num_tokens: num_answers * NUM_TOKENS,
        wall,
        http,
        reader,
        latencies_us,
    }
}

/// Reads what is at `path` until the server closes the connection, and returns how many bytes that was.
pub fn watch(address: SocketAddr, path: &str) -> impl FnOnce() -> u64 + Send + use<> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    move || {
        let mut socket = std::net::TcpStream::connect(address).expect("connected");
        socket.write_all(request.as_bytes()).expect("sent");
        let (mut buffer, mut num_bytes) = (vec![0; 64 * 1024], 0);
        while let Ok(num_read @ 1..) = socket.read(&mut buffer) {
            num_bytes += num_read as u64;
        }
        num_bytes
    }
}

/// Clients that ask until the time is over; returns the number of answers, and the latencies of tokens that tell their time.
async fn clients(address: SocketAddr, load: &Load<'_>) -> (u64, Vec<u32>) {
    let request: Arc<str> = format!(
        "POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{}",
        load.path,
        load.body.len(),
        load.body
    )
    .into();
    let num_answers = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::with_capacity(NUM_CLIENTS);
    for i in 0..NUM_CLIENTS {
        let (request, num_answers, over) = (request.clone(), num_answers.clone(), over.clone());
        let end = load.end;
        tasks.push(tokio::spawn(async move {
            // Not all at the same time.
            tokio::time::sleep(Duration::from_millis(i as u64)).await;
            let mut socket = TcpStream::connect(address).await.expect("connected");
            let (mut buffer, mut latencies_us) = (vec![0; 64 * 1024], Vec::new());
            while !over.load(Relaxed) {
                socket.write_all(request.as_bytes()).await.expect("sent");
                read_answer(&mut socket, &mut buffer, end, &mut latencies_us).await;
                num_answers.fetch_add(1, Relaxed);
            }
            latencies_us
        }));
    }
    tokio::time::sleep(load.time).await;
    over.store(true, Relaxed);
    let mut latencies_us = Vec::new();
    for task in tasks {
        latencies_us.extend(task.await.expect("no panic"));
    }
    (num_answers.load(Relaxed), latencies_us)
}

/// Reads one answer.
async fn read_answer(
    socket: &mut TcpStream,
    buffer: &mut [u8],
    end: &[u8],
    latencies_us: &mut Vec<u32>,
) {
    let mut num_read = 0;
    while !buffer[..num_read].ends_with(end) {
        let num_new = socket
            .read(&mut buffer[num_read..])
            .await
            .expect("an answer");
        assert!(num_new > 0, "the server closed the connection");
        clock::latencies(&buffer[num_read..num_read + num_new], latencies_us);
        num_read += num_new;
    }
}
