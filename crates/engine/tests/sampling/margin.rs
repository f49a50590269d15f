//! The margin of a decision, tried out by changing the logits.

use super::fresh;
use izar_engine::sampling::{Decision, Sampler, SamplingParams};
use proptest::prelude::*;

fn decide(logits: &[f32], params: &SamplingParams) -> Decision {
    let row = fresh(logits.len(), params);
    let decision = Sampler::new(logits.len()).decide(&mut logits.to_vec(), &row, None);
    decision.expect("finite logits")
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let cut = |off: f32, range: std::ops::Range<f32>| prop_oneof![1 => Just(off), 2 => range];
    (
        prop_oneof![1 => Just(0f32), 5 => 0.2f32..2.0],
        cut(1.0, 0.2..0.99),
        prop_oneof![1 => Just(0u32), 2 => 2u32..20],
        cut(0.0, 0.01..0.5),
        any::<u64>(),
    )
        .prop_map(|(temperature, top_p, top_k, min_p, seed)| SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            seed,
            ..Default::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn noise_within_the_margin_changes_nothing(
        logits in prop::collection::vec(-4f32..4.0, 2..80),
        params in params(),
        directions in prop::collection::vec(prop::collection::vec(-1f32..1.0, 80), 20).no_shrink(),
    ) {
        let decision = decide(&logits, &params);
        prop_assert_eq!(decision.token, sampled(&logits, &params));
        // Differences of logits move by at most twice the noise; a little less for the roundings.
        let noise = (decision.margin.min(20.0) * 0.499 - 2e-6).max(0.0);
        for direction in directions {
            let moved = |(x, d): (&f32, &f32)| x + d.signum() * noise * d.abs().sqrt();
            let noisy: Vec<f32> = logits.iter().zip(&direction).map(moved).collect();
            prop_assert_eq!(sampled(&noisy, &params), decision.token, "margin {}", decision.margin);
        }
        // The worst direction for the winner: it falls, all others rise.
        let worst = |sign: f32| -> Vec<f32> {
            let sign_of = |token| if token == decision.token { -sign } else { sign };
            (0u32..).zip(&logits).map(|(token, x)| x + sign_of(token) * noise).collect()
        };
        prop_assert_eq!(sampled(&worst(1.0), &params), decision.token);
        prop_assert_eq!(sampled(&worst(-1.0), &params), decision.token);
    }

    #[test]
    fn noise_beyond_the_margin_changes_an_uncut_token(
        logits in prop::collection::vec(-4f32..4.0, 2..80),
        temperature in prop_oneof![1 => Just(0f32), 4 => 0.2f32..2.0],
        seed: u64,
    ) {
        let params = SamplingParams { temperature, seed, ..Default::default() };
        let decision = decide(&logits, &params);
        let noise = decision.margin * 0.5 + 1e-5;
        let worst: Vec<f32> = (0u32..)
            .zip(&logits)
            .map(|(token, x)| x + if token == decision.token { -noise } else { noise })
            .collect();
        prop_assert_ne!(sampled(&worst, &params), decision.token, "margin {}", decision.margin);
    }
}

fn sampled(logits: &[f32], params: &SamplingParams) -> u32 {
    let mut row = fresh(logits.len(), params);
    let token = Sampler::new(logits.len()).sample(&mut logits.to_vec(), &mut row, None);
    token.expect("finite logits")
}

#[test]
fn the_greedy_margin_is_the_distance_to_the_second_logit() {
    let decision = decide(&[1.0, 4.0, 3.25, -2.0], &SamplingParams::greedy());
    assert_eq!(
        decision,
        Decision {
            token: 1,
            margin: 0.75
        }
    );
}

#[test]
fn the_only_token_allowed_has_an_infinite_margin() {
    let mut logits = vec![f32::NEG_INFINITY; 10];
    logits[3] = 1.0;
    for params in [SamplingParams::greedy(), SamplingParams::default()] {
        assert_eq!(
            decide(&logits, &params),
            Decision {
                token: 3,
                margin: f32::INFINITY
            }
        );
    }
}

/// A token at the very edge of the nucleus that would win: the margin must say that the decision is
/// shaky.
#[test]
fn a_cut_next_to_a_would_be_winner_makes_the_margin_small() {
    // Probabilities 0.5, 0.3, 0.2: top-p just below and just above 0.8 excludes and includes the
    // third.
    let logits: Vec<f32> = [0.5f32, 0.3, 0.2].iter().map(|p| p.ln()).collect();
    let params = |top_p, seed| SamplingParams {
        top_p,
        seed,
        ..Default::default()
    };
    let seed = (0..)
        .find(|&seed| sampled(&logits, &params(1.0, seed)) == 2)
        .expect("drawn sooner or later");
    for top_p in [0.799, 0.801] {
        let margin = decide(&logits, &params(top_p, seed)).margin;
        assert!((1e-4..2e-2).contains(&margin), "{margin}");
    }
}
