//! How far a decision is from being another one: the margin that comparisons between batch shapes,
//! ranks and devices need.
//!
//! The same model computes slightly different logits in another batch. Where two runs disagree on a
//! token, the question is whether noise explains it. The *margin* answers: as long as no difference
//! between two logits of the row changes by the margin or more, the token stays. Noise of up to ε
//! on every logit changes differences by up to 2ε; it cannot change a token whose margin is above
//! 2ε. For greedy rows the margin is the familiar one, the largest logit minus the second.
//!
//! For a sampled row three things could happen, and the margin is the least change that allows one:
//! another kept token's score overtakes the winner's; the winner falls to min-p, top-k or top-p; or
//! a token that was cut comes back and wins. Top-p is a sum, so its part is an interval estimate:
//! masses are moved against the winner by the whole change. The result is a lower bound, exact
//! where no cut is near. Not for the hot path: it sorts the row and allocates.
//!
//! Margins are of the edited logits: a repetition penalty above 1 has already scaled noise on the
//! raw ones, down where they are positive and up where they are negative.

use super::candidates::Affine;
use super::elementary::gumbel;
use super::params::SamplingParams;
use super::race::Draws;

/// A decision and how firm it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The token that is sampled.
    pub token: u32,
    /// Differences between logits (after bias, masks and penalties, before temperature) may change
    /// by anything less without changing the token. Infinite if no other token is allowed. Not
    /// meaningful below a few ulp of the logits.
    pub margin: f32,
}

/// The margin of a greedy choice.
pub(super) fn greedy_margin(logits: &[f32], token: u32) -> f32 {
    let others = (0u32..).zip(logits).filter(|&(other, _)| other != token);
    let second = others.fold(f32::NEG_INFINITY, |max, (_, &x)| max.max(x));
    logits[token as usize] - second
}

/// The margin of a sampled choice, in units of the logits that `map` scales.
pub(super) fn sampled_margin(
    logits: &[f32],
    map: Affine,
    params: &SamplingParams,
    draws: Draws,
    token: u32,
) -> f32 {
    let race = Race::new(logits, map, params, draws, token);
    // Above this, exponentials of the change lose all meaning; beyond it the decision is as good as
    // certain.
    let (mut firm, mut loose) = (0.0, 60.0);
    if race.z.len() == 1 || !race.could_change(loose) {
        return f32::INFINITY;
    }
    while loose - firm > 1e-7 * loose {
        let change = 0.5 * (firm + loose);
        match race.could_change(change) {
            true => loose = change,
            false => firm = change,
        }
    }
    (firm / f64::from(map.scale)) as f32
}

/// A row as its race sees it: tokens in falling order of their scaled logits.
struct Race {
    /// Scaled logits, falling.
    z: Vec<f64>,
    scores: Vec<f64>,
    /// `mass[n]` is the mass of the first n tokens.
    mass: Vec<f64>,
    winner: usize,
    min_p_bound: f64,
    /// The scaled logits of the last of the first k tokens, and of the next one, which may be
    /// equal.
    top_k: Option<(f64, f64)>,
    top_p: f64,
}

impl Race {
    fn new(logits: &[f32], map: Affine, params: &SamplingParams, draws: Draws, token: u32) -> Self {
        let values = (0u32..)
            .zip(logits)
            .map(|(token, &x)| (token, map.value(x)));
        let mut tokens: Vec<(u32, f32)> = values.filter(|&(_, z)| z > f32::NEG_INFINITY).collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
        let z: Vec<f64> = tokens.iter().map(|&(_, z)| f64::from(z)).collect();
        let scores = tokens
            .iter()
            .map(|&(token, z)| f64::from(z + gumbel(draws.word(token))));
        let mut mass = vec![0.0];
        mass.extend(z.iter().scan(0.0, |sum, z| {
            *sum += z.exp();
            Some(*sum)
        }));
        let winner = tokens.iter().position(|&(other, _)| other == token);
        let k = params.top_k as usize;
        let top_k = (k > 0 && k < z.len()).then(|| (z[k - 1], z[k]));
        Self {
            scores: scores.collect(),
            mass,
            winner: winner.expect("the winner is not masked"),
            min_p_bound: f64::from(params.min_p).ln(),
            top_k,
            top_p: f64::from(params.top_p),
            z,
        }
    }

    /// Whether changes of differences by up to `change` (of scaled logits) could make another token
    /// win.
    fn could_change(&self, change: f64) -> bool {
        let to_beat = self.scores[self.winner] - change;
        let num_possible = self.num_possible(change);
        let is_rival = |i: &usize| *i != self.winner && self.scores[*i] >= to_beat;
        self.could_be_cut(self.winner, change)
            || (0..num_possible)
                .filter(is_rival)
                .any(|i| self.could_be_kept(i, change))
    }

    /// How many tokens min-p and top-k might keep, and how many they keep for certain.
    fn num_possible(&self, change: f64) -> usize {
        let top_k = self
            .top_k
            .map_or(f64::NEG_INFINITY, |(last, _)| last - change);
        let bound = top_k.max(self.min_p_bound - change);
        self.z.partition_point(|&z| z >= bound)
    }

    fn num_sure(&self, change: f64) -> usize {
        let top_k = self
            .top_k
            .map_or(f64::NEG_INFINITY, |(_, next)| next + change);
        let bound = self.min_p_bound + change;
        self.z.partition_point(|&z| z > top_k && z >= bound)
    }

    /// Whether token `i`, which min-p and top-k might keep, might be kept by top-p as well.
    fn could_be_kept(&self, i: usize, change: f64) -> bool {
        if self.top_p >= 1.0 {
            return true;
        }
        let above = self.z.partition_point(|&z| z > self.z[i] + change);
        let sure = self.mass[above.min(self.num_sure(change))];
        let rest = self.mass[self.num_possible(change).max(above)] - self.mass[above];
        let shrunk = sure * (-change).exp();
        shrunk < self.top_p * (shrunk + rest)
    }

    /// Whether token `i` might be cut.
    fn could_be_cut(&self, i: usize, change: f64) -> bool {
        let (sure, possible) = (self.num_sure(change), self.num_possible(change));
        if i >= sure {
            return true;
        }
        if self.top_p >= 1.0 {
            return false;
        }
        let own = self.mass[i + 1] - self.mass[i];
        let reach = self.z.partition_point(|&z| z >= self.z[i] - change);
        let above = (self.mass[reach.min(possible)] - own) * change.exp();
        let rest = self.mass[sure.max(reach)] - self.mass[reach] + own;
        above >= self.top_p * (above + rest)
    }
}
