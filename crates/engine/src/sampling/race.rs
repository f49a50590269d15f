//! Who is sampled: every remaining token runs with its scaled logit plus its own Gumbel variate, the highest score wins.
//!
//! The winner is distributed as the softmax of the scaled logits (the Gumbel-max identity). A token's variate depends on the
//! seed, the position and the token alone, so the race gives the same winner whoever runs it, in whatever order or parts.

use super::candidates::{Affine, Candidates};
use super::elementary::{MAX_GUMBEL, gumbel, gumbel_upper_bound};
use super::lanes::{BLOCK, LANES, multiversion};
use super::philox::{philox4x32_10, rounds};
use super::scan::{GroupMaxima, larger};

/// The draws of one token position of one request.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// The request's seed, low word first.
    pub key: [u32; 2],
    /// Tokens generated before this one.
    pub position: u32,
}

impl Draws {
    /// The random word of `token`: word `token % 4` of the Philox block at counter `[token / 4, position, 0, 0]`.
    pub fn word(self, token: u32) -> u32 {
        philox4x32_10([token / 4, self.position, 0, 0], self.key)[token as usize % 4]
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

    #[inline(always)]
    fn challenge(&mut self, token: u32, z: f32, word: u32) {
        let score = z + gumbel(word);
        if score > self.score || (score == self.score && token < self.token) {
            *self = Self { score, token };
        }
    }
}

/// The winner among the candidates, of which there is at least one.
pub(super) fn among(candidates: &Candidates, draws: Draws) -> u32 {
    among_listed(candidates.tokens(), candidates.values(), draws)
}

multiversion! {
    fn among_listed(tokens: &[u32], values: &[f32], draws: Draws) -> u32 = among_listed_body
}

#[inline(always)]
fn among_listed_body(tokens: &[u32], values: &[f32], draws: Draws) -> u32 {
    let mut leader = Leader::NONE;
    for (tokens, values) in tokens.chunks(LANES).zip(values.chunks(LANES)) {
        let mut blocks = [[0; LANES]; 4];
        for (lane, &token) in tokens.iter().enumerate() {
            blocks[0][lane] = token / 4;
        }
        blocks[1] = [draws.position; LANES];
        rounds(&mut blocks, draws.key);
        for (lane, (&token, &z)) in tokens.iter().zip(values).enumerate() {
            let word = blocks[token as usize % 4][lane];
            if z + gumbel_upper_bound(word) >= leader.score {
                leader.challenge(token, z, word);
            }
        }
    }
    leader.token
}

/// Tokens whose variates are drawn together: four of each of [`LANES`] Philox blocks.
const CHUNK: usize = 4 * LANES;

multiversion! {
    /// The winner among all tokens of the row. `likely` is any token; the likelier, the sooner others drop out.
    pub(super) fn among_all(
        logits: &[f32],
        maxima: &[GroupMaxima],
        map: Affine,
        likely: u32,
        draws: Draws,
    ) -> u32 = among_all_body
}

#[inline(always)]
fn among_all_body(
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
        for (i, chunk) in block.chunks(CHUNK).enumerate() {
            let first = (idx * BLOCK + i * CHUNK) as u32;
            match <&[f32; CHUNK]>::try_from(chunk) {
                Ok(chunk) => run_chunk(chunk, first, map, draws, &mut leader),
                Err(_) => {
                    let mut padded = [f32::NEG_INFINITY; CHUNK];
                    padded[..chunk.len()].copy_from_slice(chunk);
                    run_chunk(&padded, first, map, draws, &mut leader);
                }
            }
        }
    }
    leader.token
}

#[inline(always)]
fn run_chunk(chunk: &[f32; CHUNK], first: u32, map: Affine, draws: Draws, leader: &mut Leader) {
    let counters = std::array::from_fn(|lane| first / 4 + lane as u32);
    let mut blocks = [counters, [draws.position; LANES], [0; LANES], [0; LANES]];
    rounds(&mut blocks, draws.key);

    let mut words = [0; CHUNK];
    for lane in 0..LANES {
        for word in 0..4 {
            words[4 * lane + word] = blocks[word][lane];
        }
    }
    let mut contenders = 0u32;
    for i in 0..CHUNK {
        let bound = map.value(chunk[i]) + gumbel_upper_bound(words[i]);
        contenders |= u32::from(bound >= leader.score);
    }
    if contenders != 0 {
        for (i, &x) in chunk.iter().enumerate() {
            let z = map.value(x);
            if z + gumbel_upper_bound(words[i]) >= leader.score {
                leader.challenge(first + i as u32, z, words[i]);
            }
        }
    }
}
