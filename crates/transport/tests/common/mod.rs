//! What several test files share.
#![allow(
    dead_code,
    reason = "each test file is its own crate and uses a part of this"
)]

use std::future::Future;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use izar_ring::{RingGeometry, RingOptions};
use izar_transport::client::{ClientOptions, GeneratedToken, Progress, RequestHandle, RingClient};
use izar_transport::mock_engine::{MockEngine, MockOptions, Reply, ReplyEnd, ReplyTokens};
use izar_transport::{EngineEnd, InProcess, SharedMemory, Transport};

/// Long enough for a machine that is busy with something else.
pub const LONG: Duration = Duration::from_secs(30);

/// A small ring.
pub fn small_ring() -> RingOptions {
    ring(64, 1)
}

/// A ring of `num_slots` slots with arenas of 256 KiB and 1 MiB per lease.
pub fn ring(num_slots: u32, num_leases: u32) -> RingOptions {
    let leases = u64::from(num_leases);
    RingOptions {
        geometry: RingGeometry {
            num_slots,
            num_leases,
            input_arena_bytes: leases << 18,
            output_arena_bytes: leases << 20,
        },
        ..RingOptions::default()
    }
}

/// A name no other test uses.
pub fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "test-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// A ring with both its ends, for every kind of transport.
pub struct Pair {
    pub kind: &'static str,
    /// The front end's way to the ring.
    pub near: Arc<dyn Transport>,
    /// Another way to the same ring, as the engine's host has it.
    pub far: Arc<dyn Transport>,
    pub engine: EngineEnd,
}

/// One pair per transport.
pub fn pairs(options: &RingOptions) -> Vec<Pair> {
    let (in_process, engine) = InProcess::create(options).expect("in process");
    let first = Pair {
        kind: "in process",
        near: in_process.clone(),
        far: in_process,
        engine,
    };
    let name = unique_name();
    let (far, engine) = SharedMemory::create(&name, options).expect("shared memory");
    let near = SharedMemory::attach(&name).expect("attach by name");
    let second = Pair {
        kind: "shared memory",
        near,
        far,
        engine,
    };
    let (far, engine) = SharedMemory::create_unnamed(options).expect("memfd");
    let fd = far.fd().try_clone_to_owned().expect("duplicate");
    let near = SharedMemory::attach_fd(fd).expect("attach by descriptor");
    vec![
        first,
        second,
        Pair {
            kind: "memfd",
            near,
            far,
            engine,
        },
    ]
}

/// Options that notice things soon.
pub fn eager() -> ClientOptions {
    ClientOptions {
        heartbeat_interval: Duration::from_millis(5),
        ..ClientOptions::default()
    }
}

/// Connects and waits until the engine is ready.
pub fn connect(transport: Arc<dyn Transport>, options: ClientOptions) -> RingClient {
    let client = RingClient::connect(transport, options).expect("connect");
    client.wait_ready(LONG).expect("reachable");
    client
}

/// Everything a request produces, by blocking.
pub fn collect(
    handle: &mut RequestHandle,
) -> (Vec<GeneratedToken>, izar_transport::client::Finish) {
    let mut tokens = Vec::new();
    loop {
        match handle.wait(&mut tokens, LONG) {
            Some(Progress::More) => {}
            Some(Progress::Finished(finish)) => return (tokens, finish),
            None => panic!("nothing for {LONG:?} after {} tokens", tokens.len()),
        }
    }
}

/// The ids of tokens.
pub fn ids(tokens: &[GeneratedToken]) -> Vec<u32> {
    tokens.iter().map(|token| token.token).collect()
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether no slot and no arena byte is in use.
pub fn is_unused(client: &RingClient) -> bool {
    let stats = client.stats();
    (
        stats.slots_in_use,
        stats.input_used_bytes,
        stats.output_used_bytes,
    ) == (0, 0, 0)
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs one future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
    let deadline = Instant::now() + LONG;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        assert!(Instant::now() < deadline, "the future is stuck");
        std::thread::park_timeout(LONG);
    }
}

/// In the child of [`spawn_self`]: what the parent passed.
pub fn child_argument() -> Option<String> {
    std::env::var("IZAR_TEST_CHILD").ok()
}

/// Runs the test called `test` of this test file again in another process, with an argument that makes it play the other part.
pub fn spawn_self(test: &str, argument: &str) -> Child {
    Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", test, "--nocapture"])
        .env("IZAR_TEST_CHILD", argument)
        .stdout(Stdio::null())
        .spawn()
        .expect("start a second process")
}

/// Runs `check` over every transport with a mock engine behind it.
pub fn with_mock(
    ring: &RingOptions,
    client: ClientOptions,
    mock: MockOptions,
    check: impl Fn(RingClient, &MockEngine),
) {
    for pair in pairs(ring) {
        println!("{}", pair.kind);
        let engine = MockEngine::serve(pair.engine, mock.clone());
        check(connect(pair.near, client.clone()), &engine);
    }
}

/// Says these tokens, then nothing until it is cancelled.
pub fn hanging_after(tokens: Vec<u32>) -> MockOptions {
    MockOptions::scripted(move |_, _| Reply {
        tokens: ReplyTokens::List(tokens.clone()),
        end: ReplyEnd::Hang,
    })
}
