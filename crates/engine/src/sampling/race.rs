//! Who is sampled: every remaining token runs with its scaled logit plus its own Gumbel variate,
//! the highest score wins.
//!
//! The winner is distributed as the softmax of the scaled logits (the Gumbel-max identity). A
//! token's variate depends on the seed, the position and the token alone, so the race gives the
//! same winner whoever runs it, in whatever order or parts.

use super::candidates::{Affine, Candidates};
use super::elementary::{MAX_GUMBEL, gumbel, gumbel_upper_bound, gumbel_upper_bound_lanes};
use super::philox::{philox_lanes, philox4x32_10};
use super::scan::{BLOCK, GroupMaxima, larger};
use super::simd::{Level, Simd, kernel};

/// The most lanes of any level.
const MAX_LANES: usize = 16;

/// The draws of one token position of one request.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// The request's seed, low word first.
    pub key: [u32; 2],
    /// Tokens generated before this one.
    pub position: u32,
}

impl Draws {
    /// The random word of `token`: word `token % 4` of the Philox block at counter `[token / 4,
    /// position, 0, 0]`.
    pub fn word(self, token: u32) -> u32 {
        philox4x32_10([token / 4, self.position, 0, 0], self.key)[token as usize % 4]
    }

    /// The Philox blocks whose first counter words are given: the words of tokens `4 * counter` to
    /// `4 * counter + 3`.
    #[inline(always)]
    fn blocks<S: Simd>(self, simd: S, counters: S::U) -> [S::U; 4] {
        let zero = simd.splat_u(0);
        philox_lanes(
            simd,
            [counters, simd.splat_u(self.position), zero, zero],
            self.key,
        )
    }
}

/// The best runner so far. Equal scores go to the lower token.
#[derive(Clone, Copy, Debug)]
struct Leader {
    score: f32,
    token: u32,
}

impl Leader {
    const NONE: Self = Self {
        score: f32::NEG_INFINITY,
        token: u32::MAX,
    };

    fn challenge(&mut self, token: u32, z: f32, word: u32) {
        if z + gumbel_upper_bound(word) < self.score {
            return;
        }
        let score = z + gumbel(word);
        if score > self.score || (score == self.score && token < self.token) {
            *self = Self { score, token };
        }
    }

    /// Challenges by the tokens whose bits are set, counted from `first`. Rare, as each new leader
    /// is harder to beat.
    #[cold]
    #[inline(never)]
    fn challenge_by_each(
        &mut self,
        mut bits: u32,
        first: u32,
        logits: &[f32],
        map: Affine,
        words: &[u32; MAX_LANES],
    ) {
        while bits != 0 {
            let lane = bits.trailing_zeros() as usize;
            self.challenge(first + lane as u32, map.value(logits[lane]), words[lane]);
            bits &= bits - 1;
        }
    }
}

/// The winner among the candidates, of which there is at least one.
pub(super) fn among(level: Level, candidates: &Candidates, draws: Draws) -> u32 {
    among_listed(level, candidates.tokens(), candidates.values(), draws)
}

kernel! {
    fn among_listed(tokens: &[u32], values: &[f32], draws: Draws) -> u32 = among_listed_lanes
}

#[inline(always)]
fn among_listed_lanes<S: Simd>(simd: S, tokens: &[u32], values: &[f32], draws: Draws) -> u32 {
    let mut leader = Leader::NONE;
    for (tokens, values) in tokens.chunks(S::LANES).zip(values.chunks(S::LANES)) {
        let mut counters = [0; MAX_LANES];
        let mut z = [f32::NEG_INFINITY; MAX_LANES];
        for (lane, (&token, &value)) in tokens.iter().zip(values).enumerate() {
            counters[lane] = token / 4;
            z[lane] = value;
        }
        let mut blocks = [[0; MAX_LANES]; 4];
        for (words, block) in draws
            .blocks(simd, simd.load_u(&counters))
            .into_iter()
            .zip(&mut blocks)
        {
            simd.store_u(words, block);
        }
        let mut words = [0; MAX_LANES];
        for (lane, &token) in tokens.iter().enumerate() {
            words[lane] = blocks[token as usize % 4][lane];
        }
        let bounds = simd.add(
            simd.load(&z),
            gumbel_upper_bound_lanes(simd, simd.load_u(&words)),
        );
        let mut contenders = simd.ge(bounds, simd.splat(leader.score));
        while contenders != 0 {
            let lane = contenders.trailing_zeros() as usize;
            if let Some(&token) = tokens.get(lane) {
                leader.challenge(token, z[lane], words[lane]);
            }
            contenders &= contenders - 1;
        }
    }
    leader.token
}

kernel! {
    /// The winner among all tokens of the row. `likely` is any token; the likelier, the sooner
    /// others drop out.
    pub(super) fn among_all(
        logits: &[f32],
        maxima: &[GroupMaxima],
        map: Affine,
        likely: u32,
        draws: Draws,
    ) -> u32 = among_all_lanes
}

#[inline(always)]
fn among_all_lanes<S: Simd>(
    simd: S,
    logits: &[f32],
    maxima: &[GroupMaxima],
    map: Affine,
    likely: u32,
    draws: Draws,
) -> u32 {
    let mut leader = Leader::NONE;
    leader.challenge(
        likely,
        map.value(logits[likely as usize]),
        draws.word(likely),
    );
    for (idx, (block, groups)) in logits.chunks(BLOCK).zip(maxima).enumerate() {
        let block_max = groups.iter().copied().fold(f32::NEG_INFINITY, larger);
        if map.value(block_max) + MAX_GUMBEL < leader.score {
            continue;
        }
        for (i, chunk) in block.chunks(4 * S::LANES).enumerate() {
            let first = (idx * BLOCK + i * 4 * S::LANES) as u32;
            let mut padded = [f32::NEG_INFINITY; 4 * MAX_LANES];
            let mut chunk = chunk;
            if chunk.len() < 4 * S::LANES {
                padded[..chunk.len()].copy_from_slice(chunk);
                chunk = &padded;
            }
            run_chunk(simd, chunk, first, map, draws, &mut leader);
        }
    }
    leader.token
}

/// Lets the tokens from `first` run, four for each lane: a Philox block serves four neighbours.
#[inline(always)]
fn run_chunk<S: Simd>(
    simd: S,
    chunk: &[f32],
    first: u32,
    map: Affine,
    draws: Draws,
    leader: &mut Leader,
) {
    // Lane 4 q + i gets counter i * LANES / 4 + q, so that the transposed words are in the order of
    // the tokens.
    let order: [u32; MAX_LANES] =
        std::array::from_fn(|lane| (lane % 4 * (S::LANES / 4) + lane / 4) as u32);
    let counters = simd.add_u(simd.load_u(&order), simd.splat_u(first / 4));
    let words = simd.transpose_quads(draws.blocks(simd, counters));

    let to_beat = simd.splat(leader.score);
    for (i, (words, numbers)) in words
        .into_iter()
        .zip(chunk.chunks_exact(S::LANES))
        .enumerate()
    {
        let z = map.lanes(simd, simd.load(numbers));
        let contenders = simd.ge(simd.add(z, gumbel_upper_bound_lanes(simd, words)), to_beat);
        if contenders != 0 {
            let mut stored = [0; MAX_LANES];
            simd.store_u(words, &mut stored);
            leader.challenge_by_each(
                contenders,
                first + (i * S::LANES) as u32,
                numbers,
                map,
                &stored,
            );
        }
    }
}
