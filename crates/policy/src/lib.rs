//! The policy: what the engine runs next.
//!
//! API skeleton; the state behind it follows. How a driver uses it (exact: complete each step before planning the
//! next; optimistic: plan step n + 1 before completing step n, with two plans in turn):
//!
//! ```text
//! state.add(slot, prompt, max_total_len, priority, arrival_ns)?;
//! state.plan(now_ns, &mut plan)?;              // entries: decodes, then prefill chunks; may be empty (no step)
//! // run plan.entries() in order of steps; tables: state.block_table(entry.row)[..entry.num_blocks]
//! for each entry that samples: if state.accepts(step, slot) { publish the token; push StepResult { slot, token, verdict } }
//! state.complete_step(step, &results, |departure| finish the request)?;   // also reports the length limit (Cause::Length)
//! ```
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

mod complete;
mod config;
mod hash;
mod hashes;
mod integrity;
mod memory;
mod outcome;
#[cfg(feature = "alloc")]
mod owned;
mod plan;
mod pool;
mod rows;
mod schedule;
mod sequence;
mod state;
mod waiting;

pub use config::{Config, ConfigError, HASHES_PER_PAGE};
pub use hash::{BlockHash, BlockHasher};
pub use integrity::Violation;
pub use memory::{Globals, Memory, MemorySizes, SizeMismatch, State};
pub use outcome::{
    Cause, CompleteError, Departure, Gauges, PlanError, Refusal, StepResult, Verdict,
};
#[cfg(feature = "alloc")]
pub use owned::{OwnedPlan, OwnedState};
pub use plan::{Plan, PlanEntry, PlanHeader, entry_flags};
pub use pool::Block;
pub use rows::FreeRow;
pub use sequence::Sequence;
