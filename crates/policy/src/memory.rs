//! The arrays that hold a scheduler's state, and what ties them together.
//!
//! The caller owns them (boxed on the host, device memory on the GPU); between two calls they are plain data that
//! may stay, move or be copied. Nobody but the policy writes them. The executor reads `block_tables`, and of a row
//! only entries that the plan of its step names: the policy appends to a row while steps that use it are in flight,
//! but changes no entry before they have completed.

use core::fmt;

use crate::config::{Config, HASHES_PER_PAGE};
use crate::hash::BlockHash;
use crate::hashes::HashStore;
use crate::outcome::Gauges;
use crate::pool::{Block, BlockPool, PoolCounts};
use crate::rows::{FreeRow, RowCounts, Rows};
use crate::sequence::Sequence;
use crate::waiting::WaitingQueue;

/// What the state has one of. Opaque.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Globals {
    pub(crate) pool: PoolCounts,
    pub(crate) rows: RowCounts,
    pub(crate) num_free_hash_pages: u32,
    pub(crate) num_waiting: u32,
    pub(crate) core: Core,
}

/// Counters of the scheduler proper.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Core {
    pub(crate) planned_step: u64,
    pub(crate) completed_step: u64,
    pub(crate) next_order: u64,
    /// `order` of the queue's first when its blocks last did not fit, and the blocks there were to give.
    pub(crate) blocked_order: u64,
    pub(crate) blocked_available: u32,
    pub(crate) num_running: u32,
    /// Running sequences whose prefill is not planned to its end.
    pub(crate) num_prefilling: u32,
    pub(crate) reserved: u32,
    pub(crate) num_preemptions: u64,
    pub(crate) prefix_query_tokens: u64,
    pub(crate) prefix_hit_tokens: u64,
    pub(crate) num_computed_tokens: u64,
    pub(crate) num_deferrals: u64,
}

impl Core {
    pub(crate) fn gauges(&self, num_blocks: u32, num_waiting: u32, pool: &PoolCounts) -> Gauges {
        Gauges {
            num_steps_total: self.planned_step,
            num_preemptions_total: self.num_preemptions,
            prefix_query_tokens_total: self.prefix_query_tokens,
            prefix_hit_tokens_total: self.prefix_hit_tokens,
            num_evictions_total: pool.num_evictions,
            num_computed_tokens_total: self.num_computed_tokens,
            num_deferrals_total: self.num_deferrals,
            num_running: self.num_running,
            num_waiting,
            kv_blocks_total: num_blocks,
            kv_blocks_used: pool.num_used,
            kv_blocks_cached: pool.num_cached,
            kv_blocks_free: pool.num_free,
        }
    }
}

/// The arrays, by name. [`MemorySizes`] says how long each is.
#[derive(Debug)]
pub struct Memory<'a> {
    /// What there is one of.
    pub globals: &'a mut Globals,
    /// One per slot.
    pub sequences: &'a mut [Sequence],
    /// Heap of waiting slots.
    pub waiting: &'a mut [u32],
    /// Running slots in order of service.
    pub running: &'a mut [u32],
    /// Free and draining rows.
    pub rows: &'a mut [FreeRow],
    /// `[max_num_seqs, max_blocks_per_seq]`: block ids by row.
    pub block_tables: &'a mut [u32],
    /// One per KV block.
    pub blocks: &'a mut [Block],
    /// Heads of the prefix table's chains.
    pub buckets: &'a mut [u32],
    /// `[num_hash_pages, HASHES_PER_PAGE]`: block hashes of live sequences.
    pub hashes: &'a mut [BlockHash],
    /// `[num_slots, hash_pages_per_seq]`: pages by slot.
    pub hash_page_tables: &'a mut [u32],
    /// Stack of free pages.
    pub free_hash_pages: &'a mut [u32],
}

/// Elements of each array of [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemorySizes {
    /// See [`Memory`].
    pub sequences: usize,
    /// See [`Memory`].
    pub waiting: usize,
    /// See [`Memory`].
    pub running: usize,
    /// See [`Memory`].
    pub rows: usize,
    /// See [`Memory`].
    pub block_tables: usize,
    /// See [`Memory`].
    pub blocks: usize,
    /// See [`Memory`].
    pub buckets: usize,
    /// See [`Memory`].
    pub hashes: usize,
    /// See [`Memory`].
    pub hash_page_tables: usize,
    /// See [`Memory`].
    pub free_hash_pages: usize,
}

impl MemorySizes {
    /// The sizes for a valid configuration.
    pub fn new(config: &Config) -> Self {
        let (num_slots, num_rows) = (config.num_slots as usize, config.max_num_seqs as usize);
        Self {
            sequences: num_slots,
            waiting: num_slots,
            running: num_rows,
            rows: 2 * num_rows,
            block_tables: num_rows * config.max_blocks_per_seq() as usize,
            blocks: config.num_blocks as usize,
            buckets: config.num_buckets() as usize,
            hashes: config.num_hash_pages as usize * HASHES_PER_PAGE as usize,
            hash_page_tables: num_slots * config.hash_pages_per_seq() as usize,
            free_hash_pages: config.num_hash_pages as usize,
        }
    }
}

/// An array of [`Memory`] has the wrong length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeMismatch {
    /// The array.
    pub array: &'static str,
    /// Elements it must have.
    pub expected: usize,
    /// Elements it has.
    pub got: usize,
}

impl fmt::Display for SizeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            array,
            expected,
            got,
        } = self;
        write!(
            f,
            "the policy's array `{array}` has {got} elements, but must have {expected}"
        )
    }
}

impl core::error::Error for SizeMismatch {}

impl Memory<'_> {
    pub(crate) fn check(&self, config: &Config) -> Result<(), SizeMismatch> {
        let sizes = MemorySizes::new(config);
        for (array, expected, got) in [
            ("sequences", sizes.sequences, self.sequences.len()),
            ("waiting", sizes.waiting, self.waiting.len()),
            ("running", sizes.running, self.running.len()),
            ("rows", sizes.rows, self.rows.len()),
            ("block_tables", sizes.block_tables, self.block_tables.len()),
            ("blocks", sizes.blocks, self.blocks.len()),
            ("buckets", sizes.buckets, self.buckets.len()),
            ("hashes", sizes.hashes, self.hashes.len()),
            (
                "hash_page_tables",
                sizes.hash_page_tables,
                self.hash_page_tables.len(),
            ),
            (
                "free_hash_pages",
                sizes.free_hash_pages,
                self.free_hash_pages.len(),
            ),
        ] {
            if expected != got {
                return Err(SizeMismatch {
                    array,
                    expected,
                    got,
                });
            }
        }
        Ok(())
    }
}

/// A scheduler: a configuration and a view of the memory that holds its state. Cheap to make, per call if need be.
#[derive(Debug)]
pub struct State<'a> {
    pub(crate) config: Config,
    pub(crate) core: &'a mut Core,
    pub(crate) sequences: &'a mut [Sequence],
    pub(crate) waiting: WaitingQueue<'a>,
    pub(crate) running: &'a mut [u32],
    pub(crate) rows: Rows<'a>,
    pub(crate) block_tables: &'a mut [u32],
    pub(crate) pool: BlockPool<'a>,
    pub(crate) hashes: HashStore<'a>,
    pub(crate) table_width: u32,
}

impl<'a> State<'a> {
    /// An empty scheduler in memory whose content does not matter. The caller has validated `config`.
    ///
    /// # Errors
    /// [`SizeMismatch`] when an array has not the length that [`MemorySizes`] says.
    pub fn init(config: &Config, memory: Memory<'a>) -> Result<Self, SizeMismatch> {
        memory.check(config)?;
        let mut state = Self::assemble(config, memory);
        state.clear();
        Ok(state)
    }

    /// The scheduler that `init` and later calls left in this memory, with the same `config`.
    ///
    /// # Errors
    /// [`SizeMismatch`] when an array has not the length that [`MemorySizes`] says.
    pub fn attach(config: &Config, memory: Memory<'a>) -> Result<Self, SizeMismatch> {
        memory.check(config)?;
        Ok(Self::assemble(config, memory))
    }

    /// Forgets everything, cached blocks included.
    pub(crate) fn clear(&mut self) {
        *self.core = Core::default();
        *self.waiting.len = 0;
        self.sequences.fill(Sequence::default());
        self.rows.init();
        self.pool.init();
        self.hashes.init();
    }

    pub(crate) fn assemble(config: &Config, memory: Memory<'a>) -> Self {
        let Globals {
            pool,
            rows,
            num_free_hash_pages,
            num_waiting,
            core,
        } = memory.globals;
        Self {
            config: *config,
            core,
            sequences: memory.sequences,
            waiting: WaitingQueue {
                heap: memory.waiting,
                len: num_waiting,
            },
            running: memory.running,
            rows: Rows {
                entries: memory.rows,
                counts: rows,
            },
            block_tables: memory.block_tables,
            pool: BlockPool {
                blocks: memory.blocks,
                buckets: memory.buckets,
                counts: pool,
            },
            hashes: HashStore {
                hashes: memory.hashes,
                page_tables: memory.hash_page_tables,
                free_pages: memory.free_hash_pages,
                num_free_pages: num_free_hash_pages,
                pages_per_seq: config.hash_pages_per_seq(),
            },
            table_width: config.max_blocks_per_seq(),
        }
    }
}
