//! The sampler against the naive reference, and the order of operations by examples.

use super::reference::{self, Case};
use super::{bias, bound};
use izar_engine::sampling::{
    BadWords, ParamsError, SampleError, Sampler, SamplingParams, TokenLists,
};
use proptest::prelude::*;

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        12 => -12f32..12.0,
        // Ties, as bf16 logits have them.
        6 => (-8i32..8).prop_map(|i| i as f32 * 0.5),
        2 => Just(f32::NEG_INFINITY),
    ]
}

/// Rows with an occasional infinity or NaN, and some longer than a block.
fn rows() -> impl Strategy<Value = Vec<Vec<f32>>> {
    let len = prop_oneof![3 => 2usize..100, 1 => 1000usize..2200];
    len.prop_flat_map(|len| {
        let odd = prop_oneof![30 => Just(None), 1 => Just(Some(f32::INFINITY)), 1 => Just(Some(f32::NAN))];
        let row = (prop::collection::vec(logit(), len), odd, 0..len).prop_map(|(mut row, odd, at)| {
            if let Some(odd) = odd {
                row[at] = odd;
            }
            row
        });
        prop::collection::vec(row, 1..4)
    })
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let off_or = |off: f32, range: std::ops::Range<f32>| prop_oneof![1 => Just(off), 1 => range];
    let shape = (
        prop_oneof![1 => Just(0f32), 6 => 0.05f32..3.0],
        off_or(1.0, 0.01..1.0),
        prop_oneof![1 => Just(0u32), 1 => 1u32..30, 1 => 500u32..1500],
        off_or(0.0, 0.0..0.5),
    );
    let penalties = (
        off_or(1.0, 0.5..2.0),
        off_or(0.0, -2.0..2.0),
        off_or(0.0, -2.0..2.0),
    );
    (
        shape,
        penalties,
        any::<u64>(),
        0u32..6,
        prop::option::of(0u32..8),
    )
        .prop_map(
            |(
                (temperature, top_p, top_k, min_p),
                (repetition, presence, frequency),
                seed,
                min_tokens,
                logprobs,
            )| {
                SamplingParams {
                    temperature,
                    top_p,
                    top_k,
                    min_p,
                    repetition_penalty: repetition,
                    presence_penalty: presence,
                    frequency_penalty: frequency,
                    seed,
                    min_tokens,
                    logprobs,
                }
            },
        )
}

/// Ids to be taken modulo the vocabulary, in lists that are often empty.
fn ids(max: usize) -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(any::<u32>(), 0..max)]
}

fn cases() -> impl Strategy<Value = (Vec<Vec<f32>>, Case)> {
    let lists = (
        ids(8),
        prop_oneof![3 => Just(vec![]), 1 => prop::collection::vec(any::<u32>(), 1..60)],
        ids(3),
        ids(3),
        prop::collection::vec(prop::collection::vec(0u32..6, 1..4), 0..4),
        prop::option::weighted(0.3, prop::collection::vec(any::<u32>(), 70)),
    );
    let history = (
        prop::collection::vec(0u32..40, 0..30),
        prop::collection::vec(0u32..6, 0..10),
    );
    (rows(), params(), history, lists).prop_map(|(rows, params, history, lists)| {
        let vocab_size = rows[0].len() as u32;
        let within =
            |ids: Vec<u32>| -> Vec<u32> { ids.into_iter().map(|id| id % vocab_size).collect() };
        let (biased, allowed_ids, eos_ids, stop_ids, bad_words, grammar) = lists;
        let pairs: Vec<(u32, f32)> = within(biased)
            .into_iter()
            .zip([-100.0, 5.0, 1.5, -0.5].into_iter().cycle())
            .collect();
        let case = Case {
            params,
            prompt: within(history.0),
            generated: within(history.1),
            logit_bias: bias(&pairs),
            allowed_ids: within(allowed_ids),
            eos_ids: within(eos_ids),
            stop_ids: within(stop_ids),
            bad_words: bad_words.into_iter().map(within).collect(),
            grammar,
        };
        (rows, case)
    })
}

fn encode(words: &[Vec<u32>]) -> Vec<u32> {
    words
        .iter()
        .flat_map(|word| std::iter::once(word.len() as u32).chain(word.iter().copied()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Several steps of one sequence, so that what the row updates incrementally is compared with a
    /// fresh start.
    #[test]
    fn every_token_is_that_of_the_naive_reference((rows, case) in cases()) {
        let mut case = case;
        let vocab_size = rows[0].len();
        let words = encode(&case.bad_words);
        let lists = TokenLists {
            eos_ids: &case.eos_ids.clone(),
            stop_ids: &case.stop_ids.clone(),
            allowed_ids: &case.allowed_ids.clone(),
            logit_bias: &case.logit_bias.clone(),
            bad_words: BadWords(&words),
        };
        let mut sampler = Sampler::new(vocab_size);
        let mut row = bound(vocab_size, &case.params, &lists, &case.prompt, &case.generated);
        for raw in &rows {
            let expected = reference::sample(raw, &case);
            let got = sampler.sample(&mut raw.clone(), &mut row, case.grammar.as_deref());
            prop_assert_eq!(got, expected);
            let Ok(token) = got else { break };
            case.generated.push(token);
            prop_assert_eq!(row.num_generated() as usize, case.generated.len());

            let mut resumed = bound(vocab_size, &case.params, &lists, &case.prompt, &case.generated);
            let resumed = sampler.sample(&mut raw.clone(), &mut resumed, case.grammar.as_deref());
            prop_assert_eq!(resumed, reference::sample(raw, &case));
        }
    }
}

fn greedy_of(
    logits: &[f32],
    params: SamplingParams,
    lists: &TokenLists<'_>,
    prompt: &[u32],
    generated: &[u32],
) -> u32 {
    let mut row = bound(logits.len(), &params, lists, prompt, generated);
    let token = Sampler::new(logits.len()).sample(&mut logits.to_vec(), &mut row, None);
    token.expect("some token is allowed")
}

#[test]
fn equal_logits_go_to_the_lowest_token() {
    let mut logits = vec![0.0; 5000];
    for at in [4999, 3100, 77] {
        logits[at] = 3.0;
    }
    assert_eq!(
        greedy_of(
            &logits,
            SamplingParams::greedy(),
            &TokenLists::default(),
            &[],
            &[]
        ),
        77
    );
}

#[test]
fn bias_comes_before_the_repetition_penalty_looks_at_the_sign() {
    // 1 - 3 = -2 is multiplied to -4. Penalised first it would be 1/2 - 3 = -2.5, above the other
    // token.
    let params = SamplingParams {
        repetition_penalty: 2.0,
        ..SamplingParams::greedy()
    };
    let pairs = bias(&[(0, -3.0)]);
    let lists = TokenLists {
        logit_bias: &pairs,
        ..TokenLists::default()
    };
    assert_eq!(greedy_of(&[1.0, -3.0], params, &lists, &[0], &[]), 1);
}

#[test]
fn repetition_penalty_comes_before_the_additive_ones() {
    // 4 / 2 - 1.5 = 0.5; the other way round it would be (4 - 1.5) / 2 = 1.25.
    let params = SamplingParams {
        repetition_penalty: 2.0,
        presence_penalty: 1.5,
        ..SamplingParams::greedy()
    };
    assert_eq!(
        greedy_of(&[4.0, 1.0], params, &TokenLists::default(), &[], &[0]),
        1
    );
}

#[test]
fn presence_counts_once_frequency_each_time_and_neither_the_prompt() {
    let none = TokenLists::default();
    let presence = SamplingParams {
        presence_penalty: 1.0,
        ..SamplingParams::greedy()
    };
    assert_eq!(greedy_of(&[3.0, 1.5], presence, &none, &[0, 0, 0], &[]), 0);
    assert_eq!(greedy_of(&[3.0, 1.5], presence, &none, &[], &[0, 0, 0]), 0);
    let frequency = SamplingParams {
        frequency_penalty: 1.0,
        ..SamplingParams::greedy()
    };
    assert_eq!(greedy_of(&[3.0, 1.5], frequency, &none, &[0, 0, 0], &[]), 0);
    assert_eq!(greedy_of(&[3.0, 1.5], frequency, &none, &[], &[0]), 0);
    assert_eq!(greedy_of(&[3.0, 1.5], frequency, &none, &[], &[0, 0]), 1);
}

#[test]
fn top_p_counts_the_mass_that_top_k_left() {
    // Probabilities 0.4, 0.3, 0.2, 0.1. Of the first two, 0.4 / 0.7 is 57 %: top-p 0.55 leaves one
    // token only if it is renormalised.
    let logits: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].iter().map(|p| p.ln()).collect();
    let sampled = |top_k| {
        let mut tokens: Vec<u32> = (0..200)
            .map(|seed| {
                greedy_of(
                    &logits,
                    SamplingParams {
                        top_k,
                        top_p: 0.55,
                        seed,
                        ..Default::default()
                    },
                    &TokenLists::default(),
                    &[],
                    &[],
                )
            })
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    };
    assert_eq!(sampled(0), [0, 1]);
    assert_eq!(sampled(2), [0]);
}

#[test]
fn min_p_is_relative_to_the_likeliest_after_temperature() {
    // At temperature 1 the second token is half as likely, at temperature 4 it is 84 % as likely.
    let logits = [0.0, -(2f32.ln())];
    let saw_second = |temperature| {
        let params = |seed| SamplingParams {
            min_p: 0.6,
            temperature,
            seed,
            ..Default::default()
        };
        (0..100).any(|seed| greedy_of(&logits, params(seed), &TokenLists::default(), &[], &[]) == 1)
    };
    assert!(!saw_second(1.0));
    assert!(saw_second(4.0));
}

#[test]
fn tokens_that_tie_with_the_kth_stay() {
    let logits = [1.0, 1.0, 1.0, 0.0];
    let params = |seed| SamplingParams {
        top_k: 2,
        seed,
        ..Default::default()
    };
    let seen = |token| {
        (0..200)
            .any(|seed| greedy_of(&logits, params(seed), &TokenLists::default(), &[], &[]) == token)
    };
    assert!(seen(0) && seen(1) && seen(2) && !seen(3));
}

#[test]
fn end_and_stop_tokens_wait_for_min_tokens_of_generated_ones() {
    let params = SamplingParams {
        min_tokens: 2,
        ..SamplingParams::greedy()
    };
    let lists = TokenLists {
        eos_ids: &[0],
        stop_ids: &[1],
        ..TokenLists::default()
    };
    let logits = [3.0, 2.0, 1.0];
    assert_eq!(greedy_of(&logits, params, &lists, &[2, 2, 2], &[]), 2);
    assert_eq!(greedy_of(&logits, params, &lists, &[], &[2]), 2);
    assert_eq!(greedy_of(&logits, params, &lists, &[], &[2, 2]), 0);
}

#[test]
fn bad_words_are_stopped_at_their_last_token_only() {
    let words = encode(&[vec![1, 2], vec![0]]);
    let lists = TokenLists {
        bad_words: BadWords(&words),
        ..TokenLists::default()
    };
    let logits = [9.0, 1.0, 5.0, 0.0];
    let greedy = SamplingParams::greedy();
    assert_eq!(greedy_of(&logits, greedy, &lists, &[], &[]), 2);
    assert_eq!(greedy_of(&logits, greedy, &lists, &[], &[1]), 1);
    assert_eq!(greedy_of(&logits, greedy, &lists, &[], &[1, 3]), 2);
    // The prompt may say what it likes.
    assert_eq!(greedy_of(&logits, greedy, &lists, &[1], &[]), 2);
}

#[test]
fn a_bias_does_not_bring_back_a_token_that_is_not_allowed() {
    let pairs = bias(&[(0, 100.0)]);
    let lists = TokenLists {
        allowed_ids: &[1, 2],
        logit_bias: &pairs,
        ..TokenLists::default()
    };
    assert_eq!(
        greedy_of(&[5.0, 1.0, 2.0], SamplingParams::greedy(), &lists, &[], &[]),
        2
    );
}

#[test]
fn certain_tokens_share_all_the_probability() {
    let logits = [f32::INFINITY, 50.0, f32::INFINITY];
    let params = |seed| SamplingParams {
        seed,
        ..Default::default()
    };
    let count = |token| {
        (0..400)
            .filter(|&seed| {
                greedy_of(&logits, params(seed), &TokenLists::default(), &[], &[]) == token
            })
            .count()
    };
    assert_eq!(count(1), 0);
    assert!((140..260).contains(&count(0)), "{}", count(0));
    assert_eq!(
        greedy_of(
            &logits,
            SamplingParams::greedy(),
            &TokenLists::default(),
            &[],
            &[]
        ),
        0
    );
}

#[test]
fn nonsense_is_an_error_that_leaves_the_row_as_it_was() {
    let mut sampler = Sampler::new(3);
    for params in [
        SamplingParams::greedy(),
        SamplingParams::default(),
        SamplingParams {
            logprobs: Some(1),
            ..Default::default()
        },
    ] {
        let mut row = bound(
            3,
            &params,
            &TokenLists {
                allowed_ids: &[0, 1],
                ..TokenLists::default()
            },
            &[],
            &[],
        );
        let mut sample = |logits: [f32; 3], grammar: Option<&[u32]>| {
            sampler.sample(&mut logits.clone(), &mut row, grammar)
        };
        assert_eq!(
            sample([1.0, f32::NAN, 0.0], None),
            Err(SampleError::NonFinite)
        );
        assert_eq!(
            sample([1.0, 0.0, -f32::NAN], None),
            Err(SampleError::NonFinite),
            "in a masked token"
        );
        assert_eq!(
            sample([f32::NEG_INFINITY; 3], None),
            Err(SampleError::NonFinite)
        );
        assert_eq!(
            sample([1.0, 0.0, 0.0], Some(&[4])),
            Err(SampleError::NothingAllowed)
        );
        assert_eq!(sample([1.0, 0.0, 0.0], Some(&[1])), Ok(0));
        assert_eq!(row.num_generated(), 1);
    }
}

#[test]
fn binding_refuses_what_does_not_fit() {
    let greedy = SamplingParams::greedy();
    let mut row = super::row(10);
    let mut refusal =
        |lists: TokenLists<'_>| row.bind(&greedy, &lists, &[], []).expect_err("refused");
    let outside = |name| ParamsError::OutsideVocabulary {
        name,
        token: 10,
        vocab_size: 10,
    };
    let none = TokenLists::default();
    assert_eq!(
        refusal(TokenLists {
            stop_ids: &[10],
            ..none
        }),
        outside("stop_ids")
    );
    assert_eq!(
        refusal(TokenLists {
            allowed_ids: &[1, 10],
            ..none
        }),
        outside("allowed_ids")
    );
    assert_eq!(
        refusal(TokenLists {
            logit_bias: &bias(&[(10, 0.0)]),
            ..none
        }),
        outside("logit_bias")
    );
    assert_eq!(
        refusal(TokenLists {
            bad_words: BadWords(&[1, 10]),
            ..none
        }),
        outside("bad_words")
    );
    assert_eq!(
        refusal(TokenLists {
            bad_words: BadWords(&[3, 1]),
            ..none
        }),
        ParamsError::MalformedBadWords
    );
    let infinite = refusal(TokenLists {
        logit_bias: &bias(&[(1, f32::INFINITY)]),
        ..none
    });
    assert!(matches!(
        infinite,
        ParamsError::OutOfRange {
            name: "logit_bias",
            ..
        }
    ));
    // An end-of-sequence token beyond the logits is the model's oddity, not the request's fault.
    assert_eq!(
        row.bind(
            &greedy,
            &TokenLists {
                eos_ids: &[10],
                ..none
            },
            &[],
            []
        ),
        Ok(())
    );
    let long = vec![0; (1 << 20) + 1];
    assert!(matches!(
        row.bind(&greedy, &none, &long, []),
        Err(ParamsError::TooLong { .. })
    ));
}
