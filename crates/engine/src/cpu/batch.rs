//! What one step computes: a ragged batch of prompt chunks and decode tokens.
//!
//! The caller owns everything here, including the block tables; a step borrows it.

/// Which positions of an entry get a row of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsOf {
    /// None: a prompt chunk that is not the last.
    None,
    /// The last token: the usual case of a sequence that samples in this step.
    Last,
    /// Every token of the entry: prompt log-probabilities.
    All,
}

/// One sequence's share of a step: `num_tokens` consecutive tokens at positions `start_pos..`.
///
/// The KV of positions before `start_pos` must already be in the cache, in the blocks the table names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEntry {
    /// Row of [`Batch::block_tables`] that belongs to this sequence.
    pub row: u32,
    /// Position of the first token.
    pub start_pos: u32,
    /// Number of tokens, at least 1.
    pub num_tokens: u32,
    /// Which of them get logits.
    pub logits: LogitsOf,
}

/// A step's input.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The sequences, in the order in which logits come back.
    pub entries: &'a [BatchEntry],
    /// Token ids of all entries, concatenated in entry order.
    pub tokens: &'a [u32],
    /// Block ids, `[rows, blocks_per_row]` row-major. `block_tables[row * blocks_per_row + i]` holds the KV of
    /// positions `i * block_size..(i + 1) * block_size`. Only as many entries of a row are read as its positions need.
    pub block_tables: &'a [u32],
    /// Row stride of `block_tables`.
    pub blocks_per_row: usize,
}

impl BatchEntry {
    /// Rows of logits this entry gets.
    pub fn num_logit_rows(&self) -> usize {
        match self.logits {
            LogitsOf::None => 0,
            LogitsOf::Last => 1,
            LogitsOf::All => self.num_tokens as usize,
        }
    }
}

impl Batch<'_> {
    /// The block ids of a row.
    ///
    /// # Panics
    /// If the row is outside `block_tables`.
    pub fn block_table(&self, row: u32) -> &[u32] {
        &self.block_tables[row as usize * self.blocks_per_row..][..self.blocks_per_row]
    }

    /// Rows of logits the step produces.
    pub fn num_logit_rows(&self) -> usize {
        self.entries.iter().map(BatchEntry::num_logit_rows).sum()
    }
}
