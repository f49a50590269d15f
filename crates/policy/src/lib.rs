//! The policy: what the engine runs next.
//!
//! Continuous batching, first come first served inside a priority; prefill in chunks beside decodes under a token
//! budget; paged KV blocks with a prefix cache; preemption by recomputation; all of it able to plan step n + 1 while
//! step n runs. It is not a driver: it launches nothing, reads no clock, sees no ring and no weights, and knows tokens
//! only to hash them. It decides; a driver (host thread or GPU kernel) tells it what happened and runs what it says.
//!
//! The same source runs on the host and, compiled to PTX, in the GPU's resident scheduler. So: no `std`, no
//! allocation, no atomics, no unsafe code, no dependencies (error enums are written out by hand), flat arrays in memory of the caller's
//! ([`Memory`]), `u32` indices, bounded loops. One thread at a time calls it.
//!
//! # A driver's loop
//!
//! ```
//! use izar_policy::{Config, OwnedState, StepResult, Verdict};
//!
//! let mut state = OwnedState::new(Config::new(64, 4, 128, 512))?;
//! let mut plan = state.new_plan();
//! state.add(7, &[1, 2, 3], 3 + 2, 0, 0)?; // slot 7, at most two tokens more
//! let mut finished = Vec::new();
//! while finished.is_empty() {
//!     state.plan(0, &mut plan)?;
//!     let mut results = Vec::new();
//!     for entry in plan.entries() {
//!         let _blocks = &state.block_table(entry.row)[..entry.num_blocks as usize];
//!         let token = 42; // computed from positions start..start + num_tokens through these blocks
//!         if entry.samples() && state.accepts(plan.header().step, entry.slot) {
//!             // publish the token, look for stop ids, then:
//!             results.push(StepResult { slot: entry.slot, token, verdict: Verdict::Continue });
//!         }
//!     }
//!     state.complete_step(plan.header().step, &results, |departure| finished.push(departure))?;
//! }
//! assert_eq!(finished[0].num_generated, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! That is *exact* use: complete a step, then plan the next. *Optimistic* use calls `plan` for step n + 1 before
//! `complete_step` of step n, with two plans in turn. The two may be mixed from step to step; tokens are the same.
//! A token that cannot be sampled yet is *deferred* ([`Verdict::Defer`]): the sequence is planned again at the same position, in
//! optimistic use after its surplus entry, which samples nothing, has run. Nobody else notices.
//! What a driver owes:
//! - every plan that is not empty runs, whole and in the order of steps, cancelled sequences included; an empty one is no step;
//! - one result for each sampling entry that [`State::accepts`]; at most one step in flight when another is planned;
//! - a sampling entry behind a deferred one of the same sequence (a later position, planned before the deferral was told)
//!   samples nothing and changes nothing that the next sample depends on;
//! - prompt and generated tokens stay readable (for the executor, not for the policy) until the sequence leaves.
//!
//! # Lengths: Albireo's EL, CL and NNT
//!
//! Albireo §4 keeps three lengths for a sequence in step n, all of them about KV. They are here, for a plan entry:
//!
//! | Albireo | Izar |
//! |---|---|
//! | EL, length at the start of step n | `entry.start` |
//! | NNT, tokens step n adds (1 in decode, a chunk in prefill) | `entry.num_tokens` |
//! | CL, length at the end of step n: EL + NNT | `start + num_tokens`, which `Sequence::num_computed` is after planning and the next entry's `start` |
//! | C, blocks of CL | `entry.num_blocks` |
//!
//! They move when a step is *planned*, as if nobody stopped. What `complete_step` moves is `known_len`, the tokens whose
//! ids were told; `len` is `known_len` and the samples in flight. A decode planned while its input token is still
//! in flight carries [`entry_flags::BACKFILL`]; any other decode's input is the sequence's newest known token. A sequence whose `len` reaches its limit is known to end and is not
//! planned again, so only a stop token causes surplus: that one entry is computed, [`State::accepts`] rejects
//! it, and its block came back when the stop was completed, before the surplus step even ended.
//!
//! # Why what a plan reads is there
//!
//! Steps run in order and each plan runs; from that follows, for every block `b` named by an entry of step n:
//! 1. *A hit is computed.* `b` enters the prefix table after the plan of the step that fills it is made, never while it is
//!    made, and so is found by later plans only: its KV is written by a step before n. That its writer was cancelled
//!    or preempted meanwhile changes nothing, for its planned step still runs. Two equal prompts of one step both compute.
//! 2. *A hit stays.* A table entry is a reference; a block with references is neither evicted nor written by others, and a full
//!    block is not written again by its own sequence (writes are at `start` and beyond), but for the last position of a
//!    deferred sequence, which is written with the same values (up to rounding, where a decode's kernels are not a prefill's).
//! 3. *Stray writes come too early to hurt.* A surplus or cancelled entry writes in a step planned before its blocks
//!    were given back, so before any step planned with their next owner.
//! 4. *Rows do not change under a reader.* Table rows grow at their end only; a row that was given back is given out again
//!    when the last step planned with it has completed (`rows.rs`).
//!
//! A hash is 128 bits wide and keyed (`hash.rs` says why that needs no comparison of tokens). [`Verdict::Fail`] makes
//! whatever the sequence could have cached unhittable.
//!
//! # Order, preemption, progress
//!
//! Order of service is (priority, arrival, `add`). Running sequences are kept in it, a plan visits them in it, the
//! last in it is preempted when a block is missing, and the waiting queue is admitted in it with nobody overtaking:
//! a head that does not fit waits, and since no one else is admitted meanwhile, it fits in the end. The first in order
//! is never preempted, and alone it fits the pool (`add` refuses what would not, and lengths are capped to
//! [`Config::max_total_len`]), so it always goes on. A steady flow of more urgent work does hold back less urgent work.
//! Deliberately absent: preemption in favour of a waiting sequence (it would thrash), swapping to host memory,
//! a block reserve (admission asks for blocks for all known tokens and one more).
//!
//! # On the GPU
//!
//! Work on one sequence (lengths, flags, hashing) touches its own [`Sequence`], hash pages and table row. Shared are the block pool,
//! the row stack, the page stack, the waiting heap and the running list. A decode that needs no block (15 of 16) touches nothing
//! shared but its place in the plan, so a block of threads can plan these in parallel and leave the rest to one thread.
//!
//! # Rooms
//!
//! - `config`: sizes and limits. `memory`: the arrays. `plan`, `outcome`: what goes out and in.
//! - `state`: add, cancel, leave. `schedule`, `admit`: planning. `complete`: outcomes. `integrity`: the check of it all.
//! - `pool`: blocks, LRU, prefix table. `hash`, `hashes`: names of full blocks and where they are kept.
//! - `waiting`, `rows`, `sequence`: the queue, the rows, one sequence. `owned`: all of it boxed, with feature `alloc`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

mod admit;
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
