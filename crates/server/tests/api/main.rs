//! The API as clients see it, over a mock engine behind a real ring.

mod answers;
mod common;
mod cost;
mod generated;
mod lifecycle;
mod logprobs;
mod refusals;
mod support;
