//! Seeds for requests that bring none.
//!
//! The engine draws one when it first claims the request and keeps it for the request's life, so
//! that a preempted sequence resumes on the same random numbers. The source itself is seeded once,
//! from the operating system or by `--seed`.

use super::philox;
use std::hash::{BuildHasher, RandomState};

/// Counter word that keeps these draws apart from those of token sampling ([`super::race`]).
const STREAM: u32 = 1;

/// An endless supply of distinct-looking seeds, a pure function of its root.
#[derive(Clone, Debug)]
pub struct SeedSource {
    root: u64,
    num_drawn: u64,
}

impl SeedSource {
    /// Reproducible: the n-th request gets the same seed in every run with this root.
    pub fn new(root: u64) -> Self {
        Self { root, num_drawn: 0 }
    }

    /// Different in every run: the root comes from the operating system, by way of the standard
    /// library's hash keys.
    pub fn from_os() -> Self {
        Self::new(RandomState::new().hash_one(0u64))
    }

    /// The next seed.
    pub fn draw(&mut self) -> u64 {
        let [low, high] = philox::key(self.num_drawn);
        self.num_drawn += 1;
        let words = philox::philox4x32_10([low, high, 0, STREAM], philox::key(self.root));
        u64::from(words[0]) | u64::from(words[1]) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn draws_differ_and_repeat_only_with_the_root() {
        let draw = |root| {
            let mut source = SeedSource::new(root);
            (0..1000).map(|_| source.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        let all: HashSet<u64> = draw(1).into_iter().chain(draw(2)).collect();
        assert_eq!(all.len(), 2000);
    }

    #[test]
    fn the_operating_system_gives_another_root_each_time() {
        assert_ne!(SeedSource::from_os().draw(), SeedSource::from_os().draw());
    }
}
