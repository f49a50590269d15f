//! A token's logits are the same bits however the work is cut: alone or in a batch, prompt whole or in chunks,
//! prefix computed or already cached, any number of threads.

use izar_engine::cpu::{Arithmetic, Isa, LogitsOf};
use izar_model::Checkpoint;

use crate::harness::{Chunk, Harness, best, bits, open};

/// Quantised, MoE, windowed, float: one of each kind of arithmetic and attention.
const MODELS: [&str; 6] = [
    "llama2-legacy",
    "llama-k",
    "qwen3moe-q8_0",
    "qwen3moe-mixed",
    "qwen2-window",
    "phi3-window-q8_0",
];

fn for_each_model(test: impl Fn(&Checkpoint, Arithmetic, &str)) {
    for name in MODELS {
        let checkpoint = open(name);
        for arithmetic in [Arithmetic::Auto, Arithmetic::F32] {
            test(&checkpoint, arithmetic, &format!("{name}, {arithmetic:?}"));
        }
    }
}

/// A prompt of `len` tokens, different for each `seed`.
fn prompt(checkpoint: &Checkpoint, len: usize, seed: usize) -> Vec<u32> {
    let vocab = checkpoint.config().vocab_size;
    (0..len)
        .map(|i| ((i * 31 + seed * 17 + i * i * seed) % vocab) as u32)
        .collect()
}

#[test]
fn chunks_of_any_size_give_the_logits_of_the_whole() {
    for_each_model(|checkpoint, arithmetic, name| {
        let tokens = prompt(checkpoint, 70, 1);
        let mut harness = Harness::new(checkpoint, 1, arithmetic);
        let whole = bits(&harness.prompt(0, &tokens));
        for size in [1, 3, 16, 33, 64] {
            let mut rows = Vec::new();
            for (i, chunk) in tokens.chunks(size).enumerate() {
                rows.extend(harness.step(&[Chunk {
                    row: 0,
                    start: i * size,
                    tokens: chunk,
                    logits: LogitsOf::All,
                }]));
            }
            assert!(bits(&rows) == whole, "{name}: chunks of {size}");
        }
    });
}

#[test]
fn company_in_the_batch_changes_nothing() {
    for_each_model(|checkpoint, arithmetic, name| {
        let prompts: Vec<Vec<u32>> = (0..16)
            .map(|seed| prompt(checkpoint, 5 + seed * 3, seed))
            .collect();
        let alone: Vec<_> = prompts
            .iter()
            .map(|prompt| bits(&Harness::new(checkpoint, 1, arithmetic).greedy(0, prompt, 6)))
            .collect();
        let mut harness = Harness::new(checkpoint, 16, arithmetic);
        let mut rows = harness.step(
            &(0..16)
                .map(|row| whole(row, &prompts[row]))
                .collect::<Vec<_>>(),
        );
        for step in 0..6 {
            let alone: Vec<_> = alone.iter().map(|rows| rows[step].clone()).collect();
            assert!(bits(&rows) == alone, "{name}: step {step}");
            let tokens: Vec<[u32; 1]> = rows.iter().map(|row| [best(row)]).collect();
            let chunks: Vec<_> = (0..16)
                .map(|row| Chunk {
                    row,
                    start: prompts[row].len() + step,
                    tokens: &tokens[row],
                    logits: LogitsOf::Last,
                })
                .collect();
            rows = harness.step(&chunks);
        }
    });
}

fn whole(row: usize, tokens: &[u32]) -> Chunk<'_> {
    Chunk {
        row,
        start: 0,
        tokens,
        logits: LogitsOf::Last,
    }
}

#[test]
fn a_prompt_chunk_beside_decoding_sequences_changes_nothing() {
    for_each_model(|checkpoint, arithmetic, name| {
        let (long, short) = (prompt(checkpoint, 60, 3), prompt(checkpoint, 9, 4));
        let mut alone = Harness::new(checkpoint, 2, arithmetic);
        let expected_long = bits(&alone.prompt(0, &long));
        let expected_short = bits(&alone.prompt(1, &short));
        let mut harness = Harness::new(checkpoint, 2, arithmetic);
        harness.step(&[whole(1, &short[..8])]);
        let mixed = harness.step(&[
            whole(1, &[]).at(8, &short[8..]),
            Chunk {
                row: 0,
                start: 0,
                tokens: &long,
                logits: LogitsOf::All,
            },
        ]);
        assert!(
            bits(&mixed[..1]) == expected_short[8..],
            "{name}: the decoding sequence"
        );
        assert!(bits(&mixed[1..]) == expected_long, "{name}: the prompt");
    });
}

impl<'a> Chunk<'a> {
    fn at(self, start: usize, tokens: &'a [u32]) -> Self {
        Self {
            start,
            tokens,
            ..self
        }
    }
}

#[test]
fn a_cached_prefix_gives_the_logits_of_a_cold_one() {
    for_each_model(|checkpoint, arithmetic, name| {
        let tokens = prompt(checkpoint, 50, 5);
        let mut harness = Harness::new(checkpoint, 1, arithmetic);
        let cold = bits(&harness.prompt(0, &tokens));
        // The first two blocks stay as they are; only the rest is computed again.
        let warm = harness.step(&[Chunk {
            row: 0,
            start: 32,
            tokens: &tokens[32..],
            logits: LogitsOf::All,
        }]);
        assert!(bits(&warm) == cold[32..], "{name}");
    });
}

#[test]
fn any_number_of_threads_gives_the_same_logits() {
    for_each_model(|checkpoint, arithmetic, name| {
        let tokens = prompt(checkpoint, 40, 6);
        let with_threads = |threads| {
            let mut harness = Harness::with(checkpoint, 1, |options| {
                (options.arithmetic, options.num_threads) = (arithmetic, threads);
            });
            bits(&harness.greedy(0, &tokens, 3))
        };
        let one = with_threads(1);
        for threads in [2, 3, 5] {
            assert!(with_threads(threads) == one, "{name}: {threads} threads");
        }
    });
}

#[test]
fn larger_blocks_hold_the_same_cache() {
    for_each_model(|checkpoint, arithmetic, name| {
        let tokens = prompt(checkpoint, 70, 7);
        let with_block_size = |block_size| {
            let mut harness = Harness::with(checkpoint, 1, |options| {
                (options.arithmetic, options.block_size) = (arithmetic, block_size);
            });
            bits(&harness.greedy(0, &tokens, 3))
        };
        assert!(with_block_size(16) == with_block_size(32), "{name}");
    });
}

#[test]
fn every_instruction_set_gives_the_same_logits() {
    for_each_model(|checkpoint, arithmetic, name| {
        let tokens = prompt(checkpoint, 40, 8);
        let with_isa = |isa| {
            let mut harness = Harness::with(checkpoint, 1, |options| {
                (options.arithmetic, options.isa) = (arithmetic, isa);
            });
            bits(&harness.greedy(0, &tokens, 3))
        };
        let portable = with_isa(Isa::Portable);
        for isa in Isa::available() {
            assert!(with_isa(isa) == portable, "{name}: {}", isa.name());
        }
    });
}
