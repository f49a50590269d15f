//! A stand-in for the model. The KV of position `p` is a hash of the KV of `p - 1`, read through the block table, and
//! of token and position; the next token is a hash of all KV slots of the sequence, read through the block table. A
//! wrong table, a stale or not yet written block, or a wrong token changes every token after it.

use super::rng::mix;

pub const VOCAB: u32 = 400;

/// One request and what a scheduler must make of it.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub max_total_len: u32,
    pub priority: i32,
    pub arrival_step: u64,
    /// Cancelled at this driver iteration, if it is still there.
    pub cancel_step: Option<u64>,
    /// Tokens divisible by this stop it.
    pub stop_every: u32,
    /// Tokens with this remainder modulo 50 fail it.
    pub fail_at: Option<u32>,
    /// How often in 100 times a sample of it is deferred.
    pub deferred: u32,
    /// The prefix cache is not read for it.
    pub computes_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Stop,
    Length,
    Fail,
}

impl Request {
    pub fn judge(&self, token: u32) -> Option<End> {
        if self.fail_at.is_some_and(|rest| token % 50 == rest) {
            Some(End::Fail)
        } else {
            token.is_multiple_of(self.stop_every).then_some(End::Stop)
        }
    }

    /// Tokens and end without any scheduler. A failing token is not part of the output.
    pub fn oracle(&self, longest: u32) -> (Vec<u32>, End) {
        let max_len = self.max_total_len.min(longest) as usize;
        let mut context = Vec::new();
        for &token in &self.prompt {
            context.push(kv_of(context.last().copied(), token, context.len() as u32));
        }
        let mut output = Vec::new();
        loop {
            let token = sample(&context);
            let end = self.judge(token);
            if end == Some(End::Fail) {
                return (output, End::Fail);
            }
            output.push(token);
            if let Some(end) = end {
                return (output, end);
            }
            if self.prompt.len() + output.len() >= max_len {
                return (output, End::Length);
            }
            context.push(kv_of(context.last().copied(), token, context.len() as u32));
        }
    }
}

pub fn kv_of(before: Option<u64>, token: u32, position: u32) -> u64 {
    mix(before.unwrap_or(7) ^ mix((token as u64) << 32 | position as u64))
}

pub fn sample(context: &[u64]) -> u32 {
    let all = context
        .iter()
        .fold(context.len() as u64, |hash, &kv| mix(hash ^ kv));
    (all % VOCAB as u64) as u32
}

/// KV memory: one word a `kv_slot`, 0 where nothing was written.
pub struct KvMemory {
    slots: Vec<u64>,
    block_size: u32,
}

impl KvMemory {
    pub fn new(num_blocks: u32, block_size: u32) -> Self {
        Self {
            slots: vec![0; (num_blocks * block_size) as usize],
            block_size,
        }
    }

    fn slot(&self, table: &[u32], position: u32) -> usize {
        let block = table[(position / self.block_size) as usize];
        (block * self.block_size + position % self.block_size) as usize
    }

    /// Computes tokens from `start` on, and returns the token sampled after the last.
    pub fn forward(&mut self, table: &[u32], start: u32, tokens: &[u32]) -> u32 {
        for (position, &token) in (start..).zip(tokens) {
            let before = position
                .checked_sub(1)
                .map(|before| self.slots[self.slot(table, before)]);
            let slot = self.slot(table, position);
            self.slots[slot] = kv_of(before, token, position);
        }
        let end = start + tokens.len() as u32;
        let context: Vec<u64> = (0..end).map(|p| self.slots[self.slot(table, p)]).collect();
        sample(&context)
    }
}
