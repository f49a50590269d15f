//! Sampling: from one row of logits and the history of its sequence to the next token.
//!
//! This is the reference that every back end's sampler agrees with. It is not the loop that calls
//! it, and it knows no text: stop strings belong to the front end, and grammars arrive as bit
//! masks.
//!
//! # Order of operations
//!
//! The semantics are those of vLLM's OpenAI server:
//!
//! 1. log-probabilities of the raw logits, if asked for ([`Logprobs`]);
//! 2. logit bias; allowed tokens, grammar, end-of-sequence and stop tokens before `min_tokens`, and
//!    bad words set logits to -∞;
//! 3. repetition penalty (tokens in the prompt or generated), then frequency and presence penalty
//!    (generated tokens);
//! 4. temperature 0 (below [`GREEDY_TEMPERATURE`], or `top_k` 1): the largest logit, of equal ones
//!    the lowest token;
//! 5. otherwise the scaled logit `z = (x - max x) * (1 / temperature)`: a division, a subtraction
//!    and a multiplication in f32;
//! 6. min-p, top-k, top-p, in this order. Each is a threshold on z, so tokens with equal logits
//!    stay or go together: `z >= ln(min_p)` by [`elementary::ln_positive`]; z at least the k-th
//!    largest; and the mass of the tokens with a larger z, among those that the other two kept,
//!    below `top_p` times the mass of them all. A [`mass()`] is an integer (e^z in units of 2^-30,
//!    rounded) and the product with `top_p` is in f64, so no order of summation can change the
//!    outcome;
//! 7. a race: the token with the largest `z + gumbel(word)` wins, where `word` is a Philox word
//!    that depends on the seed, the position (tokens generated so far) and the token only
//!    ([`Draws::word`]).
//!
//! A NaN, or no logit above -∞, is an error for that sequence alone. +∞ is certainty: such tokens
//! share all the probability.
//!
//! # Why a race and not the inverse of the cumulative distribution
//!
//! Both draw from the same distribution. The race needs no prefix sum and no order: a maximum over
//! independent numbers is the same whether one thread, sixteen lanes or two hundred GPU blocks
//! compute it, and ranks that hold parts of a row can each send one candidate. And it is robust:
//! when another batch shape or rank count changes the logits by up to ε, the winner stays unless
//! the runner-up was within 2ε/T, for a probability of about 2ε/T at most. Under the inverse, noise
//! anywhere moves every later boundary, so the token can change although no logit near it did.
//!
//! How near a decision was to another is measured by [`Sampler::decide`]: the margin of a row is
//! what the difference of two logits must change by, at least, before the token can change. Noise
//! of up to ε per logit is harmless where the margin is above 2ε.
//!
//! # Bit for bit on any device
//!
//! Every step is either exact (integers, comparisons) or a fixed sequence of correctly rounded
//! single-precision operations on one token ([`elementary`]), and everything that combines tokens
//! is a maximum or an integer sum. The same logits therefore give the same token on any instruction
//! set, any split of the work and any device that follows these definitions with its contraction of
//! multiply and add turned off; sampling in a GPU kernel needs two reductions (maximum, mass) and
//! the race.
//!
//! # Who owns what
//!
//! A [`Sampler`] is one worker's scratch memory, a [`RowState`] one sequence's memory; a row is
//! sampled by one thread at a time, by any worker. Neither allocates while sampling. Greedy is one
//! pass over the row; masks, logprobs and a top-p without top-k or min-p add one each; only the
//! tokens left to race draw random numbers.

mod boundary;
mod candidates;
mod counts;
mod edit;
pub mod elementary;
mod logprobs;
mod mass;
mod params;
pub mod philox;
mod race;
mod row;
mod sampler;
mod scan;
mod seed;
mod selection;
mod simd;
pub mod stop;
mod truncate;

pub use boundary::Decision;
pub use izar_ring::{LogitBias, LogprobEntry};
pub use logprobs::{Logprobs, MIN_LOGPROB};
pub use mass::mass;
pub use params::{BadWords, GREEDY_TEMPERATURE, ParamsError, SamplingParams, TokenLists};
pub use race::Draws;
pub use row::{RowLimits, RowState};
pub use sampler::{SampleError, Sampler};
pub use seed::SeedSource;
