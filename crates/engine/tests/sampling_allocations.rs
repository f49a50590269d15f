//! Sampling allocates nothing: a global allocator that counts.

use izar_engine::sampling::{
    BadWords, LogitBias, Logprobs, RowLimits, RowState, Sampler, SamplingParams, TokenLists,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static NUM_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system allocator; counting in a thread-local without a
// destructor allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NUM_ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(run: impl FnOnce()) -> u64 {
    let before = NUM_ALLOCATIONS.get();
    run();
    NUM_ALLOCATIONS.get() - before
}

const VOCAB_SIZE: usize = 5000;

fn logits() -> Vec<f32> {
    let pseudo = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 16_777_216.0;
    (0..VOCAB_SIZE as u32)
        .map(|i| 12.0 * pseudo(i) - 6.0)
        .collect()
}

#[test]
fn the_counter_counts() {
    assert!(allocations_of(|| drop(std::hint::black_box(vec![std::hint::black_box(1); 9]))) > 0);
}

#[test]
fn no_token_and_no_reuse_of_a_row_allocates() {
    let plain = SamplingParams::default();
    let everything = SamplingParams {
        temperature: 1.3,
        top_p: 0.97,
        top_k: 400,
        min_p: 0.001,
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        frequency_penalty: 0.3,
        min_tokens: 5,
        logprobs: Some(20),
        ..plain
    };
    let bias = [LogitBias {
        token: 3,
        bias: 1.0,
    }];
    let allowed: Vec<u32> = (0..4000).collect();
    let lists = TokenLists {
        eos_ids: &[1],
        stop_ids: &[2],
        allowed_ids: &allowed,
        logit_bias: &bias,
        bad_words: BadWords(&[3, 4, 5, 6, 1, 7]),
    };
    let grammar = vec![0xFFFF_0FFF; VOCAB_SIZE.div_ceil(32)];
    let prompt: Vec<u32> = (0..300).collect();
    let limits = RowLimits {
        vocab_size: VOCAB_SIZE,
        max_model_len: 2000,
        max_logprobs: 20,
    };

    let mut sampler = Sampler::new(VOCAB_SIZE);
    let mut row = RowState::new(limits);
    let raw = logits();
    let mut scratch = raw.clone();
    // The first binding with lists is the one that may grow them.
    row.bind(&everything, &lists, &prompt, [])
        .expect("valid parameters");
    let cases = [
        ("greedy", SamplingParams::greedy()),
        ("temperature", plain),
        (
            "wide top-p",
            SamplingParams {
                top_p: 0.999,
                temperature: 3.0,
                ..plain
            },
        ),
        (
            "wide top-k",
            SamplingParams {
                top_k: 3000,
                ..plain
            },
        ),
        ("everything", everything),
    ];
    for (name, params) in cases {
        let count = allocations_of(|| {
            row.bind(&params, &lists, &prompt, 10..20)
                .expect("valid parameters");
            for _ in 0..200 {
                scratch.copy_from_slice(&raw);
                sampler
                    .sample(&mut scratch, &mut row, Some(&grammar))
                    .expect("some token is allowed");
            }
            scratch[0] = f32::NAN;
            sampler
                .sample(&mut scratch, &mut row, None)
                .expect_err("not a number");
        });
        assert_eq!(count, 0, "{name}");
    }

    let mut logprobs = Logprobs::new(20);
    let count = allocations_of(|| {
        sampler
            .logprobs_of(&raw, 7, 20, &mut logprobs)
            .expect("finite logits");
    });
    assert_eq!(count, 0, "logprobs of a given token");
}
