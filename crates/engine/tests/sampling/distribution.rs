//! Observed frequencies against exact probabilities, by chi-square tests with fixed seeds.

use super::{bell, fresh, reference};
use izar_engine::sampling::{Sampler, SamplingParams};

/// The probabilities that the parameters ask for, in double precision.
fn exact(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let z: Vec<f32> = logits
        .iter()
        .map(|x| (x - max) * (1.0 / params.temperature))
        .collect();
    let kept = reference::kept(&z, params);
    let exact = |&x: &f32| (f64::from(x - max) / f64::from(params.temperature)).exp();
    let masses: Vec<f64> = logits
        .iter()
        .zip(&kept)
        .map(|(x, &kept)| if kept { exact(x) } else { 0.0 })
        .collect();
    let total: f64 = masses.iter().sum();
    masses.iter().map(|mass| mass / total).collect()
}

/// How many deviations the chi-square statistic of `counts` is above its mean, by Wilson and
/// Hilferty's approximation.
fn excess(counts: &[u32], probabilities: &[f64]) -> f64 {
    let num_draws = f64::from(counts.iter().sum::<u32>());
    let (mut statistic, mut num_cells) = (0.0, 0);
    // Rare tokens share a cell, because the approximation wants five expected in each.
    let mut rare = (0.0, 0.0);
    let mut cell = |expected: f64, observed: f64| {
        statistic += (observed - expected).powi(2) / expected;
        num_cells += 1;
    };
    for (&count, &probability) in counts.iter().zip(probabilities) {
        let expected = probability * num_draws;
        if probability == 0.0 {
            assert_eq!(count, 0, "a token that was cut");
        } else if expected >= 5.0 {
            cell(expected, f64::from(count));
        } else {
            rare = (rare.0 + expected, rare.1 + f64::from(count));
            if rare.0 >= 5.0 {
                cell(rare.0, rare.1);
                rare = (0.0, 0.0);
            }
        }
    }
    let freedom = f64::from(num_cells - 1).max(1.0);
    let variance = 2.0 / (9.0 * freedom);
    ((statistic / freedom).cbrt() - (1.0 - variance)) / variance.sqrt()
}

/// Counts of tokens over consecutive positions of one sequence.
fn draw(logits: &[f32], params: &SamplingParams, num_draws: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(logits.len());
    let mut row = fresh(logits.len(), params);
    let mut counts = vec![0; logits.len()];
    let mut scratch = logits.to_vec();
    for _ in 0..num_draws {
        scratch.copy_from_slice(logits);
        let token = sampler
            .sample(&mut scratch, &mut row, None)
            .expect("finite logits");
        counts[token as usize] += 1;
    }
    counts
}

fn assert_fits(counts: &[u32], probabilities: &[f64], what: &str) {
    let excess = excess(counts, probabilities);
    assert!(
        excess.abs() < 4.0,
        "{what}: {excess:.1} deviations from the expected chi-square"
    );
}

#[test]
fn frequencies_follow_every_combination_of_cuts() {
    let logits = bell(300, 2.0, 1);
    let mut seed = 0;
    for temperature in [0.3, 1.0, 1.7] {
        for top_p in [1.0, 0.9, 0.4] {
            for top_k in [0, 40, 7] {
                for min_p in [0.0, 0.05] {
                    seed += 1;
                    let params = SamplingParams {
                        temperature,
                        top_p,
                        top_k,
                        min_p,
                        seed,
                        ..Default::default()
                    };
                    let counts = draw(&logits, &params, 20_000);
                    assert_fits(&counts, &exact(&logits, &params), &format!("{params:?}"));
                }
            }
        }
    }
}

#[test]
fn frequencies_follow_the_softmax_of_many_tokens() {
    let logits = bell(3000, 1.5, 2);
    let params = SamplingParams {
        seed: 7,
        ..Default::default()
    };
    assert_fits(
        &draw(&logits, &params, 100_000),
        &exact(&logits, &params),
        "3000 tokens",
    );
}

#[test]
fn frequencies_across_seeds_are_as_good_as_across_positions() {
    let logits = bell(200, 1.5, 3);
    let mut sampler = Sampler::new(200);
    let mut counts = vec![0; 200];
    for seed in 0..50_000 {
        let mut row = fresh_seed(seed);
        let token = sampler
            .sample(&mut logits.clone(), &mut row, None)
            .expect("finite logits");
        counts[token as usize] += 1;
    }
    assert_fits(
        &counts,
        &exact(&logits, &SamplingParams::default()),
        "seeds",
    );

    fn fresh_seed(seed: u64) -> izar_engine::sampling::RowState {
        use izar_engine::sampling::{RowLimits, RowState, TokenLists};
        let mut row = RowState::new(RowLimits {
            vocab_size: 200,
            max_model_len: 8,
            max_logprobs: 0,
        });
        let params = SamplingParams {
            seed,
            ..Default::default()
        };
        row.bind(&params, &TokenLists::default(), &[], [])
            .expect("valid parameters");
        row
    }
}

/// One token that almost always wins, and 6000 that share half a per cent: what single precision
/// could lose.
#[test]
fn very_unlikely_tokens_get_their_share() {
    let mut logits = vec![-14.0; 6001];
    logits[17] = 0.0;
    let params = SamplingParams {
        seed: 11,
        ..Default::default()
    };
    let num_draws = 200_000;
    let counts = draw(&logits, &params, num_draws);
    let tail = f64::from(num_draws as u32 - counts[17]);
    let probability = 1.0 - exact(&logits, &params)[17];
    let expected = probability * num_draws as f64;
    assert!(expected > 900.0, "{expected}");
    assert!(
        (tail - expected).abs() < 4.0 * expected.sqrt(),
        "{tail} for {expected}"
    );
    let most = (0..logits.len())
        .filter(|&i| i != 17)
        .map(|i| counts[i])
        .max();
    assert!(
        most < Some(8),
        "one of 6000 equals was drawn {most:?} times of {tail}"
    );
}

/// What follows a token must not depend on it: pairs of successive draws against the product of
/// their probabilities.
#[test]
fn successive_positions_are_independent() {
    let logits = bell(12, 1.0, 5);
    let params = SamplingParams {
        seed: 3,
        ..Default::default()
    };
    let mut sampler = Sampler::new(12);
    let mut row = fresh(12, &params);
    let mut draw = || {
        sampler
            .sample(&mut logits.clone(), &mut row, None)
            .expect("finite logits") as usize
    };
    let mut counts = vec![0; 144];
    for _ in 0..60_000 {
        counts[12 * draw() + draw()] += 1;
    }
    let single = exact(&logits, &params);
    let pairs: Vec<f64> = single
        .iter()
        .flat_map(|a| single.iter().map(move |b| a * b))
        .collect();
    assert_fits(&counts, &pairs, "pairs");
}
