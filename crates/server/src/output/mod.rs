//! From tokens to the bytes of an answer: text assembly, stop strings, log probabilities, and OpenAI's chunks and bodies.

pub mod assembler;
pub mod chunk;
pub mod events;
pub mod head;
pub mod json;
pub mod logprobs;
pub mod response;
pub mod stop;
pub mod whole;
