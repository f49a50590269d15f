//! Identifiers and seeds drawn by the server.
//!
//! Both come from one counter hashed with a key: the operating system's randomness by default, or the operator's `--seed`, which
//! makes the seeds of unseeded requests follow their order of arrival. Neither is a secret.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::exchange::Exchange;

/// Draws request ids and seeds.
#[derive(Debug)]
pub struct IdSource {
    id_key: [u64; 2],
    seed_key: u64,
    next: AtomicU64,
}

impl IdSource {
    /// A source whose seeds follow from `seed`, or from the operating system's randomness. Ids are always random.
    pub fn new(seed: Option<u64>) -> Self {
        let random = || RandomState::new().hash_one(0_u8);
        Self {
            id_key: [random(), random()],
            seed_key: seed.unwrap_or_else(random),
            next: AtomicU64::new(0),
        }
    }

    /// `prefix` and the id of the HTTP exchange that the running task handles, which may be the client's own; outside of one,
    /// `prefix` and a drawn id.
    pub fn request_id(&self, prefix: &str) -> String {
        match Exchange::current() {
            Some(exchange) => format!("{prefix}{}", exchange.id()),
            None => format!("{prefix}{}", self.draw_id()),
        }
    }

    /// 32 hexadecimal digits.
    pub fn draw_id(&self) -> String {
        let [high, low] = self.draw_words();
        format!("{high:016x}{low:016x}")
    }

    /// 128 random bits.
    pub fn draw_words(&self) -> [u64; 2] {
        let n = self.draw();
        [mix(self.id_key[0] ^ n), mix(self.id_key[1].wrapping_add(n))]
    }

    /// A seed for a sequence that came without one.
    pub fn seed(&self) -> u64 {
        mix(self.seed_key ^ mix(self.draw()))
    }

    fn draw(&self) -> u64 {
        // Relaxed: only the values' being distinct matters, nothing is published through them.
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that spreads every bit.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_seeds_do_not_repeat() {
        let source = IdSource::new(Some(1));
        let ids: std::collections::HashSet<String> =
            (0..1000).map(|_| source.request_id("x-")).collect();
        let seeds: std::collections::HashSet<u64> = (0..1000).map(|_| source.seed()).collect();
        assert_eq!((ids.len(), seeds.len()), (1000, 1000));
    }

    #[test]
    fn same_server_seed_draws_the_same_seeds() {
        assert_eq!(IdSource::new(Some(7)).seed(), IdSource::new(Some(7)).seed());
        assert_ne!(IdSource::new(Some(7)).seed(), IdSource::new(Some(8)).seed());
        assert_ne!(IdSource::new(None).seed(), IdSource::new(None).seed());
    }
}
