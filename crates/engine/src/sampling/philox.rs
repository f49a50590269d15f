//! Philox4x32-10, the counter-based random number generator of Salmon, Moraes, Dror and Shaw,
//! "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), table 2 and section 3.3.
//!
//! A block of four 32-bit words is a pure function of a 128-bit counter and a 64-bit key. Nothing
//! is carried from one draw to the next, which is why a token does not depend on the batch, the
//! rank or the order in which rows are sampled.

use super::simd::{Array, Simd};

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The block of random words at `counter` under `key`.
#[inline]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_lanes(Array::<1>, counter.map(|word| [word]), key).map(|[word]| word)
}

/// As [`philox4x32_10`] for one counter a lane: vector `i` holds the words `i`.
#[inline(always)]
pub(super) fn philox_lanes<S: Simd>(simd: S, counters: [S::U; 4], mut key: [u32; 2]) -> [S::U; 4] {
    let mut words = counters;
    for _ in 0..ROUNDS {
        let [a, b, c, d] = words;
        let (a_low, a_high) = simd.widening_mul(a, MULTIPLIERS[0]);
        let (c_low, c_high) = simd.widening_mul(c, MULTIPLIERS[1]);
        let xor3 = |x, y, key| simd.xor(simd.xor(x, y), simd.splat_u(key));
        words = [
            xor3(c_high, b, key[0]),
            c_low,
            xor3(a_high, d, key[1]),
            a_low,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    words
}

/// A 64-bit seed as a key: low word first.
#[inline]
pub fn key(seed: u64) -> [u32; 2] {
    [seed as u32, (seed >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Level, kernel};
    use super::*;

    /// The known-answer vectors that the authors publish with Random123 (file `kat_vectors`,
    /// philox4x32 10).
    const KNOWN: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
        (
            [0; 4],
            [0; 2],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        ),
        (
            [u32::MAX; 4],
            [u32::MAX; 2],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        ),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];

    #[test]
    fn known_answers_of_the_authors_hold() {
        for (counter, key, expected) in KNOWN {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    #[inline(always)]
    fn many<S: Simd>(simd: S, counters: &[u32], position: u32, key: [u32; 2]) -> Vec<[u32; 4]> {
        let mut blocks = Vec::new();
        for counters in counters.chunks_exact(S::LANES) {
            let zero = simd.splat_u(0);
            let words = philox_lanes(
                simd,
                [simd.load_u(counters), simd.splat_u(position), zero, zero],
                key,
            );
            let mut stored = [[0; 16]; 4];
            for (word, stored) in words.into_iter().zip(&mut stored) {
                simd.store_u(word, stored);
            }
            blocks.extend((0..S::LANES).map(|lane| stored.map(|words| words[lane])));
        }
        blocks
    }

    kernel! {
        fn many_at(counters: &[u32], position: u32, key: [u32; 2]) -> Vec<[u32; 4]> = many
    }

    #[test]
    fn many_counters_at_once_equal_one_by_one() {
        let key = key(0x0123_4567_89AB_CDEF);
        let counters: Vec<u32> = (1000..1064).chain(u32::MAX - 63..=u32::MAX).collect();
        let expected: Vec<_> = counters
            .iter()
            .map(|&c| philox4x32_10([c, 7, 0, 0], key))
            .collect();
        for level in Level::available() {
            assert_eq!(many_at(level, &counters, 7, key), expected, "{level:?}");
        }
    }
}
