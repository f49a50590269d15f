//! The definition of sampling, written for reading: sorts, maps and no tricks.

use izar_engine::sampling::{
    Draws, LogitBias, SampleError, SamplingParams, elementary, mass, philox,
};
use std::collections::{BTreeMap, BTreeSet};

/// Everything that decides a token.
#[derive(Clone, Debug)]
pub struct Case {
    pub params: SamplingParams,
    pub prompt: Vec<u32>,
    pub generated: Vec<u32>,
    pub logit_bias: Vec<LogitBias>,
    pub allowed_ids: Vec<u32>,
    pub eos_ids: Vec<u32>,
    pub stop_ids: Vec<u32>,
    pub bad_words: Vec<Vec<u32>>,
    pub grammar: Option<Vec<u32>>,
}

/// The token that the definition chooses.
pub fn sample(raw: &[f32], case: &Case) -> Result<u32, SampleError> {
    if raw.iter().any(|x| x.is_nan()) || raw.iter().all(|&x| x == f32::NEG_INFINITY) {
        return Err(SampleError::NonFinite);
    }
    let mut logits = raw.to_vec();
    edit(&mut logits, case);
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NothingAllowed);
    }
    if max == f32::INFINITY {
        for x in &mut logits {
            *x = if *x == max { 0.0 } else { f32::NEG_INFINITY };
        }
    }
    let max = max
        .min(f32::MAX)
        .min(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let params = &case.params;
    if params.is_greedy() {
        let first = logits.iter().position(|&x| x == max);
        return Ok(first.expect("some logit is the largest") as u32);
    }
    let scale = 1.0 / params.temperature;
    let z: Vec<f32> = logits.iter().map(|x| (x - max) * scale).collect();
    Ok(race(&z, &kept(&z, params), case))
}

fn edit(logits: &mut [f32], case: &Case) {
    let params = &case.params;
    for pair in &case.logit_bias {
        logits[pair.token as usize] += pair.bias;
    }
    for (token, x) in logits.iter_mut().enumerate() {
        let token = token as u32;
        let is_allowed = case.allowed_ids.is_empty() || case.allowed_ids.contains(&token);
        let in_grammar = case
            .grammar
            .as_ref()
            .is_none_or(|mask| mask[token as usize / 32] >> (token % 32) & 1 == 1);
        let is_end = case.eos_ids.contains(&token) || case.stop_ids.contains(&token);
        let too_early = is_end && case.generated.len() < params.min_tokens as usize;
        let is_bad = case.bad_words.iter().any(|word| {
            let (last, prefix) = word.split_last().expect("words are not empty");
            *last == token && case.generated.ends_with(prefix)
        });
        if !is_allowed || !in_grammar || too_early || is_bad {
            *x = f32::NEG_INFINITY;
        }
    }
    let mut counts = BTreeMap::new();
    for token in &case.generated {
        *counts.entry(*token).or_insert(0u32) += 1;
    }
    let seen: BTreeSet<u32> = case.prompt.iter().chain(&case.generated).copied().collect();
    for token in seen {
        let x = &mut logits[token as usize];
        *x = if *x > 0.0 {
            *x / params.repetition_penalty
        } else {
            *x * params.repetition_penalty
        };
    }
    for (token, count) in counts {
        let x = &mut logits[token as usize];
        *x -= params.frequency_penalty * count as f32;
        *x -= params.presence_penalty;
    }
}

/// Which tokens min-p, top-k and top-p leave.
pub fn kept(z: &[f32], params: &SamplingParams) -> Vec<bool> {
    let mut order: Vec<usize> = (0..z.len()).filter(|&i| z[i] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| z[b].total_cmp(&z[a]));
    if params.min_p > 0.0 {
        let bound = elementary::ln_positive(params.min_p.max(f32::MIN_POSITIVE));
        order.retain(|&i| z[i] >= bound);
    }
    let k = params.top_k as usize;
    if k > 0 && k < order.len() {
        let last = z[order[k - 1]];
        order.retain(|&i| z[i] >= last);
    }
    if params.top_p < 1.0 {
        let total: u64 = order.iter().map(|&i| mass(z[i])).sum();
        let target = f64::from(params.top_p) * total as f64;
        // The mass of the strictly more likely tokens, which equal ones share.
        let (mut above, mut summed) = (0, 0);
        let mut last = f32::INFINITY;
        order.retain(|&i| {
            if z[i] < last {
                above = summed;
                last = z[i];
            }
            summed += mass(z[i]);
            (above as f64) < target
        });
    }
    let mut kept = vec![false; z.len()];
    for i in order {
        kept[i] = true;
    }
    kept
}

fn race(z: &[f32], kept: &[bool], case: &Case) -> u32 {
    let draws = Draws {
        key: philox::key(case.params.seed),
        position: case.generated.len() as u32,
    };
    let mut best = (f32::NEG_INFINITY, 0);
    for token in (0..z.len() as u32).filter(|&token| kept[token as usize]) {
        let score = z[token as usize] + elementary::gumbel(draws.word(token));
        if score > best.0 {
            best = (score, token);
        }
    }
    best.1
}
