//! A running engine allocates nothing per token: scheduler, policy, step thread, sampler, team and ring together.
//!
//! One test in a binary of its own, because the counter is the process's allocator. It counts every thread but the test's own,
//! the front end's token reader included.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use izar_engine::driver::Placement;
use izar_engine::{CpuEngine, CpuEngineOptions};
use izar_model::Checkpoint;
use izar_transport::Transport;
use izar_transport::client::{ClientOptions, RingClient, SamplingParams, Submission};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Set on the test's own thread, which looks at the ring's header while the engine runs.
    static IS_OBSERVER: Cell<bool> = const { Cell::new(false) };
}

fn count_one() {
    if !IS_OBSERVER.get() {
        // Relaxed: a count; the engine is idle or measured over many steps when it is read.
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is the system allocator's; counting touches nothing else.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count_one();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NUM_STREAMS: u64 = 6;
const MAX_TOKENS: u32 = 400;

#[test]
fn steady_decoding_allocates_nothing() {
    IS_OBSERVER.set(true);
    for placement in [Placement::HostSync, Placement::HostAsync] {
        let started = ALLOCATIONS.load(Ordering::Relaxed);
        let (allocations, tokens) = count(placement);
        assert!(
            ALLOCATIONS.load(Ordering::Relaxed) > started,
            "the allocator does not count"
        );
        assert!(
            tokens >= 6 * 200,
            "{tokens} tokens are too few to mean something"
        );
        assert_eq!(allocations, 0, "{placement}: over {tokens} tokens");
    }
}

/// Allocations, and tokens generated, while every stream decodes.
fn count(placement: Placement) -> (u64, u64) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/llama2");
    let mut config = Checkpoint::open(&fixture).unwrap().config().clone();
    config.max_position_embeddings = 512;
    let checkpoint = Checkpoint::dummy(config);
    let options = CpuEngineOptions {
        placement,
        num_threads: Some(2),
        max_num_seqs: NUM_STREAMS as u32,
        ..CpuEngineOptions::default()
    };
    let engine = CpuEngine::start(&checkpoint, &options, &mut |_, _| {}).unwrap();
    let transport = Arc::clone(&engine.transport) as Arc<dyn Transport>;
    let client = RingClient::connect(transport, ClientOptions::default()).unwrap();
    client.wait_ready(Duration::from_secs(30)).unwrap();
    let handles: Vec<_> = (0..NUM_STREAMS as u32)
        .map(|idx| {
            let sampling = SamplingParams {
                temperature: 0.8,
                top_p: 0.9,
                repetition_penalty: 1.1,
                frequency_penalty: 0.2,
                seed: Some(7),
                ..SamplingParams::default()
            };
            let prompt = [idx + 3, 9, 27];
            let submission = Submission {
                sampling,
                ignore_eos: true,
                ..Submission::new(&prompt, MAX_TOKENS)
            };
            client.submit(&submission).unwrap()
        })
        .collect();
    let generated = || client.engine_status().unwrap().stats.output_tokens;
    let wait_for = |num_tokens: u64| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while generated() < num_tokens {
            assert!(Instant::now() < deadline, "{num_tokens} tokens in time");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(NUM_STREAMS * 40);
    let (before, first) = (ALLOCATIONS.load(Ordering::Relaxed), generated());
    wait_for(NUM_STREAMS * u64::from(MAX_TOKENS - 40));
    let (after, last) = (ALLOCATIONS.load(Ordering::Relaxed), generated());
    drop(handles);
    drop(client);
    engine.engine.stop().unwrap();
    (after - before, last - first)
}
