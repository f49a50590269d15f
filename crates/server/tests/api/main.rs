//! The API as clients see it, over a mock engine behind a real ring.

mod answers;
mod common;
mod cost;
mod failures;
mod generated;
mod lifecycle;
mod listening;
mod logprobs;
mod metrics;
mod openapi;
mod operations;
mod page;
mod prompts;
mod refusals;
mod responses;
mod shape;
mod sockets;
mod stats;
mod stops;
mod structured;
mod support;
mod tools;
mod values;
mod vocabularies;
