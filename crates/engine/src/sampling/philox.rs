//! Philox4x32-10, the counter-based random number generator of Salmon, Moraes, Dror and Shaw,
//! "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), table 2 and section 3.3.
//!
//! A block of four 32-bit words is a pure function of a 128-bit counter and a 64-bit key. Nothing is carried from one draw
//! to the next, which is why a token does not depend on the batch, the rank or the order in which rows are sampled.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The block of random words at `counter` under `key`.
#[inline]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut words = counter.map(|word| [word]);
    rounds(&mut words, key);
    words.map(|[word]| word)
}

/// As [`philox4x32_10`] for `N` counters at once: `words[i][n]` is word `i` of the `n`-th, replaced by its random word.
#[inline(always)]
pub(super) fn rounds<const N: usize>(words: &mut [[u32; N]; 4], mut key: [u32; 2]) {
    for _ in 0..ROUNDS {
        let [a, b, c, d] = *words;
        for n in 0..N {
            let even = u64::from(a[n]) * u64::from(MULTIPLIERS[0]);
            let odd = u64::from(c[n]) * u64::from(MULTIPLIERS[1]);
            words[0][n] = (odd >> 32) as u32 ^ b[n] ^ key[0];
            words[1][n] = odd as u32;
            words[2][n] = (even >> 32) as u32 ^ d[n] ^ key[1];
            words[3][n] = even as u32;
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
}

/// A 64-bit seed as a key: low word first.
#[inline]
pub fn key(seed: u64) -> [u32; 2] {
    [seed as u32, (seed >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known-answer vectors that the authors publish with Random123 (file `kat_vectors`, philox4x32 10).
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

    #[test]
    fn many_counters_at_once_equal_one_by_one() {
        let key = key(0x0123_4567_89AB_CDEF);
        let counters: [u32; 16] = std::array::from_fn(|n| 1000 + n as u32);
        let mut words = [counters, [7; 16], [0; 16], [0; 16]];
        rounds(&mut words, key);
        for (n, counter) in counters.into_iter().enumerate() {
            let one = philox4x32_10([counter, 7, 0, 0], key);
            assert_eq!(words.map(|word| word[n]), one);
        }
    }
}
