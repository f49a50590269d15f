//! SplitMix64: every run of a seed is the same run.

pub struct Rng(pub u64);

pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From `low` to `high`, both included.
    pub fn range(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() % (high - low + 1) as u64) as u32
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.range(1, 100) <= percent
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.range(0, choices.len() as u32 - 1) as usize]
    }
}
