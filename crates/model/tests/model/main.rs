//! Tests of the crate through its public API: real files of every kind, and broken ones.

mod configs;
mod dequantisation;
mod dummy;
mod files;
mod fixtures;
mod hostile;
mod refusals;
mod rope;
