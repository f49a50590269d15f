//! A simulated executor: a "model" whose next token is a hash of everything it reads from its KV cache.
//!
//! It keeps token and position of every KV slot. A wrong block table, a block shared too early or returned too late, a stale
//! decode token or a step out of order changes what it reads, hence the tokens, hence fails a comparison with
//! [`expected`], which needs no cache.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use izar_engine::driver::{Executor, ExecutorFailed, RowSample, StepWork, StopLimits};
use izar_engine::sampling::stop::{self, StopParams};
use izar_ring::EngineError;

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

#[derive(Clone, Default)]
struct Row {
    limits: StopLimits,
    stop_ids: Vec<u32>,
    num_generated: u32,
    last_token: u32,
    is_poisoned: bool,
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
                last_token: u32::MAX,
                is_poisoned: binding.history.contains(&POISON),
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
            work.output
                .samples
                .push(self.sample(entry.slot, entry.row, token));
        }
    }

    fn sample(&mut self, slot: u32, row: u32, token: u32) -> RowSample {
        let row = &mut self.rows[row as usize];
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
                Err(EngineError::NonFiniteLogits)
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
        std::thread::sleep(self.step_time);
        let mut work = self.launched.pop_front().expect("wait follows launch");
        self.run(&mut work);
        Ok(Some(work))
    }
}
