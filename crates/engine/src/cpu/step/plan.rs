//! What a batch means token by token.

use izar_model::ModelConfig;

use super::heads::ROWS_PER_ITEM;
use crate::cpu::batch::{Batch, LogitsOf};
use crate::cpu::model::CpuOptions;

/// What a batch means token by token. Reused from step to step.
pub(in crate::cpu) struct Plan {
    /// Per token: its position, and where its KV goes.
    pub(in crate::cpu) positions: Vec<u32>,
    pub(in crate::cpu) kv_slots: Vec<u32>,
    /// Tokens that get a row of logits, in row order.
    pub(in crate::cpu) logit_tokens: Vec<u32>,
    /// Per entry: its first token.
    pub(in crate::cpu) first_tokens: Vec<u32>,
    /// Per entry: attention items before it; one more at the end.
    pub(in crate::cpu) attention_items: Vec<u32>,
}

impl Plan {
    pub(in crate::cpu) fn new(options: &CpuOptions) -> Self {
        Self {
            positions: Vec::with_capacity(options.max_num_batched_tokens),
            kv_slots: Vec::with_capacity(options.max_num_batched_tokens),
            logit_tokens: Vec::with_capacity(options.max_logit_rows),
            first_tokens: Vec::with_capacity(options.max_num_seqs),
            attention_items: Vec::with_capacity(options.max_num_seqs + 1),
        }
    }

    /// Reads a batch, checking it against the options.
    pub(in crate::cpu) fn prepare(
        &mut self,
        batch: &Batch<'_>,
        config: &ModelConfig,
        options: &CpuOptions,
    ) {
        assert!(
            batch.tokens.len() <= options.max_num_batched_tokens,
            "{} tokens in a step",
            batch.tokens.len()
        );
        assert!(
            batch.entries.len() <= options.max_num_seqs,
            "{} sequences in a step",
            batch.entries.len()
        );
        assert!(
            batch.num_logit_rows() <= options.max_logit_rows,
            "{} rows of logits",
            batch.num_logit_rows()
        );
        assert!(
            batch
                .tokens
                .iter()
                .all(|&t| (t as usize) < config.vocab_size),
            "a token outside the vocabulary"
        );
        let Self {
            positions,
            kv_slots,
            logit_tokens,
            first_tokens,
            attention_items,
        } = self;
        for list in [
            &mut *positions,
            kv_slots,
            logit_tokens,
            first_tokens,
            attention_items,
        ] {
            list.clear();
        }
        let mut items = 0;
        for entry in batch.entries {
            assert!(entry.num_tokens > 0, "an entry without tokens");
            let first = positions.len() as u32;
            let table = batch.block_table(entry.row);
            for pos in entry.start_pos..entry.start_pos + entry.num_tokens {
                let block = table[pos as usize / options.block_size];
                assert!(
                    (block as usize) < options.num_kv_blocks,
                    "block {block} of {}",
                    options.num_kv_blocks
                );
                positions.push(pos);
                kv_slots.push(block * options.block_size as u32 + pos % options.block_size as u32);
            }
            match entry.logits {
                LogitsOf::None => {}
                LogitsOf::Last => logit_tokens.push(first + entry.num_tokens - 1),
                LogitsOf::All => logit_tokens.extend(first..first + entry.num_tokens),
            }
            first_tokens.push(first);
            attention_items.push(items);
            let rows = entry.num_tokens as usize * (config.num_heads / config.num_kv_heads);
            items += (config.num_kv_heads * rows.div_ceil(ROWS_PER_ITEM)) as u32;
        }
        attention_items.push(items);
        assert_eq!(positions.len(), batch.tokens.len(), "tokens of all entries");
    }
}
