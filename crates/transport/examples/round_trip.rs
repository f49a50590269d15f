//! How long the client adds to a token, and how many tokens it carries, with a mock engine whose tokens are ready at once.
//!
//! `cargo run --release -p izar-transport --example round_trip [inproc|shm]`
//!
//! Three measurements: submit → first token on an idle engine (one blocking caller); the processor time that the token
//! reader and one consumer thread spend per token while 256 requests stream; and the delay from a token's timestamp to the
//! consumer while 256 requests stream at 5 ms per step. Numbers depend on the machine; both are printed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use izar_ring::RingOptions;
use izar_transport::client::{
    ClientOptions, GeneratedToken, Progress, RequestHandle, RingClient, Submission,
};
use izar_transport::mock_engine::{MockEngine, MockOptions};
use izar_transport::{InProcess, SharedMemory, Transport};

const LONG: Duration = Duration::from_secs(60);
const STREAMS: usize = 256;

fn start(kind: &str, mock: MockOptions) -> (RingClient, MockEngine) {
    let options = RingOptions::default();
    let (transport, engine): (Arc<dyn Transport>, _) = match kind {
        "inproc" => {
            let (transport, engine) = InProcess::create(&options).expect("create the ring");
            (transport, MockEngine::serve(engine, mock))
        }
        "shm" => {
            let name = format!("round-trip-{}", std::process::id());
            let (_, engine) = SharedMemory::create(&name, &options).expect("create the ring");
            let transport = SharedMemory::attach(&name).expect("attach");
            (transport, MockEngine::serve(engine, mock))
        }
        other => panic!("{other}: say inproc or shm"),
    };
    let client = RingClient::connect(transport, ClientOptions::default()).expect("connect");
    client.wait_ready(LONG).expect("reachable");
    (client, engine)
}

fn percentile(sorted: &[u64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100] as f64 / 1e3
}

fn print_percentiles(what: &str, mut ns: Vec<u64>) {
    ns.sort_unstable();
    let [p50, p90, p99] = [50, 90, 99].map(|p| percentile(&ns, p));
    println!(
        "{what}: p50 {p50:.1} µs, p90 {p90:.1} µs, p99 {p99:.1} µs ({} samples)",
        ns.len()
    );
}

/// Submit → first token in hand, one request at a time.
fn first_token(kind: &str) {
    let (client, _engine) = start(kind, MockOptions::default());
    let mut tokens = Vec::with_capacity(16);
    let prompt: Vec<u32> = (0..512).collect();
    let mut submit_ns = Vec::new();
    let mut trip_ns = Vec::new();
    for _ in 0..3000 {
        tokens.clear();
        let start = Instant::now();
        let mut handle = client.submit(&Submission::new(&prompt, 1)).expect("submit");
        submit_ns.push(start.elapsed().as_nanos() as u64);
        while tokens.is_empty() {
            handle.wait(&mut tokens, LONG).expect("a token");
        }
        trip_ns.push(start.elapsed().as_nanos() as u64);
        drop(handle);
        std::thread::sleep(Duration::from_micros(300));
    }
    print_percentiles("submit call, 512-token prompt", submit_ns);
    print_percentiles("submit → first token, engine idle", trip_ns);
}

/// Processor time of the thread of this process called `name`, or of the calling one.
fn cpu_time(name: Option<&str>) -> Duration {
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
        let own = std::fs::read_link("/proc/thread-self").expect("Linux");
        let found = tasks
            .flatten()
            .map(|task| task.path())
            .find(|path| match name {
                Some(name) => {
                    std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
                }
                None => path.file_name() == own.file_name(),
            });
        if let Some(path) = found {
            let stat = std::fs::read_to_string(path.join("schedstat")).expect("schedstat");
            let ns = stat.split(' ').next().and_then(|ns| ns.parse().ok());
            return Duration::from_nanos(ns.expect("a number"));
        }
        // A thread takes its name when it first runs.
        std::thread::yield_now();
    }
}

/// Wakes one thread for many requests, and counts.
struct CountingWaker {
    thread: std::thread::Thread,
    num_wakes: AtomicU64,
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.num_wakes.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// Polls every request until all have finished; calls `each` with the tokens of one poll.
fn consume(handles: &mut Vec<RequestHandle>, each: &mut dyn FnMut(&[GeneratedToken])) -> u64 {
    let counting = Arc::new(CountingWaker {
        thread: std::thread::current(),
        num_wakes: AtomicU64::new(0),
    });
    let waker = Waker::from(counting.clone());
    let mut cx = Context::from_waker(&waker);
    let mut tokens = Vec::with_capacity(4096);
    while !handles.is_empty() {
        handles.retain_mut(|handle| {
            tokens.clear();
            let polled = handle.poll_tokens(&mut cx, &mut tokens);
            each(&tokens);
            !matches!(polled, Poll::Ready(Progress::Finished(_)))
        });
        // One look at every request per wake-up: a runtime would poll the woken ones only.
        std::thread::park_timeout(Duration::from_millis(2));
    }
    counting.num_wakes.load(Ordering::Relaxed)
}

fn submit_all(client: &RingClient, tokens_each: u32) -> Vec<RequestHandle> {
    let submit = |i| {
        client
            .submit(&Submission::new(&[i as u32], tokens_each))
            .expect("submit")
    };
    (0..STREAMS).map(submit).collect()
}

/// Tokens per second, and what they cost the reader, with 256 requests in flight.
fn throughput(kind: &str, step_time: Duration, tokens_each: u32) {
    let (client, _engine) = start(
        kind,
        MockOptions {
            step_time,
            ..MockOptions::default()
        },
    );
    let mut handles = submit_all(&client, tokens_each);
    let (begin, before) = (Instant::now(), cpu_time(Some("izar-tokens")));
    let own_before = cpu_time(None);
    let mut num_tokens = 0u64;
    let num_wakes = consume(&mut handles, &mut |tokens| {
        num_tokens += tokens.len() as u64
    });
    let (elapsed, reader) = (begin.elapsed(), cpu_time(Some("izar-tokens")) - before);
    let own = cpu_time(None) - own_before;
    let per_token = |time: Duration| time.as_nanos() as f64 / num_tokens as f64;
    let stats = client.stats();
    println!(
        "{STREAMS} streams, step {step_time:?}: {:.2} M tokens/s; reader {:.0} ns/token = {:.2} M tokens/s per core; \
         consumer {:.0} ns/token; {:.3} wake-ups and {:.3} polls per token",
        num_tokens as f64 / elapsed.as_secs_f64() / 1e6,
        per_token(reader),
        1e3 / per_token(reader),
        per_token(own),
        num_wakes as f64 / num_tokens as f64,
        stats.num_polls as f64 / num_tokens as f64,
    );
}

/// From a token's timestamp (engine) to the consumer, with 256 requests at 5 ms per step.
fn token_delay(kind: &str) {
    let (client, _engine) = start(
        kind,
        MockOptions {
            step_time: Duration::from_millis(5),
            ..MockOptions::default()
        },
    );
    let mut handles = submit_all(&client, 200);
    let mut delays = Vec::with_capacity(STREAMS * 200);
    consume(&mut handles, &mut |tokens| {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_nanos() as u64;
        delays.extend(
            tokens
                .iter()
                .map(|token| now.saturating_sub(token.timestamp_ns)),
        );
    });
    print_percentiles(
        "token timestamp → consumer, 256 streams, 5 ms steps",
        delays,
    );
}

fn main() {
    let kind = std::env::args().nth(1).unwrap_or_else(|| "inproc".into());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model
        .lines()
        .find_map(|line| line.strip_prefix("model name\t: "))
        .unwrap_or("unknown processor");
    println!("transport {kind}; {model}, {cores} cores");
    first_token(&kind);
    throughput(&kind, Duration::ZERO, 4000);
    throughput(&kind, Duration::from_millis(5), 200);
    token_delay(&kind);
}
