//! Determinism and independence: what makes a seeded request reproducible anywhere.

use super::{bell, fresh};
use izar_engine::sampling::{RowState, Sampler, SamplingParams};

const VOCAB_SIZE: usize = 4000;

fn params(seed: u64) -> SamplingParams {
    SamplingParams {
        seed,
        temperature: 1.2,
        top_p: 0.98,
        ..Default::default()
    }
}

fn step(sampler: &mut Sampler, row: &mut RowState, logits_seed: u64) -> u32 {
    let mut logits = bell(VOCAB_SIZE, 2.0, logits_seed);
    sampler
        .sample(&mut logits, row, None)
        .expect("finite logits")
}

/// The tokens of a sequence sampled alone; its logits depend on its seed and the step.
fn alone(seed: u64, num_tokens: u64) -> Vec<u32> {
    let mut sampler = Sampler::new(VOCAB_SIZE);
    let mut row = fresh(VOCAB_SIZE, &params(seed));
    (0..num_tokens)
        .map(|n| step(&mut sampler, &mut row, 1000 * seed + n))
        .collect()
}

#[test]
fn the_same_seed_gives_the_same_tokens_and_another_gives_others() {
    assert_eq!(alone(1, 40), alone(1, 40));
    let logits = bell(VOCAB_SIZE, 1.0, 0);
    let first = |seed| {
        let mut row = fresh(VOCAB_SIZE, &params(seed));
        Sampler::new(VOCAB_SIZE).sample(&mut logits.clone(), &mut row, None)
    };
    let mut tokens: Vec<_> = (0..100)
        .map(|seed| first(seed).expect("finite logits"))
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert!(
        tokens.len() > 80,
        "{} different tokens of 100 seeds",
        tokens.len()
    );
}

#[test]
fn every_bit_of_the_seed_counts() {
    let logits = bell(VOCAB_SIZE, 1.0, 0);
    let draw = |seed| {
        let mut row = fresh(VOCAB_SIZE, &params(seed));
        let mut sampler = Sampler::new(VOCAB_SIZE);
        (0..4)
            .map(|_| sampler.sample(&mut logits.clone(), &mut row, None))
            .collect::<Vec<_>>()
    };
    let base = draw(0);
    for bit in 0..64 {
        assert_ne!(draw(1 << bit), base, "bit {bit}");
    }
}

#[test]
fn positions_differ_although_the_logits_do_not() {
    let logits = bell(VOCAB_SIZE, 1.0, 0);
    let mut row = fresh(VOCAB_SIZE, &params(5));
    let mut sampler = Sampler::new(VOCAB_SIZE);
    let mut tokens: Vec<_> = (0..100)
        .map(|_| {
            sampler
                .sample(&mut logits.clone(), &mut row, None)
                .expect("finite")
        })
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert!(
        tokens.len() > 80,
        "{} different tokens at 100 positions",
        tokens.len()
    );
}

/// Batches that change from step to step, rows in another order each time, two workers that take
/// turns.
#[test]
fn neighbours_and_workers_do_not_matter() {
    let seeds = [1u64, 2, 3, 4, 5];
    let expected: Vec<Vec<u32>> = seeds.iter().map(|&seed| alone(seed, 12)).collect();
    let mut workers = [Sampler::new(VOCAB_SIZE), Sampler::new(VOCAB_SIZE)];
    let mut rows: Vec<RowState> = seeds
        .iter()
        .map(|&seed| fresh(VOCAB_SIZE, &params(seed)))
        .collect();
    let mut tokens = vec![Vec::new(); seeds.len()];
    for round in 0.. {
        let mut all_done = true;
        for turn in 0..seeds.len() {
            let at = (turn * 3 + round) % seeds.len();
            if tokens[at].len() < 12 && !(at + round).is_multiple_of(3) {
                let n = tokens[at].len() as u64;
                let token = step(
                    &mut workers[(turn + round) % 2],
                    &mut rows[at],
                    1000 * seeds[at] + n,
                );
                tokens[at].push(token);
            }
            all_done &= tokens[at].len() == 12;
        }
        if all_done {
            break;
        }
    }
    assert_eq!(tokens, expected);
}

#[test]
fn a_reused_row_remembers_nothing() {
    let penalised = SamplingParams {
        repetition_penalty: 1.8,
        frequency_penalty: 0.7,
        ..params(3)
    };
    let logits = bell(VOCAB_SIZE, 3.0, 8);
    let run = |row: &mut RowState| -> Vec<u32> {
        let bound = row.bind(&penalised, &Default::default(), &[1, 2, 3], []);
        bound.expect("valid parameters");
        let mut sampler = Sampler::new(VOCAB_SIZE);
        (0..20)
            .map(|_| {
                sampler
                    .sample(&mut logits.clone(), row, None)
                    .expect("finite logits")
            })
            .collect()
    };
    let mut row = fresh(VOCAB_SIZE, &params(1));
    let first = run(&mut row);
    assert_eq!(run(&mut row), first);
    assert_eq!(run(&mut fresh(VOCAB_SIZE, &params(9))), first);
}

/// Tokens written down once: whoever changes the algorithm changes what a seed means, on every
/// device.
#[test]
fn seeded_tokens_are_those_of_the_first_release() {
    let logits = bell(VOCAB_SIZE, 1.5, 42);
    let draw = |params: SamplingParams| -> Vec<u32> {
        let mut row = fresh(VOCAB_SIZE, &params);
        let mut sampler = Sampler::new(VOCAB_SIZE);
        (0..8)
            .map(|_| {
                sampler
                    .sample(&mut logits.clone(), &mut row, None)
                    .expect("finite logits")
            })
            .collect()
    };
    let plain = SamplingParams {
        seed: 0x0123_4567_89AB_CDEF,
        ..Default::default()
    };
    assert_eq!(draw(plain), [405, 693, 1134, 2915, 3165, 3436, 2649, 1150]);
    let cut = SamplingParams {
        temperature: 0.7,
        top_k: 50,
        top_p: 0.9,
        min_p: 0.02,
        ..plain
    };
    assert_eq!(draw(cut), [802, 3800, 3643, 1975, 1121, 710, 2187, 3800]);
}
