//! A step of the CPU back end allocates nothing, whatever it computes. In a process of its own: the allocator counts for all threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use izar_engine::cpu::{Arithmetic, Batch, BatchEntry, CpuModel, CpuOptions, LogitsOf};
use izar_model::Checkpoint;

struct Counting;

// Relaxed: read after the team's barrier, which orders the workers' counts before it.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of `steps` runs of a batch of `(start, tokens)` entries.
fn allocations(model: &mut CpuModel, shape: &[(u32, u32)], steps: usize) -> usize {
    let entries: Vec<BatchEntry> = (0..)
        .zip(shape)
        .map(|(row, &(start_pos, num_tokens))| BatchEntry {
            row,
            start_pos,
            num_tokens,
            logits: LogitsOf::Last,
        })
        .collect();
    let tokens: Vec<u32> = (0..shape.iter().map(|(_, n)| n).sum())
        .map(|i: u32| i % 100)
        .collect();
    let block_tables: Vec<u32> = (0..64).collect();
    let batch = Batch {
        entries: &entries,
        tokens: &tokens,
        block_tables: &block_tables,
        blocks_per_row: 8,
    };
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..steps {
        model.forward(&batch);
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn a_step_allocates_nothing() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    for name in [
        "llama2-legacy/model.gguf",
        "qwen3moe-mixed",
        "phi4-longrope",
    ] {
        let checkpoint = Checkpoint::open(&fixtures.join(name)).unwrap();
        for arithmetic in [Arithmetic::Auto, Arithmetic::F32] {
            let mut options = CpuOptions::new(checkpoint.config());
            (
                options.arithmetic,
                options.num_threads,
                options.num_kv_blocks,
            ) = (arithmetic, 2, 64);
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            let mut model = CpuModel::load(&checkpoint, options, &mut |_, _| {}).unwrap();
            assert!(
                ALLOCATIONS.load(Ordering::Relaxed) > before,
                "the allocator does not count"
            );
            // The largest step comes last: nothing may grow on demand.
            for shape in [&[(0, 1)][..], &[(0, 40), (3, 1), (7, 1)], &[(0, 64); 8]] {
                assert_eq!(
                    allocations(&mut model, shape, 5),
                    0,
                    "{name}, {arithmetic:?}, {shape:?}"
                );
            }
        }
    }
}
