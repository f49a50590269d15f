//! Headers that claim absurd sizes must be refused before memory is taken for them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use izar_model::Checkpoint;

/// The largest single allocation asked for.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Watched;

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed: a statistic of this test alone, read after the allocating calls on the same thread.
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above with this layout, by the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

fn header(tensors: u64, metadata: u64, rest: &[u8]) -> Vec<u8> {
    let counts = [tensors.to_le_bytes(), metadata.to_le_bytes()].concat();
    [b"GGUF", &3_u32.to_le_bytes()[..], &counts, rest].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A metadata entry: an array of `kind` that claims `count` elements.
fn array(kind: u32, count: u64) -> Vec<u8> {
    let parts = [
        &string("k")[..],
        &9_u32.to_le_bytes(),
        &kind.to_le_bytes(),
        &count.to_le_bytes(),
    ];
    parts.concat()
}

#[test]
fn absurd_counts_take_no_memory() {
    refuse_gguf(tempfile::tempdir().unwrap().path());
    refuse_safetensors(tempfile::tempdir().unwrap().path());
}

fn refuse_gguf(dir: &Path) {
    let path = dir.join("model.gguf");
    let huge = [1 << 20, 1 << 31, 1 << 40, u64::MAX / 8, u64::MAX];
    let mut files: Vec<Vec<u8>> = Vec::new();
    for n in huge {
        files.push(header(n, 1, &[0; 64]));
        files.push(header(1, n, &[0; 64]));
        files.push(header(0, 1, &n.to_le_bytes())); // a key of n bytes
        files.extend((0..13).map(|kind| header(0, 1, &[array(kind, n), vec![0; 64]].concat())));
    }
    for bytes in files {
        std::fs::write(&path, &bytes).unwrap();
        LARGEST.store(0, Ordering::Relaxed);
        let error = Checkpoint::open(&path).err();
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(error.is_some());
        assert!(
            largest < 64 << 10,
            "{largest} bytes at once for {:?}",
            error.map(|e| e.to_string())
        );
    }
}

/// Beside a sound config.
fn refuse_safetensors(dir: &Path) {
    let config = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "vocab_size": 64,
        "intermediate_size": 64}"#;
    std::fs::write(dir.join("config.json"), config).unwrap();
    for len in [3, 1 << 20, 99_999_999, 100_000_001, u64::MAX] {
        let bytes = [&u64::to_le_bytes(len)[..], b"{}"].concat();
        std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
        LARGEST.store(0, Ordering::Relaxed);
        assert!(Checkpoint::open(dir).is_err());
        assert!(LARGEST.load(Ordering::Relaxed) < 64 << 10);
    }
}
