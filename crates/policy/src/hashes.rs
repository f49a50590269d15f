//! Where the block hashes of live sequences are kept: pages shared by all, so that 4096 slots of long context need no
//! 4096 times the longest prompt.
//!
//! Hash `i` of a slot is entry `i % HASHES_PER_PAGE` of its page `i / HASHES_PER_PAGE`.

use crate::config::HASHES_PER_PAGE;
use crate::hash::BlockHash;

#[derive(Debug)]
pub(crate) struct HashStore<'a> {
    pub(crate) hashes: &'a mut [BlockHash],
    /// `[num_slots, hash_pages_per_seq]`
    pub(crate) page_tables: &'a mut [u32],
    /// Stack of free pages.
    pub(crate) free_pages: &'a mut [u32],
    pub(crate) num_free_pages: &'a mut u32,
    pub(crate) pages_per_seq: u32,
}

impl HashStore<'_> {
    pub(crate) fn init(&mut self) {
        let num_pages = self.free_pages.len() as u32;
        for (idx, page) in self.free_pages.iter_mut().enumerate() {
            *page = num_pages - 1 - idx as u32;
        }
        *self.num_free_pages = num_pages;
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32, idx: u32) -> BlockHash {
        self.hashes[self.place(slot, idx)]
    }

    /// Stores the slot's hash `idx`, the one after those it has. False when that takes a page and none is free.
    pub(crate) fn push(&mut self, slot: u32, idx: u32, hash: BlockHash) -> bool {
        if idx.is_multiple_of(HASHES_PER_PAGE) {
            if *self.num_free_pages == 0 {
                return false;
            }
            *self.num_free_pages -= 1;
            let page = self.free_pages[*self.num_free_pages as usize];
            self.page_tables[self.table_idx(slot, idx)] = page;
        }
        let place = self.place(slot, idx);
        self.hashes[place] = hash;
        true
    }

    /// Gives back the pages of a slot with `num_hashes` hashes.
    pub(crate) fn release(&mut self, slot: u32, num_hashes: u32) {
        for page_idx in 0..num_hashes.div_ceil(HASHES_PER_PAGE) {
            let page = self.page_tables[self.table_idx(slot, page_idx * HASHES_PER_PAGE)];
            self.free_pages[*self.num_free_pages as usize] = page;
            *self.num_free_pages += 1;
        }
    }

    #[inline]
    fn table_idx(&self, slot: u32, idx: u32) -> usize {
        slot as usize * self.pages_per_seq as usize + (idx / HASHES_PER_PAGE) as usize
    }

    #[inline]
    fn place(&self, slot: u32, idx: u32) -> usize {
        let page = self.page_tables[self.table_idx(slot, idx)];
        page as usize * HASHES_PER_PAGE as usize + (idx % HASHES_PER_PAGE) as usize
    }
}
