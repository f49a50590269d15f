//! Given tokens: their log-probabilities and ranks, and the likeliest ones, against the CPU's.

use izar_engine::sampling::{Logprobs, Sampler};
use izar_kernels::{
    LOGPROB_ENTRIES, Matrix, PinnedBuffer, SampleLogprob, ScoreTokens, TokenScore, score_tokens,
};

use crate::cases::{Random, logits};
use crate::{Gpu, gpu};

/// What is wrong with a row's score, or nothing.
fn difference(
    score: TokenScore,
    entries: &[SampleLogprob],
    expected: Option<&Logprobs>,
) -> Option<String> {
    let Some(expected) = expected else {
        return (score.is_scored != 0).then(|| "it has a score".to_owned());
    };
    let got: Vec<u32> = entries.iter().map(|entry| entry.token).collect();
    let tokens: Vec<u32> = expected.entries().iter().map(|e| e.token).collect();
    if (score.is_scored, score.rank) != (1, expected.rank()) || got != tokens {
        let wanted = expected.rank();
        return Some(format!(
            "got {score:?} {got:?}, expected rank {wanted} {tokens:?}"
        ));
    }
    let mut pairs = entries.iter().zip(expected.entries());
    pairs.find_map(|(a, b)| {
        let is_near = (a.logprob - b.logprob).abs() <= 1e-5 * (1.0 + b.logprob.abs());
        (!is_near).then(|| format!("got {a:?}, expected {b:?}"))
    })
}

fn check(gpu: &Gpu, random: &mut Random, num_rows: usize, num_top: usize) {
    let (vocab_size, device) = (gpu.vocab_size, gpu.stream.device());
    let num_top = num_top.min(vocab_size);
    let mut host = vec![f32::NAN; num_rows * gpu.stride];
    let rows: Vec<Vec<f32>> = (0..num_rows).map(|_| logits(random, vocab_size)).collect();
    for (padded, row) in host.chunks_mut(gpu.stride).zip(&rows) {
        padded[..vocab_size].copy_from_slice(row);
    }
    gpu.logits.write(&gpu.stream, &host).unwrap();
    let (tokens_at, logprobs_at) = (3, 5);
    let mut tokens = PinnedBuffer::new(device, tokens_at + num_rows).unwrap();
    let scores = PinnedBuffer::<TokenScore>::new(device, tokens_at + num_rows).unwrap();
    let logprobs =
        PinnedBuffer::<SampleLogprob>::new(device, logprobs_at + num_rows * LOGPROB_ENTRIES)
            .unwrap();
    let given: Vec<u32> = rows
        .iter()
        .map(|_| random.below(vocab_size) as u32)
        .collect();
    // SAFETY: nothing is launched yet.
    let all_tokens = unsafe { tokens.as_mut_slice() };
    all_tokens[tokens_at..].copy_from_slice(&given);
    let step = ScoreTokens {
        logits: Matrix::strided(
            &gpu.logits,
            0,
            num_rows as u32,
            vocab_size as u32,
            gpu.stride as u32,
        )
        .unwrap(),
        tokens: &tokens,
        tokens_at,
        scores: &scores,
        logprobs: &logprobs,
        logprobs_at,
        num_top: num_top as u32,
    };
    // SAFETY: token ids are below the vocabulary; all is left alone until the stream is done.
    unsafe { score_tokens(&gpu.stream, &step) }.unwrap();
    gpu.stream.synchronize().unwrap();
    // SAFETY: the stream is done.
    let (scores, logprobs) = unsafe { (scores.as_slice(), logprobs.as_slice()) };
    let (mut sampler, mut expected) = (Sampler::new(vocab_size), Logprobs::new(128));
    let entries = logprobs[logprobs_at..].chunks_exact(1 + num_top);
    for (row, (got, entries)) in scores[tokens_at..].iter().zip(entries).enumerate() {
        let scored = sampler
            .logprobs_of(&rows[row], given[row], num_top, &mut expected)
            .is_ok();
        let wrong = difference(*got, entries, scored.then_some(&expected));
        assert_eq!(
            wrong, None,
            "vocab {vocab_size}, row {row}, top {num_top}, token {}",
            given[row]
        );
    }
}

#[test]
fn given_tokens_score_as_on_the_cpu() {
    let mut random = Random::new();
    for (vocab_size, stride, num_rows) in [
        (1, 1, 3),
        (5, 8, 40),
        (1003, 1003, 100),
        (5001, 5008, 64),
        (32_000, 32_000, 64),
        (151_936, 151_936, 40),
        (200_064, 200_064, 20),
    ] {
        let Some(gpu) = gpu(vocab_size, stride, num_rows) else {
            return;
        };
        for num_top in [0, 1, 20, 128] {
            check(&gpu, &mut random, num_rows, num_top);
        }
    }
}
