//! A simulated executor: a "model" whose next token is a hash of everything it reads from its KV cache.
//!
//! It keeps token and position of every KV slot. A wrong block table, a block shared too early or returned too late, a stale
//! decode token or a step out of order changes what it reads, hence the tokens, hence fails a comparison with
//! [`expected`], which needs no cache.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use izar_engine::driver::{
    Executor, ExecutorFailed, NoToken, PromptLogprobs, RowSample, StepEntry, StepWork, StopLimits,
    now_ns,
};
use izar_engine::sampling::stop::{self, StopParams};
use izar_ring::{EngineError, LogprobEntry, MaskState};
use izar_transport::TokenMasks;

pub const VOCAB: u32 = 1000;
pub const EOS: u32 = 7;
/// A prompt that contains this token makes the row fail at its third generated token.
pub const POISON: u32 = 999;
/// A prompt that contains this token makes the executor fail as a whole.
pub const FATAL: u32 = 998;
pub const BLOCK: usize = 16;

/// The next token after `tokens`.
fn next_token(tokens: impl Iterator<Item = u32>) -> u32 {
    let hash = tokens.fold(0xcbf2_9ce4_8422_2325_u64, |hash, token| {
        (hash ^ u64::from(token))
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(23)
    });
    (hash >> 20) as u32 % (VOCAB - 10)
}

/// What a request generates, worked out without cache, batch or steps.
pub fn expected(prompt: &[u32], max_tokens: u32, ignore_eos: bool) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..max_tokens {
        let token = next_token(tokens.iter().copied());
        tokens.push(token);
        if token == EOS && !ignore_eos {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

/// What a request generates whose masks allow token `k` to be one of `allowed(k)` only: the next one from the model's own on.
pub fn expected_masked(
    prompt: &[u32],
    max_tokens: u32,
    allowed: impl Fn(usize) -> Option<Vec<u32>>,
) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for k in 0..max_tokens as usize {
        let wanted = next_token(tokens.iter().copied());
        let token = match allowed(k) {
            None => wanted,
            Some(ids) => next_allowed(wanted, |id| ids.contains(&id)),
        };
        tokens.push(token);
        if token == EOS {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

fn next_allowed(wanted: u32, allows: impl Fn(u32) -> bool) -> u32 {
    let mut ids = (wanted..VOCAB).chain(0..wanted);
    ids.find(|&id| allows(id)).expect("a token is allowed")
}

/// The "log-probabilities" of the token at `position` of a prompt: made of all tokens up to it, read through the cache.
pub fn prompt_score(tokens: &[u32], position: u32) -> f32 {
    next_token(tokens[..=position as usize].iter().copied()) as f32
}

#[derive(Clone, Default)]
struct Row {
    limits: StopLimits,
    stop_ids: Vec<u32>,
    num_generated: u32,
    last_token: u32,
    is_poisoned: bool,
    masks: Option<TokenMasks>,
    /// The prompt, where its log-probabilities are wanted.
    scored: Vec<u32>,
}

pub struct SimExecutor {
    launched: VecDeque<Box<StepWork>>,
    kv: Vec<(u32, u32)>,
    rows: Vec<Row>,
    max_model_len: u32,
    /// The most steps that were launched and not waited for.
    max_depth: Arc<AtomicUsize>,
    step_time: Duration,
}

impl SimExecutor {
    pub fn new(
        num_blocks: u32,
        max_num_seqs: u32,
        max_model_len: u32,
        step_time: Duration,
        max_depth: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            launched: VecDeque::new(),
            kv: vec![(u32::MAX, u32::MAX); num_blocks as usize * BLOCK],
            rows: vec![Row::default(); max_num_seqs as usize],
            max_model_len,
            max_depth,
            step_time,
        }
    }

    fn bind(&mut self, work: &StepWork) {
        for binding in &work.bindings[..work.num_bindings] {
            self.rows[binding.row as usize] = Row {
                limits: binding.limits,
                stop_ids: binding.stop_ids.clone(),
                num_generated: binding.history.len() as u32 - binding.limits.prompt_len,
                last_token: *binding.history.last().expect("a prompt has a token"),
                is_poisoned: binding.history.contains(&POISON),
                masks: binding.masks.clone(),
                scored: match binding.prompt_logprobs {
                    None => Vec::new(),
                    Some(_) => binding.history[..binding.limits.prompt_len as usize].to_vec(),
                },
            };
        }
    }

    fn run(&mut self, work: &mut StepWork) {
        self.bind(work);
        let mut first = 0;
        // All of a step's KV is written before any is read, as in a layer of a real forward pass.
        for (idx, entry) in work.entries.iter().enumerate() {
            if entry.is_decode {
                work.tokens[first] = self.rows[entry.row as usize].last_token;
            }
            let table =
                &work.block_tables[idx * work.blocks_per_row..][..entry.num_blocks as usize];
            for i in 0..entry.num_tokens {
                let pos = entry.start + i;
                let kv_slot = table[pos as usize / BLOCK] as usize * BLOCK + pos as usize % BLOCK;
                self.kv[kv_slot] = (work.tokens[first + i as usize], pos);
            }
            first += entry.num_tokens as usize;
        }
        for (idx, entry) in work
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.samples)
        {
            let table =
                &work.block_tables[idx * work.blocks_per_row..][..entry.num_blocks as usize];
            let end = entry.start + entry.num_tokens;
            let token = next_token((0..end).map(|pos| {
                let (token, at) =
                    self.kv[table[pos as usize / BLOCK] as usize * BLOCK + pos as usize % BLOCK];
                // A KV slot that holds another position's content is a broken table: spoil the token.
                if at == pos { token } else { u32::MAX - pos }
            }));
            work.output.samples.push(self.sample(entry, token));
        }
        self.score(work);
    }

    /// Scores the prompt tokens that the step's chunks predict.
    fn score(&self, work: &mut StepWork) {
        for (idx, entry) in work.entries.iter().enumerate() {
            let table =
                &work.block_tables[idx * work.blocks_per_row..][..entry.num_blocks as usize];
            let scored = &self.rows[entry.row as usize].scored;
            let last = (entry.start + entry.num_tokens).min((scored.len() as u32).max(1) - 1);
            for position in entry.start + 1..=last {
                let cached = |pos: u32| {
                    self.kv[table[pos as usize / BLOCK] as usize * BLOCK + pos as usize % BLOCK].0
                };
                let mut tokens: Vec<u32> = (0..position).map(cached).collect();
                let token = scored[position as usize];
                tokens.push(token);
                work.output.prompt_logprobs.push(PromptLogprobs {
                    slot: entry.slot,
                    position,
                    rank: 1,
                    first_logprob: work.output.logprobs.len() as u32,
                    num_logprobs: 1,
                });
                let logprob = prompt_score(&tokens, position);
                work.output.logprobs.push(LogprobEntry { token, logprob });
            }
        }
    }

    fn deferred(slot: u32) -> RowSample {
        RowSample {
            slot,
            token: Err(NoToken::Deferred),
            finish: None,
            rank: 0,
            first_logprob: 0,
            num_logprobs: 0,
        }
    }

    fn sample(&mut self, entry: &StepEntry, mut token: u32) -> RowSample {
        let (slot, row) = (entry.slot, &mut self.rows[entry.row as usize]);
        if let Some(masks) = &row.masks {
            let mut mask = [0; VOCAB.div_ceil(32) as usize];
            let is_due =
                entry.start + entry.num_tokens == row.limits.prompt_len + row.num_generated;
            match masks.load(row.num_generated, &mut mask) {
                _ if !is_due => return Self::deferred(slot),
                MaskState::Awaited => return Self::deferred(slot),
                MaskState::Open => {}
                MaskState::Ready => {
                    token = next_allowed(token, |id| mask[id as usize / 32] >> (id % 32) & 1 != 0);
                }
            }
        }
        row.num_generated += 1;
        row.last_token = token;
        let params = StopParams {
            eos_ids: &[EOS],
            stop_ids: &row.stop_ids,
            ignore_eos: row.limits.ignore_eos,
            min_tokens: 0,
            max_tokens: row.limits.max_tokens,
            prompt_len: row.limits.prompt_len,
            max_model_len: self.max_model_len,
        };
        let failed = row.is_poisoned && row.num_generated == 3;
        RowSample {
            slot,
            token: if failed {
                Err(EngineError::NonFiniteLogits.into())
            } else {
                Ok(token)
            },
            finish: stop::check(token, row.num_generated, &params),
            rank: 0,
            first_logprob: 0,
            num_logprobs: 0,
        }
    }
}

impl Executor for SimExecutor {
    fn launch(&mut self, work: Box<StepWork>) -> Result<(), ExecutorFailed> {
        if work.tokens.contains(&FATAL) {
            return Err(ExecutorFailed("a fatal token".into()));
        }
        self.launched.push_back(work);
        self.max_depth
            .fetch_max(self.launched.len(), Ordering::Relaxed);
        assert!(self.launched.len() <= 2, "more than two steps in flight");
        Ok(())
    }

    fn wait(&mut self, _timeout: Duration) -> Result<Option<Box<StepWork>>, ExecutorFailed> {
        let mut work = self.launched.pop_front().expect("wait follows launch");
        work.output.started_ns = now_ns();
        std::thread::sleep(self.step_time);
        self.run(&mut work);
        work.output.finished_ns = now_ns();
        work.output.sampling_ns = 1;
        Ok(Some(work))
    }
}
