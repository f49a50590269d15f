//! The token path allocates nothing per token.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{connect, eager};
use izar_transport::client::{GeneratedToken, Progress, Submission};
use izar_transport::mock_engine::{MockEngine, MockOptions};

static NUM_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counted.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NUM_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn streaming_allocates_nothing_per_token() {
    const STREAMS: u32 = 32;
    const TOKENS: u32 = 1500;
    let paced = MockOptions {
        step_time: Duration::from_micros(200),
        ..MockOptions::default()
    };
    let (transport, _engine) = MockEngine::in_process(&common::ring(64, 1), paced).expect("create");
    let client = connect(transport, eager());
    let mut handles: Vec<_> = (0..STREAMS)
        .map(|i| {
            client
                .submit(&Submission::new(&[i], TOKENS))
                .expect("submit")
        })
        .collect();
    let mut tokens: Vec<GeneratedToken> = Vec::with_capacity((STREAMS * TOKENS) as usize);
    let mut stream_until = |num_tokens: u32| {
        while tokens.len() < num_tokens as usize {
            for handle in &mut handles {
                if let Some(Progress::Finished(_)) = handle.try_next(&mut tokens) {
                    return;
                }
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    };
    stream_until(STREAMS * 100);
    let before = NUM_ALLOCATIONS.load(Ordering::Relaxed);
    stream_until(STREAMS * (TOKENS - 100));
    let num_allocations = NUM_ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert!(
        num_allocations < 10,
        "{num_allocations} allocations for {} tokens",
        STREAMS * (TOKENS - 200)
    );
}
