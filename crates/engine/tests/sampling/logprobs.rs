//! Logprobs against double precision.

use super::{bell, bias, bound};
use izar_engine::sampling::{
    Logprobs, MIN_LOGPROB, SampleError, Sampler, SamplingParams, TokenLists,
};
use proptest::prelude::*;

/// Log-probabilities in double precision.
fn exact(logits: &[f32]) -> Vec<f64> {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    logits
        .iter()
        .map(|&x| f64::from(x) - max - sum.ln())
        .collect()
}

fn check(logits: &[f32], token: u32, num_top: usize, got: &Logprobs) {
    let exact = exact(logits);
    let entries = got.entries();
    assert_eq!(entries[0].token, token);
    for entry in entries {
        let expected = exact[entry.token as usize].max(f64::from(MIN_LOGPROB));
        let error = (f64::from(entry.logprob) - expected).abs();
        assert!(
            error < 2e-6 + expected.abs() * 2e-7,
            "{entry:?} for {expected}"
        );
    }
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|&a, &b| {
        logits[b as usize]
            .total_cmp(&logits[a as usize])
            .then(a.cmp(&b))
    });
    order.truncate(num_top);
    let top: Vec<u32> = entries[1..].iter().map(|entry| entry.token).collect();
    assert_eq!(top, order);
    let rank = logits
        .iter()
        .filter(|&&x| x >= logits[token as usize])
        .count();
    assert_eq!(got.rank() as usize, rank);
}

proptest! {
    #[test]
    fn logprobs_are_the_log_softmax_of_the_raw_logits(
        logits in prop::collection::vec(
            prop_oneof![4 => -30f32..30.0, 1 => (-4i32..4).prop_map(|i| i as f32)],
            1..3000,
        ),
        seed: u64,
        num_top in 0usize..=32,
        token in 0usize..3000,
    ) {
        let params = SamplingParams {
            seed,
            logprobs: Some(num_top as u32),
            repetition_penalty: 1.5,
            presence_penalty: 1.0,
            temperature: 2.0,
            ..Default::default()
        };
        let lists = TokenLists { logit_bias: &bias(&[(0, 3.0)]), ..TokenLists::default() };
        let mut row = bound(logits.len(), &params, &lists, &[0], &[0]);
        let mut sampler = Sampler::new(logits.len());
        let sampled = sampler.sample(&mut logits.clone(), &mut row, None).expect("finite logits");
        check(&logits, sampled, num_top, row.logprobs().expect("asked for"));

        let mut given = Logprobs::new(num_top);
        let token = token % logits.len();
        sampler.logprobs_of(&logits, token as u32, num_top, &mut given).expect("finite logits");
        check(&logits, token as u32, num_top, &given);
    }
}

#[test]
fn a_large_vocabulary_loses_no_precision() {
    let logits = bell(151_936, 2.5, 1);
    let mut out = Logprobs::new(20);
    Sampler::new(logits.len())
        .logprobs_of(&logits, 5, 20, &mut out)
        .expect("finite logits");
    check(&logits, 5, 20, &out);
}

#[test]
fn asking_for_logprobs_changes_no_token() {
    let logits = bell(5000, 2.0, 2);
    let tokens = |logprobs| {
        let params = SamplingParams {
            seed: 9,
            repetition_penalty: 1.3,
            logprobs,
            ..Default::default()
        };
        let mut row = bound(5000, &params, &TokenLists::default(), &[1, 2, 3], &[]);
        let mut sampler = Sampler::new(5000);
        (0..50)
            .map(|_| sampler.sample(&mut logits.clone(), &mut row, None))
            .collect::<Vec<_>>()
    };
    assert_eq!(tokens(None), tokens(Some(5)));
}

#[test]
fn only_finite_numbers_come_out() {
    let logits = [f32::NEG_INFINITY, 0.0, -3e38, 3e38];
    let mut out = Logprobs::new(4);
    let mut sampler = Sampler::new(4);
    sampler
        .logprobs_of(&logits, 0, 4, &mut out)
        .expect("a finite maximum");
    let logprobs: Vec<f32> = out.entries().iter().map(|entry| entry.logprob).collect();
    assert_eq!(
        logprobs,
        [MIN_LOGPROB, 0.0, MIN_LOGPROB, MIN_LOGPROB, MIN_LOGPROB]
    );

    let certain = [f32::INFINITY, 0.0, f32::INFINITY, 1.0];
    sampler
        .logprobs_of(&certain, 2, 2, &mut out)
        .expect("certainty is not an error");
    let half = -(2f32.ln());
    let entries: Vec<(u32, f32)> = out
        .entries()
        .iter()
        .map(|entry| (entry.token, entry.logprob))
        .collect();
    assert_eq!(entries, [(2, half), (0, half), (2, half)]);
    assert_eq!(out.rank(), 2);

    let nan = sampler.logprobs_of(&[f32::NAN, 0.0, 0.0, 0.0], 1, 1, &mut out);
    assert_eq!(nan, Err(SampleError::NonFinite));
}

#[test]
fn nothing_is_reported_unless_asked_for() {
    let mut row = bound(
        4,
        &SamplingParams::greedy(),
        &TokenLists::default(),
        &[],
        &[],
    );
    Sampler::new(4)
        .sample(&mut [0.0, 1.0, 2.0, 3.0], &mut row, None)
        .expect("finite logits");
    assert!(row.logprobs().is_none());
}
