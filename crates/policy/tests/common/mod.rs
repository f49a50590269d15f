//! What the tests share: a seeded generator, a model whose tokens depend on every KV slot it reads, and a driver.

pub mod driver;
pub mod model;
pub mod rng;
