//! A full check of the state's invariants, for tests and for `--check` builds of a driver: slow, allocates nothing.

use core::fmt;

use crate::memory::State;
use crate::pool::NONE;
use crate::sequence::{RUNNING, VACANT, WAITING};

/// The first broken invariant found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the scheduler's state is inconsistent: {}", self.0)
    }
}

impl core::error::Error for Violation {}

fn ensure(holds: bool, claim: &'static str) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation(claim)) }
}

impl State<'_> {
    /// Checks that every block, row, hash page and sequence is where the counts say: `free + cached + used == total`
    /// above all.
    ///
    /// # Errors
    /// [`Violation`], a defect of this crate or of who wrote into its memory.
    pub fn check_integrity(&self) -> Result<(), Violation> {
        self.check_lists()?;
        self.check_references()?;
        self.check_running()?;
        self.check_waiting()?;
        self.check_rows_and_pages()
    }

    fn check_lists(&self) -> Result<(), Violation> {
        let counts = &self.pool.counts;
        let total = self.config.num_blocks;
        let (mut num_free, mut block) = (0, counts.free_head);
        while num_free < counts.num_free && block != NONE {
            let entry = &self.pool.blocks[block as usize];
            ensure(
                entry.num_refs == 0 && entry.is_hashed == 0,
                "free blocks are unused and unhashed",
            )?;
            num_free += 1;
            block = entry.next;
        }
        ensure(
            num_free == counts.num_free,
            "the free list has num_free blocks",
        )?;
        let (mut num_cached, mut block) = (0, counts.lru_oldest);
        while num_cached < total && block != NONE {
            let entry = &self.pool.blocks[block as usize];
            ensure(
                entry.num_refs == 0 && entry.is_hashed != 0,
                "cached blocks are unused and hashed",
            )?;
            num_cached += 1;
            block = entry.next;
        }
        ensure(
            num_cached == counts.num_cached,
            "the LRU list has num_cached blocks",
        )?;
        let num_used = self
            .pool
            .blocks
            .iter()
            .filter(|block| block.num_refs > 0)
            .count();
        ensure(
            num_used == counts.num_used as usize,
            "num_used blocks have references",
        )?;
        ensure(
            num_free + num_cached + counts.num_used == total,
            "free + cached + used == total",
        )
    }

    fn check_references(&self) -> Result<(), Violation> {
        let num_refs: u64 = self
            .pool
            .blocks
            .iter()
            .map(|block| block.num_refs as u64)
            .sum();
        let mut num_named = 0;
        for &slot in &self.running[..self.core.num_running as usize] {
            let seq = &self.sequences[slot as usize];
            num_named += seq.num_blocks as u64;
            for &block in &self.block_table(seq.row)[..seq.num_blocks as usize] {
                ensure(
                    self.pool.num_refs(block) > 0,
                    "table entries name used blocks",
                )?;
            }
        }
        ensure(num_refs == num_named, "references are table entries")?;
        for bucket in self.pool.buckets.iter() {
            let (mut block, mut num_steps) = (*bucket, 0);
            while block != NONE {
                ensure(
                    num_steps < self.config.num_blocks,
                    "chains of the prefix table end",
                )?;
                let (hashed, next) = self.pool.chain_link(block);
                ensure(hashed, "the prefix table names hashed blocks")?;
                (block, num_steps) = (next, num_steps + 1);
            }
        }
        Ok(())
    }

    fn check_running(&self) -> Result<(), Violation> {
        let running = &self.running[..self.core.num_running as usize];
        let mut num_prefilling = 0;
        for &slot in running {
            let seq = &self.sequences[slot as usize];
            ensure(seq.phase == RUNNING, "running slots are marked running")?;
            ensure(
                seq.known_len <= seq.len && seq.len <= seq.known_len + 2,
                "at most two samples in flight",
            )?;
            ensure(seq.len <= seq.max_len, "lengths stay within limits")?;
            ensure(seq.num_computed < seq.len, "the newest token has no KV yet")?;
            ensure(
                seq.is_prefilling() || seq.num_computed == seq.len - 1,
                "a decode has one token to compute",
            )?;
            // A deferred sequence keeps the block of the token that it computes again.
            let deferred_blocks = self.config.blocks_for(seq.num_computed + 1);
            ensure(
                seq.num_blocks == self.config.blocks_for(seq.num_computed)
                    || (!seq.is_prefilling() && seq.num_blocks == deferred_blocks),
                "blocks cover the computed tokens and no more",
            )?;
            num_prefilling += seq.is_prefilling() as u32;
        }
        ensure(
            num_prefilling == self.core.num_prefilling,
            "num_prefilling sequences prefill",
        )?;
        let in_order = running.windows(2).all(|pair| {
            self.sequences[pair[0] as usize].key() < self.sequences[pair[1] as usize].key()
        });
        ensure(in_order, "running sequences stand in order of service")
    }

    fn check_waiting(&self) -> Result<(), Violation> {
        let num_waiting = *self.waiting.len;
        for idx in 0..num_waiting {
            let slot = self.waiting.heap[idx as usize];
            let seq = &self.sequences[slot as usize];
            ensure(
                seq.phase == WAITING && seq.heap_idx == idx,
                "waiting sequences know their place",
            )?;
            ensure(
                seq.num_blocks == 0 && seq.num_computed == 0,
                "waiting sequences own nothing",
            )?;
            let parent = self.waiting.heap[idx.saturating_sub(1) as usize / 2];
            ensure(
                self.sequences[parent as usize].key() <= seq.key(),
                "the waiting queue is a heap",
            )?;
        }
        let num_live = self
            .sequences
            .iter()
            .filter(|seq| seq.phase != VACANT)
            .count();
        ensure(
            num_live as u32 == num_waiting + self.core.num_running,
            "live sequences wait or run",
        )
    }

    fn check_rows_and_pages(&self) -> Result<(), Violation> {
        let counts = &self.rows.counts;
        ensure(
            counts.num_free + counts.num_draining + self.core.num_running
                == self.config.max_num_seqs,
            "rows are free, draining or running",
        )?;
        let live = self.sequences.iter().filter(|seq| seq.phase != VACANT);
        let num_pages: u32 = live
            .map(|seq| seq.num_hashes.div_ceil(crate::HASHES_PER_PAGE))
            .sum();
        ensure(
            num_pages + *self.hashes.num_free_pages == self.config.num_hash_pages,
            "hash pages are free or a live sequence's",
        )
    }
}
