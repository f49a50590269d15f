//! How often each token occurred in a sequence: a sparse counter that never allocates after
//! construction.
//!
//! Distinct tokens stand in a dense list, which is what the penalties walk; an open-addressing
//! table finds a token's place in it. Both are sized for the longest sequence. Clearing touches
//! only what was used, so pages that no sequence ever needed stay untouched.

/// One distinct token of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub token: u32,
    /// How often it was generated; 0 if it is only in the prompt.
    pub num_generated: u32,
}

/// Distinct tokens of a prompt and of what was generated after it.
#[derive(Debug)]
pub(super) struct TokenCounts {
    seen: Vec<Seen>,
    /// Position in `seen` plus one, by hash of the token; 0 is empty. Linear probing; at most half
    /// full.
    table: Vec<u32>,
}

impl TokenCounts {
    /// Room for `max_distinct` distinct tokens.
    pub fn new(max_distinct: usize) -> Self {
        Self {
            seen: Vec::with_capacity(max_distinct),
            table: vec![0; (2 * max_distinct.max(1)).next_power_of_two()],
        }
    }

    pub fn clear(&mut self) {
        // Probing stops at the first empty entry, so entries must go in the reverse of the order in
        // which they came.
        while let Some(last) = self.seen.last().copied() {
            let at = self.find(last.token);
            self.table[at] = 0;
            self.seen.pop();
        }
    }

    pub fn add_prompt_token(&mut self, token: u32) {
        self.entry(token);
    }

    pub fn add_generated_token(&mut self, token: u32) {
        self.entry(token).num_generated += 1;
    }

    pub fn seen(&self) -> &[Seen] {
        &self.seen
    }

    fn entry(&mut self, token: u32) -> &mut Seen {
        let at = self.find(token);
        if self.table[at] == 0 {
            assert!(
                self.seen.len() < self.seen.capacity(),
                "more distinct tokens than the row was built for"
            );
            self.seen.push(Seen {
                token,
                num_generated: 0,
            });
            self.table[at] = self.seen.len() as u32;
        }
        let idx = self.table[at] as usize - 1;
        &mut self.seen[idx]
    }

    /// Where `token` is, or where it would go.
    fn find(&self, token: u32) -> usize {
        let mask = self.table.len() - 1;
        // Multiplicative (Fibonacci) hashing: token ids are small and often neighbours.
        let mut at = (u64::from(token).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & mask;
        loop {
            match self.table[at] {
                0 => return at,
                place if self.seen[place as usize - 1].token == token => return at,
                _ => at = (at + 1) & mask,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn counts_equal_a_map_across_reuses(
            sequences in prop::collection::vec(
                (prop::collection::vec(0u32..40, 0..60), prop::collection::vec(0u32..40, 0..60)),
                1..5,
            )
        ) {
            let mut counts = TokenCounts::new(40);
            for (prompt, generated) in sequences {
                counts.clear();
                prop_assert!(counts.table.iter().all(|&place| place == 0));
                let mut expected = BTreeMap::new();
                for &token in &prompt {
                    counts.add_prompt_token(token);
                    expected.entry(token).or_insert(0);
                }
                for &token in &generated {
                    counts.add_generated_token(token);
                    *expected.entry(token).or_insert(0) += 1;
                }
                let got: BTreeMap<_, _> = counts.seen().iter().map(|s| (s.token, s.num_generated)).collect();
                prop_assert_eq!(counts.seen().len(), got.len());
                prop_assert_eq!(got, expected);
            }
        }
    }
}
