//! Buckets: the shapes for which a step is captured, and which one a batch runs in.
//!
//! A captured graph has fixed grids; a smaller batch runs in the tightest bucket that holds it, and the rest of the
//! bucket is padding. Two kinds: a *decode* bucket has one token an entry and no prefill kernels, a *mixed* bucket
//! takes anything. Sizes lie so close that padding costs under 3 % of the tokens on average, and the largest bucket of each
//! kind holds the largest step there is, so [`Grid::find`] always finds one. Pure: no device, no allocation after [`Grid::new`].

/// What a bucket's steps may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Decodes alone: token and entry are the same thing.
    Decode,
    /// Decodes, then chunks of prompts.
    Mixed,
}

/// A shape of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// What its steps may contain.
    pub kind: StepKind,
    /// Tokens it has room for.
    pub num_tokens: u32,
    /// Entries it has room for, each of which may sample.
    pub num_seqs: u32,
}

/// Sizes up to here are all there: what a decode step costs is decided by its few tokens.
const DENSE_DECODE: u32 = 64;
/// Mixed sizes up to [`DENSE_DECODE`] go in steps of this.
const SMALL_MIXED_STEP: u32 = 4;
/// Sizes of an octave beyond.
const SIZES_PER_OCTAVE: u32 = 16;

/// All buckets, and for every number of tokens the tightest.
#[derive(Clone, Debug)]
pub struct Grid {
    buckets: Vec<Bucket>,
    /// Index by number of tokens - 1.
    decode: Vec<u16>,
    mixed: Vec<u16>,
}

impl Grid {
    /// Buckets for steps of up to `max_num_seqs` entries and `max_num_batched_tokens` tokens.
    ///
    /// # Panics
    /// If a size is 0 or there are fewer tokens than entries: the policy's own rule.
    pub fn new(max_num_seqs: u32, max_num_batched_tokens: u32) -> Self {
        assert!(
            (1..=max_num_batched_tokens).contains(&max_num_seqs),
            "{max_num_seqs} sequences in steps of {max_num_batched_tokens} tokens"
        );
        let decode_sizes = sizes(max_num_seqs, 1);
        let mixed_sizes = sizes(max_num_batched_tokens, SMALL_MIXED_STEP);
        let mut buckets = Vec::with_capacity(decode_sizes.len() + mixed_sizes.len());
        let decode = lookup(&decode_sizes, buckets.len());
        buckets.extend(decode_sizes.iter().map(|&size| Bucket {
            kind: StepKind::Decode,
            num_tokens: size,
            num_seqs: size,
        }));
        let mixed = lookup(&mixed_sizes, buckets.len());
        buckets.extend(mixed_sizes.iter().map(|&size| Bucket {
            kind: StepKind::Mixed,
            num_tokens: size,
            num_seqs: size.min(max_num_seqs),
        }));
        Self {
            buckets,
            decode,
            mixed,
        }
    }

    /// All buckets: decode ones, then mixed ones, each kind from small to large.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Indices of the tightest buckets by number of tokens - 1: for steps of decodes, and for any.
    pub fn tables(&self) -> (&[u16], &[u16]) {
        (&self.decode, &self.mixed)
    }

    /// Index of the tightest bucket for a step of `num_tokens` tokens, all of them decodes or not.
    ///
    /// # Panics
    /// If the step is empty or larger than the grid was made for.
    pub fn find(&self, num_tokens: u32, decodes_only: bool) -> usize {
        let table = if decodes_only {
            &self.decode
        } else {
            &self.mixed
        };
        table[num_tokens as usize - 1].into()
    }
}

/// Sizes up to `limit`, which is the last: every `small_step`-th up to [`DENSE_DECODE`], then 16 an octave.
fn sizes(limit: u32, small_step: u32) -> Vec<u32> {
    let mut sizes = Vec::new();
    let mut size = small_step;
    while size < limit {
        sizes.push(size);
        size += if size < DENSE_DECODE {
            small_step
        } else {
            (1 << size.ilog2()) / SIZES_PER_OCTAVE
        };
    }
    sizes.push(limit);
    sizes
}

/// For every number of tokens - 1 the index of the first size that holds it, counted from `first`.
fn lookup(sizes: &[u32], first: usize) -> Vec<u16> {
    let mut table = Vec::new();
    for (idx, &size) in sizes.iter().enumerate() {
        let idx = u16::try_from(first + idx).expect("a few hundred buckets");
        table.resize(size as usize, idx);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_covered_by_the_tightest_bucket_of_its_kind() {
        for (seqs, tokens) in [
            (1, 1),
            (1, 7),
            (64, 512),
            (256, 2048),
            (300, 300),
            (1024, 8192),
            (7, 65536),
        ] {
            let grid = Grid::new(seqs, tokens);
            let check = |count: u32, kind: StepKind| {
                let found = grid.buckets()[grid.find(count, kind == StepKind::Decode)];
                let tightest = grid
                    .buckets()
                    .iter()
                    .filter(|b| b.kind == kind && b.num_tokens >= count)
                    .min_by_key(|b| b.num_tokens);
                assert_eq!(Some(&found), tightest, "{count} tokens of {kind:?}");
                assert_eq!(found.num_seqs, found.num_tokens.min(seqs));
            };
            (1..=seqs).for_each(|n| check(n, StepKind::Decode));
            (1..=tokens).for_each(|n| check(n, StepKind::Mixed));
        }
    }

    #[test]
    fn decode_batches_up_to_64_have_their_own_bucket() {
        let grid = Grid::new(256, 2048);
        for n in 1..=64 {
            assert_eq!(grid.buckets()[grid.find(n, true)].num_tokens, n);
        }
    }

    #[test]
    fn grid_is_small_enough_to_capture_at_start() {
        assert!(Grid::new(256, 2048).buckets().len() < 200);
        assert!(Grid::new(1024, 8192).buckets().len() < 300);
    }

    /// Padded over real tokens of a server under load: `num_seqs` streams of prompts around `prompt` and outputs around
    /// `output` tokens, chunks under the token budget.
    fn padding(num_seqs: u32, budget: u32, prompt: u32, output: u32) -> f64 {
        let grid = Grid::new(num_seqs, budget);
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |mean: u32| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            mean / 2 + 1 + (state >> 33) as u32 % mean
        };
        let mut streams: Vec<(u32, u32)> = (0..num_seqs)
            .map(|_| (random(prompt), random(output)))
            .collect();
        let (mut real, mut padded) = (0u64, 0u64);
        for _ in 0..4000 {
            let decodes = streams.iter().filter(|(left, _)| *left == 0).count() as u32;
            let mut room = budget - decodes;
            let mut chunks = 0;
            for (left, output_left) in &mut streams {
                if *left == 0 {
                    *output_left -= 1;
                } else {
                    let chunk = room.min(*left);
                    (room, chunks, *left) = (room - chunk, chunks + chunk, *left - chunk);
                }
                if *output_left == 0 {
                    (*left, *output_left) = (random(prompt), random(output));
                }
            }
            let tokens = decodes + chunks;
            real += u64::from(tokens);
            padded += u64::from(grid.buckets()[grid.find(tokens, chunks == 0)].num_tokens);
        }
        padded as f64 / real as f64 - 1.0
    }

    #[test]
    fn padding_costs_under_3_percent_of_the_tokens_in_realistic_mixes() {
        for (seqs, budget) in [(4, 512), (16, 2048), (64, 2048), (256, 2048), (256, 8192)] {
            for (prompt, output) in [(1024, 256), (200, 200), (64, 512), (4000, 100), (30, 30)] {
                let cost = padding(seqs, budget, prompt, output);
                assert!(
                    cost < 0.03,
                    "{:.2} % with {seqs} sequences of {prompt} + {output} tokens, budget {budget}",
                    cost * 100.0
                );
            }
        }
    }
}
