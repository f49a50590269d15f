//! The KV block pool: who uses which block, and which block holds what.
//!
//! A block is in exactly one of three states, counted at all times (`free + cached + used == total`):
//!
//! | state  | `num_refs` | hash | kept in                                             |
//! |--------|-----------:|------|-----------------------------------------------------|
//! | free   |          0 | no   | `free` stack, linked by `next`                      |
//! | cached |          0 | yes  | LRU list, linked by `prev` and `next`, oldest first |
//! | used   |        > 0 | any  | block tables of `num_refs` running sequences        |
//!
//! A block with a hash is also in the prefix table: `buckets[hash.lo % len]` heads a chain linked by `bucket_next`.
//! All operations are O(1), but for the walk along one chain.

use crate::hash::BlockHash;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// What is known of one KV block.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Block {
    hash: BlockHash,
    pub(crate) num_refs: u32,
    pub(crate) is_hashed: u32,
    prev: u32,
    pub(crate) next: u32,
    bucket_next: u32,
    reserved: u32,
}

/// List heads and counts.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct PoolCounts {
    pub(crate) num_evictions: u64,
    pub(crate) num_free: u32,
    pub(crate) num_cached: u32,
    pub(crate) num_used: u32,
    pub(crate) free_head: u32,
    pub(crate) lru_oldest: u32,
    pub(crate) lru_newest: u32,
}

#[derive(Debug)]
pub(crate) struct BlockPool<'a> {
    pub(crate) blocks: &'a mut [Block],
    pub(crate) buckets: &'a mut [u32],
    pub(crate) counts: &'a mut PoolCounts,
}

impl BlockPool<'_> {
    /// All blocks free, block 0 first.
    pub(crate) fn init(&mut self) {
        self.buckets.fill(NONE);
        let num_blocks = self.blocks.len() as u32;
        for (idx, block) in self.blocks.iter_mut().enumerate() {
            let next = idx as u32 + 1;
            *block = Block {
                prev: NONE,
                next: if next == num_blocks { NONE } else { next },
                bucket_next: NONE,
                ..Block::default()
            };
        }
        *self.counts = PoolCounts {
            num_free: num_blocks,
            free_head: 0,
            lru_oldest: NONE,
            lru_newest: NONE,
            ..PoolCounts::default()
        };
    }

    /// Blocks that [`BlockPool::take`] can give.
    #[inline]
    pub(crate) fn num_available(&self) -> u32 {
        self.counts.num_free + self.counts.num_cached
    }

    #[inline]
    pub(crate) fn num_refs(&self, block: u32) -> u32 {
        self.blocks[block as usize].num_refs
    }

    /// A block to write, with one reference: a free one, else the cached one unused for longest, whose content is
    /// lost. The caller has checked [`BlockPool::num_available`].
    pub(crate) fn take(&mut self) -> u32 {
        let block = if self.counts.num_free > 0 {
            let block = self.counts.free_head;
            self.counts.free_head = self.blocks[block as usize].next;
            self.counts.num_free -= 1;
            block
        } else {
            let block = self.counts.lru_oldest;
            self.unlink_lru(block);
            self.unhash(block);
            self.counts.num_evictions += 1;
            block
        };
        self.blocks[block as usize].num_refs = 1;
        self.counts.num_used += 1;
        block
    }

    /// One more reference to a block that [`BlockPool::lookup`] found.
    pub(crate) fn hold(&mut self, block: u32) {
        if self.num_refs(block) == 0 {
            self.unlink_lru(block);
            self.counts.num_used += 1;
        }
        self.blocks[block as usize].num_refs += 1;
    }

    /// One reference less. The last one frees the block, or leaves it cached as the newest.
    pub(crate) fn release(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        entry.num_refs -= 1;
        if entry.num_refs > 0 {
            return;
        }
        self.counts.num_used -= 1;
        if entry.is_hashed != 0 {
            self.link_lru(block);
        } else {
            self.link_free(block);
        }
    }

    /// The block that holds what `hash` names, or [`NONE`].
    pub(crate) fn lookup(&self, hash: BlockHash) -> u32 {
        let mut block = self.buckets[self.bucket(hash)];
        while block != NONE {
            let entry = &self.blocks[block as usize];
            if entry.hash == hash {
                return block;
            }
            block = entry.bucket_next;
        }
        NONE
    }

    /// Makes a used block hittable under `hash`, unless another block already is: then this one stays private.
    pub(crate) fn register(&mut self, block: u32, hash: BlockHash) {
        if self.blocks[block as usize].is_hashed != 0 || self.lookup(hash) != NONE {
            return;
        }
        let bucket = self.bucket(hash);
        let entry = &mut self.blocks[block as usize];
        entry.hash = hash;
        entry.is_hashed = 1;
        entry.bucket_next = self.buckets[bucket];
        self.buckets[bucket] = block;
    }

    /// Makes what `hash` names unhittable. Who already uses the block goes on.
    pub(crate) fn forget(&mut self, hash: BlockHash) {
        let block = self.lookup(hash);
        if block == NONE {
            return;
        }
        self.unhash(block);
        if self.num_refs(block) == 0 {
            self.unlink_lru(block);
            self.link_free(block);
        }
    }

    /// Whether a block is hashed, and the next one in its chain of the prefix table.
    pub(crate) fn chain_link(&self, block: u32) -> (bool, u32) {
        let entry = &self.blocks[block as usize];
        (entry.is_hashed != 0, entry.bucket_next)
    }

    #[inline]
    fn bucket(&self, hash: BlockHash) -> usize {
        hash.lo as usize & (self.buckets.len() - 1)
    }

    fn unhash(&mut self, block: u32) {
        let Block {
            hash, bucket_next, ..
        } = self.blocks[block as usize];
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == block {
            self.buckets[bucket] = bucket_next;
        } else {
            let mut before = self.buckets[bucket];
            while self.blocks[before as usize].bucket_next != block {
                before = self.blocks[before as usize].bucket_next;
            }
            self.blocks[before as usize].bucket_next = bucket_next;
        }
        let entry = &mut self.blocks[block as usize];
        entry.is_hashed = 0;
        entry.bucket_next = NONE;
    }

    fn link_free(&mut self, block: u32) {
        self.blocks[block as usize].next = self.counts.free_head;
        self.counts.free_head = block;
        self.counts.num_free += 1;
    }

    fn link_lru(&mut self, block: u32) {
        let newest = self.counts.lru_newest;
        let entry = &mut self.blocks[block as usize];
        entry.prev = newest;
        entry.next = NONE;
        if newest == NONE {
            self.counts.lru_oldest = block;
        } else {
            self.blocks[newest as usize].next = block;
        }
        self.counts.lru_newest = block;
        self.counts.num_cached += 1;
    }

    fn unlink_lru(&mut self, block: u32) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        if prev == NONE {
            self.counts.lru_oldest = next;
        } else {
            self.blocks[prev as usize].next = next;
        }
        if next == NONE {
            self.counts.lru_newest = prev;
        } else {
            self.blocks[next as usize].prev = prev;
        }
        self.counts.num_cached -= 1;
    }
}
