//! Compares runs: plans, answers, and where answers part, how firm the decision was.

use anyhow::{Context, Result, ensure};
use izar_engine::sampling::{RowLimits, RowState, Sampler, SamplingParams, TokenLists};
use izar_transport::client::{FinishReason, GeneratedToken};

use super::run::{Outcome, Run, judgeable};
use super::schedule::Schedule;

/// Two answers to one request that part.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// Which request.
    pub request: usize,
    /// The first token that differs, counted from the first generated one.
    pub at: usize,
    /// The tokens there; none where an answer has ended.
    pub tokens: [Option<u32>; 2],
    /// Whether it was sampled, not the likeliest token taken.
    pub is_sampled: bool,
    /// By how much the difference of two logits would have had to change for another token, in the run where that is less: the greedy
    /// margin, or the distance to the boundary of sampling.
    pub margin: Option<f32>,
}

/// The first step whose plan differs; none if the plans are the same to the end.
pub fn first_other_plan(a: &Run, b: &Run) -> Option<u64> {
    let plans = |run: &Run| -> Vec<(u64, u64)> {
        let steps = run.steps.iter();
        steps.map(|record| (record.step, record.plan)).collect()
    };
    let (a, b) = (plans(a), plans(b));
    let parting = a.iter().zip(&b).find(|(a, b)| a != b);
    let shorter = a.len().min(b.len());
    parting
        .map(|(a, _)| a.0)
        .or((a.len() != b.len()).then_some(shorter as u64 + 1))
}

/// Requests whose tokens, number of tokens or end differ.
pub fn different_answers(a: &Run, b: &Run) -> Vec<usize> {
    let pairs = a.outcomes.iter().zip(&b.outcomes).enumerate();
    pairs
        .filter(|(_, (a, b))| a.parts_from(b).is_some() || a.reason != b.reason)
        .map(|(idx, _)| idx)
        .collect()
}

/// Requests whose answers contradict each other, for runs whose plans differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contradictions {
    /// Requests that kept their KV blocks from first to last in both runs.
    pub undisturbed: Vec<usize>,
    /// Requests that were preempted in either: tokens that had been decoded were then computed again as part of a prompt.
    pub preempted: Vec<usize>,
}

impl Contradictions {
    /// As [`different_answers`], but where plans differ, a cancellation finds a request at another token: of cancelled requests only what
    /// both have must be the same.
    pub fn find(a: &Run, b: &Run) -> Self {
        let mut found = Self::default();
        for (request, (a, b)) in a.outcomes.iter().zip(&b.outcomes).enumerate() {
            if !contradict(a, b) {
                continue;
            }
            match a.num_preemptions + b.num_preemptions {
                0 => found.undisturbed.push(request),
                _ => found.preempted.push(request),
            }
        }
        found
    }
}

fn contradict(a: &Outcome, b: &Outcome) -> bool {
    let shorter = a.tokens.len().min(b.tokens.len());
    let parts = a.parts_from(b).is_some_and(|at| at < shorter);
    let is_cut = |outcome: &Outcome| outcome.reason == FinishReason::Cancelled;
    let whole = !is_cut(a) && !is_cut(b);
    parts || whole && (a.tokens.len() != b.tokens.len() || a.reason != b.reason)
}

/// FNV-1a over all token ids and lengths, to compare runs on different machines.
pub fn fingerprint(run: &Run) -> u64 {
    let words = run.outcomes.iter().flat_map(|outcome| {
        let len = outcome.tokens.len() as u32;
        std::iter::once(len).chain(outcome.ids())
    });
    words.fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
        (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// All requests that part, each with the margin of the decision where it does.
pub fn divergences(schedule: &Schedule, vocab: usize, a: &Run, b: &Run) -> Result<Vec<Divergence>> {
    let mut judge = Judge::new(vocab, schedule.max_len as usize);
    let mut found = Vec::new();
    for (request, (a, b)) in a.outcomes.iter().zip(&b.outcomes).enumerate() {
        let Some(at) = a.parts_from(b) else { continue };
        let params = params(schedule, request);
        let prompt = schedule.requests[request].prompt(request, vocab as u32);
        let mut margins = Vec::new();
        for outcome in [a, b] {
            if at < outcome.tokens.len() {
                margins.push(judge.margin(&params, &prompt, outcome, at)?);
            }
        }
        let token = |outcome: &Outcome| outcome.tokens.get(at).map(|token| token.token);
        found.push(Divergence {
            request,
            at,
            tokens: [token(a), token(b)],
            is_sampled: !params.is_greedy(),
            margin: margins.into_iter().reduce(f32::min),
        });
    }
    Ok(found)
}

fn params(schedule: &Schedule, request: usize) -> SamplingParams {
    let request = judgeable(schedule.requests[request].sampling());
    SamplingParams {
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        repetition_penalty: request.repetition_penalty,
        presence_penalty: request.presence_penalty,
        frequency_penalty: request.frequency_penalty,
        seed: request.seed.unwrap_or(0),
        ..SamplingParams::greedy()
    }
}

/// Repeats decisions from the log-probabilities that came with them.
struct Judge {
    sampler: Sampler,
    row: RowState,
    logits: Vec<f32>,
}

impl Judge {
    fn new(vocab_size: usize, max_model_len: usize) -> Self {
        Self {
            sampler: Sampler::new(vocab_size),
            row: RowState::new(RowLimits {
                vocab_size,
                max_model_len,
                max_logprobs: 0,
            }),
            logits: vec![f32::NEG_INFINITY; vocab_size],
        }
    }

    /// The margin of token `at`. Tokens beyond the listed ones do not count: they are too far off to come back by a change that matters,
    /// or the distribution is so flat that the margin is small anyway.
    fn margin(
        &mut self,
        params: &SamplingParams,
        prompt: &[u32],
        outcome: &Outcome,
        at: usize,
    ) -> Result<f32> {
        let before = outcome.ids().take(at);
        self.row
            .bind(params, &TokenLists::default(), prompt, before)
            .context("cannot repeat a decision")?;
        let GeneratedToken {
            token, logprobs, ..
        } = &outcome.tokens[at];
        let logprobs = logprobs
            .as_ref()
            .context("a token came without its log-probabilities")?;
        self.logits.fill(f32::NEG_INFINITY);
        self.logits[*token as usize] = logprobs.sampled;
        for &(other, logprob) in &logprobs.top {
            self.logits[other as usize] = logprob;
        }
        let decision = self.sampler.decide(&mut self.logits, &self.row, None)?;
        ensure!(
            decision.token == *token || decision.margin < 1e-3,
            "the sampler took {token}, repeated from its log-probabilities it takes {} with a margin of {}",
            decision.token,
            decision.margin
        );
        Ok(decision.margin)
    }
}

#[cfg(test)]
mod tests {
    use izar_transport::client::TokenLogprobs;

    use super::*;

    fn outcome(ids: &[u32], reason: FinishReason) -> Outcome {
        let token = |&token| GeneratedToken {
            token,
            timestamp_ns: 0,
            logprobs: Some(Box::new(TokenLogprobs {
                sampled: -0.5,
                rank: 1,
                top: vec![(token, -0.5), (token + 1, -0.75), (token + 2, -9.0)],
            })),
        };
        Outcome {
            tokens: ids.iter().map(token).collect(),
            reason,
            num_preemptions: 0,
        }
    }

    fn run(outcomes: Vec<Outcome>) -> Run {
        Run {
            outcomes,
            steps: Vec::new(),
            stats: Default::default(),
            num_rounds: 0,
        }
    }

    #[test]
    fn cancelled_answers_may_be_cut_at_different_tokens_but_not_differ() {
        use FinishReason::{Cancelled, Length};
        let long = || outcome(&[1, 2, 3], Cancelled);
        let a = run(vec![long(), long(), long(), outcome(&[1, 2, 3], Length)]);
        let preempted = Outcome {
            num_preemptions: 1,
            ..outcome(&[1, 2], Length)
        };
        let b = run(vec![
            outcome(&[1, 2], Cancelled),
            outcome(&[1, 2, 3], Length),
            outcome(&[1, 9], Cancelled),
            preempted,
        ]);
        assert_eq!(different_answers(&a, &b), [0, 1, 2, 3]);
        let expected = Contradictions {
            undisturbed: vec![2],
            preempted: vec![3],
        };
        assert_eq!(Contradictions::find(&a, &b), expected);
        assert_eq!(different_answers(&a, &a.clone()), [0usize; 0]);
        assert_ne!(fingerprint(&a), fingerprint(&b));
    }

    #[test]
    fn a_divergence_comes_with_the_margin_of_the_decision() {
        let mut schedule = Schedule::make(2, 1, (8, 8), 4);
        for request in &mut schedule.requests {
            request.seed = None;
        }
        let length = FinishReason::Length;
        let a = run(vec![
            outcome(&[5, 6, 7], length.clone()),
            outcome(&[5, 6], length.clone()),
        ]);
        let b = run(vec![
            outcome(&[5, 6, 8], length.clone()),
            outcome(&[5, 6], length),
        ]);
        let found = divergences(&schedule, 32, &a, &b).expect("log-probabilities are there");
        let expected = Divergence {
            request: 0,
            at: 2,
            tokens: [Some(7), Some(8)],
            is_sampled: false,
            margin: Some(0.25),
        };
        assert_eq!(found, [expected]);
    }
}
