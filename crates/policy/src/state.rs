//! Sequences come and go: `add`, `cancel`, and the pieces that planning and completion share.

use crate::config::Config;
use crate::hash::{BlockHash, BlockHasher};
use crate::memory::State;
use crate::outcome::{Cause, Departure, Gauges, Refusal};
use crate::sequence::{RUNNING, Sequence, VACANT, WAITING};

impl State<'_> {
    /// Adds a sequence to the waiting queue. It is served by `priority` (lower first), then by `arrival_ns`, then in
    /// order of `add`. It stops by itself once prompt and output have `max_total_len` tokens, or as many as
    /// [`Config::max_total_len`] allows. The prompt is read (hashed) now and not kept.
    ///
    /// # Errors
    /// [`Refusal`]; the state is unchanged.
    pub fn add(
        &mut self,
        slot: u32,
        prompt: &[u32],
        max_total_len: u32,
        priority: i32,
        arrival_ns: u64,
    ) -> Result<(), Refusal> {
        self.check_addable(slot, prompt, max_total_len)?;
        let prompt_len = prompt.len() as u32;
        self.core.next_order += 1;
        self.sequences[slot as usize] = Sequence {
            hasher: BlockHasher::new(self.config.hash_key),
            arrival_ns,
            order: self.core.next_order,
            first_step: self.core.planned_step + 1,
            first_planned_ns: u64::MAX,
            phase: WAITING,
            priority,
            prompt_len,
            max_len: max_total_len.min(self.config.max_total_len()),
            known_len: prompt_len,
            len: prompt_len,
            ..Sequence::default()
        };
        if self.config.prefix_caching {
            for &token in prompt {
                self.hash_token(slot, token);
            }
        }
        self.waiting.push(self.sequences, slot);
        Ok(())
    }

    /// Has all tokens of a sequence computed that was just added, the beginning that the prefix cache holds included: for a
    /// caller that wants to see what each of them gives. Its blocks can be hit by others as usual.
    pub fn compute_all(&mut self, slot: u32) {
        if let Some(seq) = self.sequences.get_mut(slot as usize) {
            seq.computes_all = 1;
        }
    }

    fn check_addable(&self, slot: u32, prompt: &[u32], max_total_len: u32) -> Result<(), Refusal> {
        let Config {
            num_slots,
            max_model_len,
            num_blocks,
            ..
        } = self.config;
        if slot >= num_slots {
            return Err(Refusal::UnknownSlot);
        }
        if self.sequences[slot as usize].phase != VACANT {
            return Err(Refusal::SlotBusy);
        }
        if prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        let prompt_len = prompt.len().min(u32::MAX as usize) as u32;
        if prompt_len >= max_model_len {
            return Err(Refusal::TooLong {
                prompt_len,
                max_model_len,
            });
        }
        let needed = self.config.blocks_for(prompt_len);
        if needed > num_blocks {
            return Err(Refusal::NeverFits {
                num_blocks: needed,
                pool_blocks: num_blocks,
            });
        }
        if max_total_len <= prompt_len {
            return Err(Refusal::NothingToGenerate);
        }
        Ok(())
    }

    /// Takes a sequence out at once, whatever it is doing, and gives its blocks back. What a step in flight computes for
    /// it is dropped: [`State::accepts`] says no. None when the slot is vacant.
    pub fn cancel(&mut self, slot: u32) -> Option<Departure> {
        if slot >= self.config.num_slots || self.sequences[slot as usize].phase == VACANT {
            return None;
        }
        let departure = self.leave(slot, Cause::Cancelled);
        self.drop_departed();
        Some(departure)
    }

    /// Whether the token that `step` sampled for `slot` counts. False when the sequence had left by then (stopped in the
    /// step before, cancelled): it was planned once too often and nothing of it is to be published. To be asked
    /// before `step` completes.
    pub fn accepts(&self, step: u64, slot: u32) -> bool {
        self.sequences
            .get(slot as usize)
            .is_some_and(|seq| seq.accepts(step))
    }

    /// Figures for metrics.
    pub fn gauges(&self) -> Gauges {
        self.core
            .gauges(self.config.num_blocks, *self.waiting.len, self.pool.counts)
    }

    /// The block table row of a running sequence.
    #[inline]
    pub fn block_table(&self, row: u32) -> &[u32] {
        let first = self.table_idx(row, 0);
        &self.block_tables[first..first + self.table_width as usize]
    }

    #[inline]
    pub(crate) fn table_idx(&self, row: u32, block_idx: u32) -> usize {
        row as usize * self.table_width as usize + block_idx as usize
    }

    /// Continues the sequence's chain of block hashes by its next token.
    #[inline]
    pub(crate) fn hash_token(&mut self, slot: u32, token: u32) {
        let seq = &mut self.sequences[slot as usize];
        if seq.unhashable != 0 {
            return;
        }
        seq.hasher.push(token);
        if seq.hasher.num_tokens() < self.config.block_size {
            return;
        }
        let parent = match seq.num_hashes {
            0 => BlockHash::default(),
            n => self.hashes.get(slot, n - 1),
        };
        let hash = seq.hasher.finish(parent);
        seq.hasher = BlockHasher::new(self.config.hash_key);
        if self.hashes.push(slot, seq.num_hashes, hash) {
            seq.num_hashes += 1;
        } else {
            seq.unhashable = 1;
        }
    }

    /// Offers the sequence's full blocks to the prefix table, as far as planned steps compute them and their tokens are
    /// known. See the crate's documentation for why that is safe.
    #[inline]
    pub(crate) fn register_full_blocks(&mut self, slot: u32) {
        let seq = &self.sequences[slot as usize];
        let num_full = (seq.num_computed >> self.config.block_shift()).min(seq.num_hashes);
        let (row, first) = (seq.row, seq.num_registered);
        for idx in first..num_full {
            let block = self.block_tables[self.table_idx(row, idx)];
            self.pool.register(block, self.hashes.get(slot, idx));
        }
        if num_full > first {
            self.sequences[slot as usize].num_registered = num_full;
        }
    }

    /// Gives back the blocks and the row of a running sequence. The last block goes first, so that among cached blocks a
    /// prefix outlives what builds on it.
    pub(crate) fn release_memory(&mut self, slot: u32) {
        let Sequence {
            row,
            num_blocks,
            last_step,
            ..
        } = self.sequences[slot as usize];
        for idx in (0..num_blocks).rev() {
            self.pool
                .release(self.block_tables[self.table_idx(row, idx)]);
        }
        self.rows.release(row, last_step, self.core.completed_step);
        let seq = &mut self.sequences[slot as usize];
        if seq.is_prefilling() {
            self.core.num_prefilling -= 1;
        }
        seq.num_blocks = 0;
        seq.num_registered = 0;
        seq.num_computed = 0;
        seq.prefill_end = 0;
    }

    /// Ends a sequence. A running one stays in the running list until [`State::drop_departed`].
    pub(crate) fn leave(&mut self, slot: u32, cause: Cause) -> Departure {
        if self.sequences[slot as usize].phase == RUNNING {
            self.release_memory(slot);
        } else {
            self.waiting.remove(self.sequences, slot);
        }
        let seq = &mut self.sequences[slot as usize];
        self.hashes.release(slot, seq.num_hashes);
        seq.phase = VACANT;
        Departure {
            slot,
            cause,
            num_generated: seq.known_len - seq.prompt_len,
            num_cached_tokens: seq.num_cached_tokens,
            num_preemptions: seq.num_preemptions,
            first_planned_ns: seq.first_planned_ns,
        }
    }

    /// Takes out of the running list who left.
    pub(crate) fn drop_departed(&mut self) {
        let mut num_kept = 0;
        for idx in 0..self.core.num_running as usize {
            let slot = self.running[idx];
            if self.sequences[slot as usize].phase == RUNNING {
                self.running[num_kept] = slot;
                num_kept += 1;
            }
        }
        self.core.num_running = num_kept as u32;
    }
}
