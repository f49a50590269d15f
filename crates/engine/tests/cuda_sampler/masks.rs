//! Token masks: the device finds in the ring what the CPU would find there, and puts off what is not there.

use izar_engine::driver::RowBinding;
use izar_engine::sampling::Sampler;
use izar_ring::MaskWord;

use crate::cases::{Random, binding, logits};
use crate::check::{Oracle, Outcome, difference};
use crate::masked_ring::MaskedRing;
use crate::{Gpu, gpu};

/// What a front end does before a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    /// The mask is late.
    Nothing,
    /// The mask is another generation's.
    Stranger,
    /// The mask is there, but the sample comes behind one that was put off.
    Behind,
    /// Everything is allowed.
    Open,
    /// The mask is there.
    Mask,
}

const ACTS: [Act; 8] = [
    Act::Nothing,
    Act::Stranger,
    Act::Behind,
    Act::Open,
    Act::Mask,
    Act::Mask,
    Act::Mask,
    Act::Mask,
];

/// Writes what `act` says of the mask of output token `index`.
fn deliver(ring: &MaskedRing, row: usize, index: u32, act: Act, mask: &[u32]) {
    let generation = ring.masks[row].source().generation();
    let word = |num_delivered, is_open, generation| MaskWord {
        generation,
        num_delivered,
        is_open: [0, 1].map(|buffer| is_open && index % 2 == buffer),
    };
    ring.write_mask(row, index % 2, mask);
    ring.write_word(
        row,
        match act {
            Act::Nothing => word(index, true, generation),
            Act::Stranger => word(index + 1, false, generation + 1),
            Act::Behind | Act::Mask => word(index + 1, false, generation),
            Act::Open => word(index + 1, true, generation),
        },
    );
}

/// Most of the vocabulary, a few tokens, one, or none.
fn mask(random: &mut Random, vocab_size: usize) -> Vec<u32> {
    let mut mask = vec![0; vocab_size.div_ceil(32)];
    match random.below(6) {
        0 => mask.iter_mut().for_each(|word| *word = random.word()),
        1 => mask.fill(u32::MAX),
        2 => {}
        _ => {
            for _ in 0..=random.below(40) {
                let id = random.below(vocab_size);
                mask[id / 32] |= 1 << (id % 32);
            }
        }
    }
    if !vocab_size.is_multiple_of(32) {
        let last = mask.len() - 1;
        mask[last] &= (1 << (vocab_size % 32)) - 1;
    }
    mask
}

/// A ring with a request for every row, which the sampler sees.
fn ring(gpu: &mut Gpu, num_rows: u32) -> MaskedRing {
    let ring = MaskedRing::new(gpu.vocab_size, num_rows);
    gpu.sampler.map_ring(ring.map(gpu.stream.device()));
    ring
}

/// Steps in which every other row is masked; returns how many rows were put off.
fn run(vocab_size: usize, stride: usize, num_rows: usize, num_steps: u64) -> Option<usize> {
    let mut random = Random::new();
    let mut gpu = gpu(vocab_size, stride, num_rows)?;
    let ring = ring(&mut gpu, num_rows as u32);
    let mut sampler = Sampler::new(vocab_size);
    let rows: Vec<u32> = (0..num_rows as u32).collect();
    let is_masked = |row: u32| row.is_multiple_of(2);
    let mut oracles: Vec<Oracle> = Vec::new();
    let mut num_put_off = 0;
    for step in 0..num_steps {
        let bindings: Vec<RowBinding> = match step {
            0 => rows
                .iter()
                .map(|&row| {
                    loop {
                        let mut binding = binding(&mut random, row, vocab_size);
                        let masks = is_masked(row).then(|| ring.masks[row as usize].clone());
                        binding.masks = masks;
                        if binding.limits.prompt_len > 0 {
                            break binding;
                        }
                    }
                })
                .collect(),
            _ => Vec::new(),
        };
        oracles.extend(bindings.iter().map(|b| Oracle::bind(vocab_size, b)));
        let acts: Vec<Act> = rows.iter().map(|_| ACTS[random.below(8)]).collect();
        let masks: Vec<Vec<u32>> = rows.iter().map(|_| mask(&mut random, vocab_size)).collect();
        let mut lens = Vec::new();
        for (idx, oracle) in oracles.iter().enumerate() {
            let is_behind = is_masked(idx as u32) && acts[idx] == Act::Behind;
            lens.push(oracle.len() + u32::from(is_behind));
            deliver(&ring, idx, oracle.num_generated(), acts[idx], &masks[idx]);
        }
        gpu.write_lens(&lens);
        let rows_of_logits: Vec<Vec<f32>> = rows
            .iter()
            .map(|_| logits(&mut random, vocab_size))
            .collect();
        let last_tokens = gpu.last_tokens();
        let got = gpu.step(step + 7, &bindings, &rows, &rows_of_logits);
        for (idx, (got, mut logits)) in got.iter().zip(rows_of_logits).enumerate() {
            let (oracle, act) = (&mut oracles[idx], acts[idx]);
            let grammar = Some(masks[idx].as_slice()).filter(|_| act == Act::Mask);
            let expected: Outcome = match act {
                _ if !is_masked(idx as u32) => oracle.sample(&mut sampler, &mut logits, None),
                Act::Open | Act::Mask => oracle.sample(&mut sampler, &mut logits, grammar),
                Act::Nothing | Act::Stranger | Act::Behind => {
                    num_put_off += 1;
                    if step > 0 {
                        assert_eq!(gpu.last_tokens()[idx], last_tokens[idx], "row {idx}");
                    }
                    oracle.put_off()
                }
            };
            if let Some(what) = difference(got, &expected) {
                let request = oracle.describe();
                panic!("vocab {vocab_size} step {step} row {idx} {act:?}: {what}\n{request}");
            }
        }
    }
    Some(num_put_off)
}

#[test]
fn masks_are_found_or_their_rows_put_off() {
    for (vocab_size, stride) in [(1, 1), (33, 36), (64, 64), (65, 65), (1003, 1008)] {
        if let Some(num_put_off) = run(vocab_size, stride, 64, 40) {
            eprintln!("vocab {vocab_size}: {num_put_off} of {} put off", 32 * 40);
            assert!(num_put_off > 100, "{num_put_off}");
        }
    }
}

#[test]
fn masks_of_large_vocabularies_are_found() {
    run(32_000, 32_000, 24, 6);
    run(151_936, 151_936, 24, 6);
    run(200_064, 200_064, 12, 4);
}

#[test]
fn a_masked_row_without_a_ring_fails_by_itself() {
    let Some(mut with_ring) = gpu(100, 100, 2) else {
        return;
    };
    let ring = ring(&mut with_ring, 2);
    let Some(mut without) = gpu(100, 100, 2) else {
        return;
    };
    let mut bindings = [0, 1].map(|row| RowBinding {
        row,
        history: vec![5; 4],
        ..RowBinding::default()
    });
    bindings.iter_mut().for_each(|binding| {
        binding.limits.prompt_len = 4;
        binding.limits.max_tokens = 9;
        binding.params.temperature = 0.0;
    });
    bindings[1].masks = Some(ring.masks[1].clone());
    without.write_lens(&[4, 4]);
    let mut row = vec![0.0; 100];
    row[33] = 1.0;
    let got = without.step(1, &bindings, &[0, 1], &[row.clone(), row]);
    assert_eq!(got[0].token, Ok(33));
    assert!(got[1].token.is_err(), "{:?}", got[1]);
}
