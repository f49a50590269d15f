//! What the policy is told once: sizes, limits and switches, and the sizes of the arrays that follow from them.

use core::fmt;

/// Block hashes kept together in one page of the hash store.
pub const HASHES_PER_PAGE: u32 = 32;

/// Sizes, limits and switches of one scheduler. Fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Config {
    /// Key of the prefix cache's hash. Pick it at random per engine start: who does not know it cannot build two prompts that collide.
    pub hash_key: [u64; 2],
    /// Sequence ids are `0..num_slots` (ring slots).
    pub num_slots: u32,
    /// Tokens per KV block: a power of two from 2 to 256.
    pub block_size: u32,
    /// KV blocks in the pool.
    pub num_blocks: u32,
    /// Most sequences that run at once; rows are `0..max_num_seqs`.
    pub max_num_seqs: u32,
    /// Most tokens computed in one step, decodes and prefill chunks together.
    pub max_num_batched_tokens: u32,
    /// Most tokens of one sequence, prompt and output together.
    pub max_model_len: u32,
    /// Pages of [`HASHES_PER_PAGE`] block hashes. When they run out, the tokens beyond are not cached; nothing else changes.
    pub num_hash_pages: u32,
    /// Share full KV blocks between sequences with equal beginnings.
    pub prefix_caching: bool,
    /// Let a step take part of a prompt. Off: a prompt is computed in one step or waits.
    pub chunked_prefill: bool,
}

impl Config {
    /// A configuration with blocks of 16, 4096 slots, prefix caching and chunked prefill, and hash pages
    /// for one page a slot and four times the pool.
    pub fn new(
        num_blocks: u32,
        max_num_seqs: u32,
        max_num_batched_tokens: u32,
        max_model_len: u32,
    ) -> Self {
        let num_slots = 4096;
        Self {
            hash_key: [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321],
            num_slots,
            block_size: 16,
            num_blocks,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            num_hash_pages: num_slots.saturating_add(num_blocks / HASHES_PER_PAGE * 4),
            prefix_caching: true,
            chunked_prefill: true,
        }
    }

    /// Checks that the numbers make a scheduler that can always go on.
    ///
    /// # Errors
    /// One [`ConfigError`] per broken rule, the first found.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !self.block_size.is_power_of_two() || !(2..=256).contains(&self.block_size) {
            return Err(ConfigError::BlockSize {
                got: self.block_size,
            });
        }
        for (name, value) in [
            ("num_slots", self.num_slots),
            ("num_blocks", self.num_blocks),
            ("max_num_seqs", self.max_num_seqs),
            ("max_model_len", self.max_model_len),
        ] {
            if value == 0 || value >= 1 << 30 {
                return Err(ConfigError::OutOfRange { name, got: value });
            }
        }
        if self.max_num_batched_tokens < self.max_num_seqs {
            return Err(ConfigError::BudgetBelowSeqs {
                max_num_batched_tokens: self.max_num_batched_tokens,
                max_num_seqs: self.max_num_seqs,
            });
        }
        if !self.chunked_prefill && self.max_num_batched_tokens < self.max_total_len() {
            return Err(ConfigError::BudgetBelowLen {
                max_num_batched_tokens: self.max_num_batched_tokens,
                max_model_len: self.max_total_len(),
            });
        }
        Ok(())
    }

    /// The longest sequence (prompt and output) that this pool and this model allow. The last token's KV is
    /// never read, so a pool of `n` tokens holds a sequence of `n + 1`.
    pub fn max_total_len(&self) -> u32 {
        let pool_len = self.num_blocks as u64 * self.block_size as u64 + 1;
        if pool_len < self.max_model_len as u64 {
            pool_len as u32
        } else {
            self.max_model_len
        }
    }

    /// Base-2 logarithm of `block_size`: shifts instead of divisions, which a GPU does in software.
    #[inline]
    pub(crate) fn block_shift(&self) -> u32 {
        self.block_size.trailing_zeros()
    }

    /// Blocks that hold `num_tokens` tokens of KV.
    #[inline]
    pub fn blocks_for(&self, num_tokens: u32) -> u32 {
        (num_tokens >> self.block_shift()) + (num_tokens & (self.block_size - 1) != 0) as u32
    }

    /// Entries in one row of the block tables.
    #[inline]
    pub fn max_blocks_per_seq(&self) -> u32 {
        self.blocks_for(self.max_total_len())
    }

    /// Hash pages that one sequence can use at most.
    #[inline]
    pub fn hash_pages_per_seq(&self) -> u32 {
        self.max_blocks_per_seq().div_ceil(HASHES_PER_PAGE)
    }

    /// Buckets of the prefix table: the power of two at or above `num_blocks`.
    #[inline]
    pub fn num_buckets(&self) -> u32 {
        self.num_blocks.next_power_of_two()
    }
}

/// Why a [`Config`] cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// `block_size` is not a power of two from 2 to 256.
    BlockSize {
        /// The value given.
        got: u32,
    },
    /// A size is zero or absurd.
    OutOfRange {
        /// The field.
        name: &'static str,
        /// The value given.
        got: u32,
    },
    /// Every running sequence must be able to decode in every step.
    BudgetBelowSeqs {
        /// The value given.
        max_num_batched_tokens: u32,
        /// The value given.
        max_num_seqs: u32,
    },
    /// Without chunked prefill a whole sequence must fit one step, or a preempted one could never come back.
    BudgetBelowLen {
        /// The value given.
        max_num_batched_tokens: u32,
        /// The longest sequence allowed.
        max_model_len: u32,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize { got } => write!(
                f,
                "block_size is {got}, but must be a power of two from 2 to 256"
            ),
            Self::OutOfRange { name, got } => write!(
                f,
                "{name} is {got}, but must be from 1 to {}",
                (1u32 << 30) - 1
            ),
            Self::BudgetBelowSeqs {
                max_num_batched_tokens,
                max_num_seqs,
            } => write!(
                f,
                "max_num_batched_tokens is {max_num_batched_tokens}, but must be at least max_num_seqs ({max_num_seqs}), so that every running sequence gets its token in every step"
            ),
            Self::BudgetBelowLen {
                max_num_batched_tokens,
                max_model_len,
            } => write!(
                f,
                "max_num_batched_tokens is {max_num_batched_tokens}, but without chunked prefill it must be at least max_model_len ({max_model_len})"
            ),
        }
    }
}

impl core::error::Error for ConfigError {}
