//! The protocol seen from both sides, in one process.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/heap.rs"]
mod heap;
mod leases;
mod lifecycle;
mod no_alloc;
mod oracle;
mod step_log;
mod validation;
mod words;
