//! What goes where in device memory: everything is allocated at start, and the KV cache gets what is left.
//!
//! `--gpu-memory-utilization` is the share of the device's whole memory that this process and whatever else uses it may
//! fill together. Weights, activations, logits, sampler state and workspaces are allocated first; graphs
//! are captured after the cache exists, so room for them is set aside by estimate. Pure: it is told sizes and
//! allocates nothing.

use std::fmt;

use izar_model::ModelConfig;
use thiserror::Error;

/// Tokens of a KV block: what the attention kernels are built for.
pub const BLOCK_SIZE: u32 = 16;

/// Device memory of one captured, uploaded graph and of one exec of it, at most, for each layer of the model. Bytes.
const GRAPH_BYTES_PER_LAYER: u64 = 48 << 10;

/// More blocks than this the policy does not address.
const MAX_BLOCKS: u64 = (1 << 30) - 1;

/// Bytes of one KV block: keys and values of 16 tokens in every layer, bf16.
pub fn kv_block_bytes(config: &ModelConfig) -> u64 {
    let elements = 2 * config.num_layers * BLOCK_SIZE as usize * config.kv_size();
    2 * elements as u64
}

/// Bytes to set aside for `num_execs` launchable graphs.
pub fn graph_bytes(config: &ModelConfig, num_execs: usize) -> u64 {
    num_execs as u64 * config.num_layers as u64 * GRAPH_BYTES_PER_LAYER
}

/// The device's memory once everything but the KV cache and the graphs is allocated. Bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryUse {
    /// All of the device.
    pub total: u64,
    /// Of that, free.
    pub free: u64,
    /// What this process allocated, by name, largest first as a rule.
    pub parts: Vec<(&'static str, u64)>,
    /// Set aside for graphs.
    pub graphs: u64,
    /// One KV block.
    pub kv_block: u64,
}

/// How the device's memory is dealt out. Bytes; displays as the lines of a log.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    memory: MemoryUse,
    utilization: f64,
    /// Blocks of the KV cache.
    pub num_kv_blocks: u32,
}

/// The memory does not suffice.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum MemoryError {
    /// Not a share.
    #[error("gpu_memory_utilization must be above 0 and at most 1, got {0}")]
    Utilization(f64),
    /// Nothing is left for the KV cache, or too little for one sequence.
    #[error(
        "{left} MiB of device memory are left for the KV cache, one sequence of {max_model_len} tokens needs {needed} MiB: \
         raise gpu_memory_utilization, or lower max_model_len, max_num_seqs or max_num_batched_tokens"
    )]
    NoRoom {
        /// What is left.
        left: u64,
        /// What one sequence needs.
        needed: u64,
        /// The longest sequence.
        max_model_len: u32,
    },
}

impl MemoryPlan {
    /// Deals out `memory`. `num_kv_blocks` is taken as it is where given, if it fits; otherwise the cache gets everything
    /// that `utilization` leaves, and must hold one sequence of `max_model_len` tokens.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn new(
        memory: MemoryUse,
        utilization: f64,
        max_model_len: u32,
        num_kv_blocks: Option<u32>,
    ) -> Result<Self, MemoryError> {
        if !(utilization > 0.0 && utilization <= 1.0) {
            return Err(MemoryError::Utilization(utilization));
        }
        let used = memory.total - memory.free.min(memory.total);
        let budget = (memory.total as f64 * utilization) as u64;
        let left = budget.saturating_sub(used).saturating_sub(memory.graphs);
        let fits = (left / memory.kv_block).min(MAX_BLOCKS);
        let needed =
            num_kv_blocks.map_or_else(|| max_model_len.div_ceil(BLOCK_SIZE).into(), u64::from);
        if fits < needed {
            return Err(MemoryError::NoRoom {
                left: mib(left),
                needed: mib(needed * memory.kv_block),
                max_model_len,
            });
        }
        let num_kv_blocks = num_kv_blocks.unwrap_or(fits as u32);
        Ok(Self {
            memory,
            utilization,
            num_kv_blocks,
        })
    }

    /// Bytes of the KV cache.
    pub fn kv_bytes(&self) -> u64 {
        u64::from(self.num_kv_blocks) * self.memory.kv_block
    }

    /// What each part takes, and what is left to others, in the order they were given.
    pub fn lines(&self) -> Vec<(&'static str, u64)> {
        let MemoryUse {
            total,
            free,
            ref parts,
            graphs,
            ..
        } = self.memory;
        let known: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        let used = total - free.min(total);
        let cache = self.kv_bytes();
        let mut lines = parts.clone();
        lines.push(("KV cache", cache));
        lines.push(("graphs, set aside", graphs));
        // What the driver, the kernels' code and other processes hold.
        lines.push(("driver and others", used.saturating_sub(known)));
        lines.push(("left alone", total.saturating_sub(used + cache + graphs)));
        lines
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = mib(self.memory.total);
        let share = self.utilization * 100.0;
        write!(
            f,
            "device memory, {total} MiB, {share:.0} % of it to be used:"
        )?;
        for (name, bytes) in self.lines() {
            write!(f, "\n  {name:<18} {:>8} MiB", mib(bytes))?;
        }
        Ok(())
    }
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory() -> MemoryUse {
        MemoryUse {
            total: 140 * GIB,
            free: 120 * GIB,
            parts: vec![("weights", 15 * GIB), ("activations", GIB)],
            graphs: GIB,
            kv_block: 2 << 20,
        }
    }

    #[test]
    fn cache_gets_what_the_utilization_leaves() {
        let plan = MemoryPlan::new(memory(), 0.9, 8192, None).unwrap();
        // 126 GiB may be used, 20 are, 1 is set aside.
        assert_eq!(plan.num_kv_blocks, 105 * 512);
        assert_eq!(plan.kv_bytes(), 105 * GIB);
    }

    #[test]
    fn lines_add_up_to_the_device() {
        let plan = MemoryPlan::new(memory(), 0.9, 8192, None).unwrap();
        let sum: u64 = plan.lines().iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(sum, 140 * GIB);
        let text = plan.to_string();
        assert!(
            text.contains("weights") && text.contains("107520 MiB"),
            "{text}"
        );
    }

    #[test]
    fn blocks_asked_for_are_taken_if_they_fit() {
        let plan = MemoryPlan::new(memory(), 0.9, 8192, Some(7)).unwrap();
        assert_eq!(plan.num_kv_blocks, 7);
        let error = MemoryPlan::new(memory(), 0.9, 8192, Some(106 * 512)).unwrap_err();
        assert!(error.to_string().contains("107520 MiB"), "{error}");
    }

    #[test]
    fn cache_that_holds_no_whole_sequence_is_refused() {
        let error = MemoryPlan::new(memory(), 0.15, 8192, None).unwrap_err();
        assert_eq!(
            error,
            MemoryError::NoRoom {
                left: 0,
                needed: 1024,
                max_model_len: 8192
            }
        );
    }

    #[test]
    fn utilization_is_a_share() {
        for wrong in [0.0, -1.0, 1.01, f64::NAN] {
            assert!(matches!(
                MemoryPlan::new(memory(), wrong, 16, None),
                Err(MemoryError::Utilization(_))
            ));
        }
    }

    #[test]
    fn memory_in_use_by_others_counts() {
        let busy = MemoryUse {
            free: 100 * GIB,
            ..memory()
        };
        let plan = MemoryPlan::new(busy, 0.9, 8192, None).unwrap();
        assert_eq!(plan.num_kv_blocks, 85 * 512);
    }
}
