//! Random numbers that are the same in every run, and prompts made from them.

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Rng(pub u64);

impl Rng {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `n - 1`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }

    pub fn pick(&mut self, items: &[&'static str]) -> &'static str {
        items[self.below(items.len())]
    }
}

const TEXT: &str = "The river rises in the hills above the old town and runs south through fields of barley and rye. In spring \
    the snow melts, the water climbs over its banks, and the farmers move their sheep to higher ground. A mill has stood at the bend \
    since the time of the first king; its wheel still turns, although nobody brings grain any more. Children learn to swim in the \
    pool below it. In the evening the light lies flat on the water, the swallows come down to drink, and from the inn on the other \
    side one hears the accordion and the slow talk of people who have worked all day and have nothing left to prove. When the first \
    frost comes the pool freezes from its edges, and the miller's daughter writes the date on the door with a piece of chalk.";

/// `num_words` words from a random place.
pub fn passage(rng: &mut Rng, num_words: usize) -> String {
    let words: Vec<&str> = TEXT.split_whitespace().collect();
    let start = rng.below(words.len() - num_words);
    words[start..start + num_words].join(" ")
}
