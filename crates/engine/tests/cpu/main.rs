//! The CPU forward pass against transformers' logits, and against itself under every way of cutting the same work.

mod fixtures;
mod harness;
mod invariance;
mod reference;
mod refusals;
