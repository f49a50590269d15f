//! `score_tokens`: log-probabilities and ranks of given tokens, such as a prompt's, and the likeliest ones in their place.

use std::ffi::c_void;

use bytemuck::{Pod, Zeroable};

use crate::error::check;
use crate::ffi;
use crate::launch_error::{Checks, LaunchError};
use crate::matrix::Matrix;
use crate::pinned::PinnedBuffer;
use crate::sampler::{LOGPROB_ENTRIES, MAX_VOCAB, SampleLogprob, slice_len};
use crate::stream::Stream;

/// Mirrors `IzarScoreTokensArgs`.
#[repr(C)]
pub(crate) struct Args {
    logits: *const c_void,
    tokens: *const c_void,
    scores: *mut c_void,
    logprobs: *mut c_void,
    logits_stride: u32,
    vocab_size: u32,
    num_rows: u32,
    num_top: u32,
    slice_len: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Args>() == 56);

/// What the device says of a token beside its log-probabilities.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct TokenScore {
    /// 0 if the row's logits hold a NaN or nothing above -∞: then nothing else counts.
    pub is_scored: u32,
    /// Logits that are at least the token's.
    pub rank: u32,
}

/// One launch: a token for every row of logits.
#[derive(Debug, Clone, Copy)]
pub struct ScoreTokens<'a> {
    /// `[rows, vocab_size]`, f32; not changed. Rows that start at multiples of 16 bytes are faster.
    pub logits: Matrix<'a, f32>,
    /// Token ids below `vocab_size`, those of the rows from element `tokens_at` on.
    pub tokens: &'a PinnedBuffer<u32>,
    /// See `tokens`.
    pub tokens_at: usize,
    /// Written, from element `tokens_at` on.
    pub scores: &'a PinnedBuffer<TokenScore>,
    /// Written, a row's `1 + num_top` entries after the other's, from element `logprobs_at` on: the token's, then the
    /// likeliest ones' in falling order.
    pub logprobs: &'a PinnedBuffer<SampleLogprob>,
    /// See `logprobs`.
    pub logprobs_at: usize,
    /// Of the likeliest tokens, at most 128 and at most the vocabulary.
    pub num_top: u32,
}

/// Launches one scoring into `stream`. Results can be read when the stream is done with it.
///
/// # Errors
/// [`LaunchError`]; nothing is launched then.
///
/// # Safety
/// The token ids are below the width of `logits` and do not change, and nobody touches the results, until the launch has run.
pub unsafe fn score_tokens(stream: &Stream, step: &ScoreTokens<'_>) -> Result<(), LaunchError> {
    let ScoreTokens {
        logits,
        tokens,
        tokens_at,
        scores,
        logprobs,
        logprobs_at,
        num_top,
    } = *step;
    let checks = Checks("score_tokens");
    let (rows, vocab_size) = (logits.rows() as usize, logits.cols());
    let entries = 1 + num_top as usize;
    checks.require(
        vocab_size <= MAX_VOCAB,
        "the vocabulary",
        "at most 358400 tokens",
        vocab_size,
    )?;
    checks.require(
        entries <= LOGPROB_ENTRIES && num_top <= vocab_size,
        "num_top",
        "at most 128 and at most the vocabulary",
        num_top,
    )?;
    let room = tokens.len().min(scores.len());
    checks.require(
        tokens_at + rows <= room,
        "tokens and scores",
        "as long as the rows or longer",
        room,
    )?;
    checks.require(
        logprobs_at + rows * entries <= logprobs.len(),
        "logprobs",
        "as long as the rows' entries or longer",
        logprobs.len(),
    )?;
    let args = Args {
        logits: logits.address(),
        tokens: tokens.address_of(tokens_at),
        scores: scores.address_of(tokens_at),
        logprobs: logprobs.address_of(logprobs_at),
        logits_stride: logits.stride(),
        vocab_size,
        num_rows: logits.rows(),
        num_top,
        slice_len: slice_len(vocab_size),
        reserved: 0,
    };
    let raw = stream.for_launch()?;
    // SAFETY: everything lies in its buffer, checked; buffers outlive work on them; the rest is the caller's promise.
    check("score_tokens", unsafe {
        ffi::izar_score_tokens(&args, raw)
    })?;
    Ok(())
}
