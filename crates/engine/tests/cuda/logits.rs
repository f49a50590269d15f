//! Logits of every architecture against the CPU's in f32, and tokens of one sequence in every company.

use super::checkpoints::{Tiny, all, write};
use super::harness::{Harness, Part, best, margin, oracle, prompt};
use super::has_device;

/// Most that a logit may differ from the CPU's, relative to the largest of its row: activations are rounded to bf16
/// (8 bits) some ten times a layer, the cache once.
const TOLERANCE: f32 = 0.04;
/// Most that all logits of a sequence may differ, as a norm.
const NORM_TOLERANCE: f32 = 0.02;
/// A token must be the CPU's where the CPU's best logit leads by this.
const CLEAR_MARGIN: f32 = 0.25;

const NUM_DECODES: usize = 24;

struct Difference {
    largest: f32,
    norm: f32,
}

fn difference(got: &[Vec<f32>], wanted: &[Vec<f32>]) -> Difference {
    assert_eq!(got.len(), wanted.len());
    let (mut largest, mut error, mut total) = (0.0f32, 0.0f64, 0.0f64);
    for (got, wanted) in got.iter().zip(wanted) {
        let scale = wanted.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        for (a, b) in got.iter().zip(wanted) {
            // Not `max`, which drops a NaN.
            let distance = (a - b).abs() / scale;
            if distance.is_nan() || distance > largest {
                largest = distance;
            }
            error += f64::from(a - b).powi(2);
            total += f64::from(*b).powi(2);
        }
    }
    Difference {
        largest,
        norm: (error / total).sqrt() as f32,
    }
}

/// Prefills in chunks, decodes, and compares every sampled position with the CPU.
fn check(name: &str, tiny: &Tiny, prompt_len: usize, chunk: usize) -> Result<(), String> {
    let checkpoint = &tiny.checkpoint;
    let prompt = prompt(7, prompt_len, checkpoint.config().vocab_size);
    let mut harness = Harness::new(checkpoint, 2, 256);
    let mut got = Vec::new();
    for (idx, part) in prompt.chunks(chunk).enumerate() {
        let bind: &[(usize, &[u32])] = if idx == 0 { &[(1, &prompt)] } else { &[] };
        let is_last = (idx + 1) * chunk >= prompt_len;
        got.extend(harness.step(bind, &[Part::prefill(1, idx * chunk, part, is_last)]));
    }
    for step in 0..NUM_DECODES {
        got.extend(harness.step(&[], &[Part::decode(1, prompt_len + step)]));
    }
    let (tokens, logits): (Vec<u32>, Vec<Vec<f32>>) = got.into_iter().unzip();
    let mut sequence = prompt;
    sequence.extend(&tokens[..NUM_DECODES]);
    let wanted = oracle(checkpoint, &sequence).split_off(prompt_len - 1);
    let Difference { largest, norm } = difference(&logits, &wanted);
    let what = format!("{name}, prompt {prompt_len} in chunks of {chunk}");
    eprintln!("{what}: largest {largest:.4}, norm {norm:.4}");
    let first = logits.iter().zip(&wanted).position(|(a, b)| {
        difference(std::slice::from_ref(a), std::slice::from_ref(b))
            .largest
            .is_nan()
            || difference(std::slice::from_ref(a), std::slice::from_ref(b)).largest > TOLERANCE
    });
    if largest.is_nan() || largest > TOLERANCE || norm > NORM_TOLERANCE {
        let at = first.unwrap_or(0);
        return Err(format!(
            "{what}: largest {largest}, norm {norm}; first at sample {at}: got {:?}, wanted {:?}",
            &logits[at][..6],
            &wanted[at][..6]
        ));
    }
    for (at, (token, wanted)) in tokens.iter().zip(&wanted).enumerate() {
        if margin(wanted) > CLEAR_MARGIN && *token != best(wanted) {
            return Err(format!(
                "{what}: sample {at} is {token}, not {}",
                best(wanted)
            ));
        }
    }
    Ok(())
}

#[test]
fn logits_of_every_architecture_are_the_cpus_within_bf16() {
    if !has_device() {
        return;
    }
    let mut failures = Vec::new();
    for (name, config) in all() {
        let tiny = write(&config);
        for (prompt_len, chunk) in [(1, 1), (70, 70), (131, 64), (200, 200)] {
            failures.extend(check(name, &tiny, prompt_len, chunk).err());
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Tokens of sequence `seed` when `num_seqs` sequences run in one batch; the others have other prompts.
fn tokens_in_company(harness: &mut Harness, num_seqs: usize, vocab: usize) -> Vec<Vec<u32>> {
    let prompts: Vec<Vec<u32>> = (0..num_seqs)
        .map(|row| prompt(row as u32, 5 + row % 40, vocab))
        .collect();
    let mut tokens = vec![Vec::new(); num_seqs];
    // One at a time, so that all start from the same prefill.
    for (row, prompt) in prompts.iter().enumerate() {
        let sampled = harness.step(&[(row, prompt)], &[Part::prefill(row, 0, prompt, true)]);
        tokens[row].push(sampled[0].0);
    }
    for step in 0..12 {
        let parts: Vec<Part> = prompts
            .iter()
            .enumerate()
            .map(|(row, prompt)| Part::decode(row, prompt.len() + step))
            .collect();
        harness.launch(&[], &parts);
        for (row, token) in harness.wait().into_iter().enumerate() {
            tokens[row].push(token);
        }
    }
    tokens
}

#[test]
fn tokens_do_not_depend_on_the_batch_up_to_64_and_around_every_bucket_edge() {
    if !has_device() {
        return;
    }
    let (name, config) = &all()[1];
    let tiny = write(config);
    let vocab = tiny.checkpoint.config().vocab_size;
    let mut harness = Harness::new(&tiny.checkpoint, 90, 256);
    let alone = tokens_in_company(&mut harness, 1, vocab);
    let largest = tokens_in_company(&mut harness, 64, vocab);
    assert_eq!(alone[0], largest[0], "{name}: alone and among 64");
    for num_seqs in [
        2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32, 33, 48, 49, 63,
    ] {
        let tokens = tokens_in_company(&mut harness, num_seqs, vocab);
        for (row, tokens) in tokens.iter().enumerate() {
            assert_eq!(*tokens, largest[row], "{name}: row {row} among {num_seqs}");
        }
    }
}

/// Logits of the first decode step of every row.
fn first_decode(harness: &mut Harness, num_seqs: usize, vocab: usize) -> Vec<Vec<f32>> {
    let prompts: Vec<Vec<u32>> = (0..num_seqs)
        .map(|row| prompt(row as u32, 5 + row % 40, vocab))
        .collect();
    for (row, prompt) in prompts.iter().enumerate() {
        harness.step(&[(row, prompt)], &[Part::prefill(row, 0, prompt, true)]);
    }
    let decodes = prompts.iter().enumerate();
    let parts: Vec<Part> = decodes
        .map(|(row, prompt)| Part::decode(row, prompt.len()))
        .collect();
    let sampled = harness.step(&[], &parts);
    sampled.into_iter().map(|(_, logits)| logits).collect()
}

#[test]
fn batches_beyond_64_give_the_logits_of_smaller_ones() {
    if !has_device() {
        return;
    }
    let (name, config) = &all()[1];
    let tiny = write(config);
    let vocab = tiny.checkpoint.config().vocab_size;
    let mut harness = Harness::new(&tiny.checkpoint, 90, 256);
    let small = first_decode(&mut harness, 64, vocab);
    // Beyond 64 tokens a library multiplies, whose sums are rounded otherwise.
    for num_seqs in [65, 68, 69, 90] {
        let logits = first_decode(&mut harness, num_seqs, vocab);
        let Difference { largest, norm } = difference(&logits[..64], &small);
        eprintln!("{name}: {num_seqs} against 64: largest {largest:.4}, norm {norm:.4}");
        assert!(
            largest < TOLERANCE && norm < NORM_TOLERANCE,
            "{num_seqs}: {largest}, {norm}"
        );
    }
}

#[test]
fn poisoned_padding_and_free_blocks_change_nothing() {
    if !has_device() {
        return;
    }
    for (name, config) in all() {
        let tiny = write(&config);
        let vocab = tiny.checkpoint.config().vocab_size;
        let mut harness = Harness::new(&tiny.checkpoint, 90, 256);
        for num_seqs in [3, 70] {
            harness.poison(0x00);
            let clean = first_decode(&mut harness, num_seqs, vocab);
            harness.poison(0xFF);
            let poisoned = first_decode(&mut harness, num_seqs, vocab);
            let bits = |rows: &[Vec<f32>]| -> Vec<u32> {
                rows.iter().flatten().map(|x| x.to_bits()).collect()
            };
            assert_eq!(
                bits(&clean),
                bits(&poisoned),
                "{name}: {num_seqs} sequences"
            );
        }
    }
}

#[test]
fn mixed_steps_and_steps_in_flight_give_the_tokens_of_plain_ones() {
    if !has_device() {
        return;
    }
    for (name, config) in all() {
        let tiny = write(&config);
        let vocab = tiny.checkpoint.config().vocab_size;
        let (first, second) = (prompt(1, 33, vocab), prompt(2, 60, vocab));
        let mut harness = Harness::new(&tiny.checkpoint, 4, 256);
        let mut plain = Vec::new();
        for (row, prompt) in [&first, &second].into_iter().enumerate() {
            let sampled = harness.step(&[(row, prompt)], &[Part::prefill(row, 0, prompt, true)]);
            let mut tokens = vec![sampled[0].0];
            for step in 0..16 {
                let sampled = harness.step(&[], &[Part::decode(row, prompt.len() + step)]);
                tokens.push(sampled[0].0);
            }
            plain.push(tokens);
        }
        // The second prompt comes in three chunks beside the first one's decodes; every step is launched before the one
        // before it is waited for.
        let mut mixed = vec![Vec::new(); 2];
        let mut take = |rows: Vec<usize>, sampled: Vec<u32>| {
            assert_eq!(rows.len(), sampled.len());
            for (row, token) in rows.into_iter().zip(sampled) {
                mixed[row - 2].push(token);
            }
        };
        let sampling = |parts: &[Part]| -> Vec<usize> {
            let sampling = parts.iter().filter(|part| part.samples);
            sampling.map(|part| part.row).collect()
        };
        let mut last = vec![Part::prefill(2, 0, &first, true)];
        harness.launch(&[(2, &first)], &last);
        for step in 0..19 {
            let mut parts = Vec::new();
            if step < 16 {
                parts.push(Part::decode(2, first.len() + step));
            }
            if step < 3 {
                let chunk = &second[step * 20..][..20];
                parts.push(Part::prefill(3, step * 20, chunk, step == 2));
            } else {
                parts.push(Part::decode(3, second.len() + step - 3));
            }
            let bind: &[(usize, &[u32])] = if step == 0 { &[(3, &second)] } else { &[] };
            harness.launch(bind, &parts);
            take(sampling(&last), harness.wait());
            last = parts;
        }
        take(sampling(&last), harness.wait());
        assert_eq!(mixed[0], plain[0], "{name}: decodes beside chunks");
        assert_eq!(
            mixed[1], plain[1],
            "{name}: a prompt in chunks beside decodes"
        );
    }
}
