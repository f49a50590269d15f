//! The hash that names a full KV block by all tokens up to its end.
//!
//! SipHash-1-3 with 128 bits out, over the block's tokens (two a word, little endian) and then the hash of the block
//! before it (zero for the first). It stands for the content without a comparison because
//! - it is keyed with a secret of this engine's start, so nobody can construct two prompts that collide;
//! - at 128 bits, a pool of 2^24 blocks looked up 2^30 times a second for ten years sees an accidental match with
//!   probability 2^(24 + 30 + 28 - 128) = 2^-46. At 64 bits it would be about 2^18 false matches.
//!
//! The tokens come first and the parent last, so that blocks of one prompt can be absorbed in any order or in
//! parallel and only the short [`BlockHasher::finish`] is sequential.

/// Hash of a full block and everything before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BlockHash {
    /// First 64 bits; pick the bucket.
    pub lo: u64,
    /// Other 64 bits.
    pub hi: u64,
}

/// A block being hashed, one token at a time.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct BlockHasher {
    v: [u64; 4],
    half: u32,
    num_tokens: u32,
}

impl BlockHasher {
    /// A hasher of a block with no tokens yet.
    pub fn new(key: [u64; 2]) -> Self {
        Self {
            v: [
                key[0] ^ 0x736f_6d65_7073_6575,
                key[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                key[0] ^ 0x6c79_6765_6e65_7261,
                key[1] ^ 0x7465_6462_7974_6573,
            ],
            half: 0,
            num_tokens: 0,
        }
    }

    /// Tokens absorbed so far.
    #[inline]
    pub fn num_tokens(&self) -> u32 {
        self.num_tokens
    }

    /// Takes the block's next token.
    #[inline]
    pub fn push(&mut self, token: u32) {
        if self.num_tokens & 1 == 0 {
            self.half = token;
        } else {
            self.absorb(self.half as u64 | (token as u64) << 32);
        }
        self.num_tokens += 1;
    }

    /// The hash of the block whose tokens were all pushed and whose predecessor has hash `parent`.
    #[inline]
    pub fn finish(mut self, parent: BlockHash) -> BlockHash {
        self.absorb(parent.lo);
        self.absorb(parent.hi);
        self.v[2] ^= 0xee;
        let lo = self.squeeze();
        self.v[1] ^= 0xdd;
        let hi = self.squeeze();
        BlockHash { lo, hi }
    }

    #[inline]
    fn absorb(&mut self, word: u64) {
        self.v[3] ^= word;
        self.round();
        self.v[0] ^= word;
    }

    #[inline]
    fn squeeze(&mut self) -> u64 {
        self.round();
        self.round();
        self.round();
        self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3]
    }

    #[inline]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.v;
        a = a.wrapping_add(b);
        c = c.wrapping_add(d);
        b = b.rotate_left(13) ^ a;
        d = d.rotate_left(16) ^ c;
        a = a.rotate_left(32);
        c = c.wrapping_add(b);
        a = a.wrapping_add(d);
        b = b.rotate_left(17) ^ c;
        d = d.rotate_left(21) ^ a;
        c = c.rotate_left(32);
        self.v = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: [u64; 2], tokens: [u32; 16], parent: BlockHash) -> BlockHash {
        let mut hasher = BlockHasher::new(key);
        tokens.iter().for_each(|&token| hasher.push(token));
        assert_eq!(hasher.num_tokens(), 16);
        hasher.finish(parent)
    }

    #[test]
    fn every_bit_of_tokens_parent_and_key_changes_both_words() {
        let (key, tokens, parent) = ([1, 2], [9; 16], BlockHash { lo: 3, hi: 4 });
        let base = hash(key, tokens, parent);
        let differs = |other: BlockHash| assert!(other.lo != base.lo && other.hi != base.hi);
        for bit in 0..64 {
            differs(hash(
                key,
                tokens,
                BlockHash {
                    lo: parent.lo ^ 1 << bit,
                    ..parent
                },
            ));
            differs(hash(
                key,
                tokens,
                BlockHash {
                    hi: parent.hi ^ 1 << bit,
                    ..parent
                },
            ));
            differs(hash([key[0] ^ 1 << bit, key[1]], tokens, parent));
            differs(hash([key[0], key[1] ^ 1 << bit], tokens, parent));
        }
        for place in 0..16 {
            for bit in 0..32 {
                let mut other = tokens;
                other[place] ^= 1 << bit;
                differs(hash(key, other, parent));
            }
        }
    }

    #[test]
    fn order_of_tokens_counts() {
        let mut tokens = core::array::from_fn(|i| i as u32);
        let base = hash([0, 0], tokens, BlockHash::default());
        tokens.swap(3, 12);
        assert_ne!(hash([0, 0], tokens, BlockHash::default()), base);
    }
}
