//! The detokenizer allocates nothing per token.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use izar_tokenizer::{Detokenizer, DetokenizerOptions, EncodeOptions, Tokenizer};

thread_local! {
    static NUM_ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system allocator unchanged; counting touches only a thread-local integer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NUM_ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, so from the system allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn pushing_tokens_into_a_string_with_room_allocates_nothing() {
    let tokenizer = Tokenizer::from_file(&support::data("qwen3-small.tokenizer.json")).unwrap();
    let tokenizer = Arc::new(tokenizer);
    let text = std::fs::read_to_string(support::data("texts.txt")).unwrap();
    let ids = tokenizer.encode(&text, EncodeOptions::default()).unwrap();
    let mut out = String::with_capacity(text.len() * 2);
    let mut stream = Detokenizer::new(tokenizer, DetokenizerOptions::default());
    let before = NUM_ALLOCATIONS.with(Cell::get);
    ids.iter().for_each(|&id| stream.push(id, &mut out));
    stream.finish(&mut out);
    let num_allocations = NUM_ALLOCATIONS.with(Cell::get) - before;
    assert!(ids.len() > 500 && out.len() > 2000);
    assert_eq!(num_allocations, 0);
}
