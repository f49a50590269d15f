//! Sizes of the policy: what an operator chose, and for the rest what the model and the memory suggest.

use izar_model::ModelConfig;
use izar_policy::{Config, ConfigError};
use thiserror::Error;

use crate::sampling::SeedSource;

/// What was asked for, by the names of the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// Tokens per KV block.
    pub(crate) block_size: u32,
    /// Longest sequence, prompt and output.
    pub(crate) max_model_len: Option<u32>,
    /// Sequences that run at once.
    pub(crate) max_num_seqs: u32,
    /// Tokens per step.
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) prefix_caching: bool,
    pub(crate) chunked_prefill: bool,
}

/// Sizes that do not go together.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SizeError {
    /// A length that the model does not allow.
    #[error("max_model_len is {given}, but the model's longest context is {model}")]
    MaxModelLen {
        /// Asked for.
        given: u32,
        /// The model's.
        model: u32,
    },
    /// The pool does not hold one sequence of the length asked for.
    #[error(
        "{num_blocks} KV blocks of {block_size} tokens hold {fits} tokens, but max_model_len is {max_model_len}: \
         raise num_kv_blocks or lower max_model_len"
    )]
    PoolTooSmall {
        /// Blocks.
        num_blocks: u32,
        /// Tokens per block.
        block_size: u32,
        /// Tokens in all.
        fits: u64,
        /// Asked for.
        max_model_len: u32,
    },
    /// The policy cannot work with these sizes.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Wishes {
    /// The longest sequence to be ready for: what was asked for, or the model's own limit.
    pub(crate) fn longest(&self, model: &ModelConfig) -> Result<u32, SizeError> {
        let longest = u32::try_from(model.max_model_len()).unwrap_or(u32::MAX);
        match self.max_model_len {
            Some(given) if given > longest => Err(SizeError::MaxModelLen {
                given,
                model: longest,
            }),
            given => Ok(given.unwrap_or(longest)),
        }
    }

    /// Tokens per step: as asked for, unless a step must take more. `longest` is the longest sequence.
    pub(crate) fn tokens_per_step(&self, longest: u32) -> u32 {
        // Without chunks a step must take a whole sequence.
        let (least, why) = if self.chunked_prefill {
            (self.max_num_seqs, "every running sequence")
        } else {
            (longest.max(self.max_num_seqs), "a whole prompt")
        };
        let asked = self.max_num_batched_tokens;
        if least > asked {
            tracing::warn!(
                "max_num_batched_tokens raised from {asked} to {least}: a step must take {why}"
            );
        }
        asked.max(least)
    }

    /// The policy's sizes for a pool of `num_blocks` blocks.
    pub(crate) fn config(&self, model: &ModelConfig, num_blocks: u32) -> Result<Config, SizeError> {
        let wanted_len = self.longest(model)?;
        // The KV of a sequence's last token is never written.
        let fits = u64::from(num_blocks) * u64::from(self.block_size) + 1;
        if self.max_model_len.is_some_and(|len| u64::from(len) > fits) {
            return Err(SizeError::PoolTooSmall {
                num_blocks,
                block_size: self.block_size,
                fits,
                max_model_len: wanted_len,
            });
        }
        let max_model_len = wanted_len.min(u32::try_from(fits).unwrap_or(u32::MAX));
        let mut keys = SeedSource::from_os();
        let mut config = Config::new(
            num_blocks,
            self.max_num_seqs,
            self.tokens_per_step(max_model_len),
            max_model_len,
        );
        config.hash_key = [keys.draw(), keys.draw()];
        config.block_size = self.block_size;
        config.prefix_caching = self.prefix_caching;
        config.chunked_prefill = self.chunked_prefill;
        config.validate()?;
        Ok(config)
    }
}
