//! A schedule: which requests arrive at which round of the engine, and which are cancelled when.
//!
//! Rounds, not times: replayed on any machine, in any placement, the engine finds the same requests before the same plan. Made up
//! from a seed, or read from the JSON that [`Schedule::to_json`] writes. Prompts are not in it but made from numbers that are.

use anyhow::{Context, Result};
use izar_transport::client::SamplingParams;
use serde_json::{Value, json};

/// Beginnings that several prompts share.
const NUM_SHARED: u64 = 8;
/// Share of the requests that are cancelled at some round, 1 in so many.
const CANCELLED: u64 = 7;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// KV blocks of the engine: with too few, sequences are preempted.
    pub num_kv_blocks: u32,
    /// Longest prompt and answer together.
    pub max_len: u32,
    /// In order of arrival.
    pub requests: Vec<Scheduled>,
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduled {
    /// The round before which it is submitted, from 1 on.
    pub arrival: u64,
    /// The round before which it is cancelled, after its arrival. It may have ended by then.
    pub cancel: Option<u64>,
    /// Which common beginning its prompt has, and how many tokens of it.
    pub shared: (u64, u32),
    /// Tokens of its own after that.
    pub own_len: u32,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Seed of its sampling; greedy without.
    pub seed: Option<u64>,
    /// Cuts and penalties as well.
    pub all_features: bool,
}

impl Schedule {
    /// Makes up a schedule of `num_requests` requests with prompts of up to `max_input` tokens and answers of up to `max_output`, for
    /// an engine that runs up to `max_num_seqs` at once: some rounds bring several requests, many none.
    pub fn make(
        num_requests: u32,
        seed: u64,
        (max_input, max_output): (u32, u32),
        max_num_seqs: u32,
    ) -> Self {
        let mut random = Random(seed);
        let mut round = 1;
        let mut requests = Vec::with_capacity(num_requests as usize);
        // About as many as an engine of that size ends in a round, so that a queue forms now and then.
        let gap = 2 * u64::from(max_output / 2 + 1) / u64::from(max_num_seqs).max(1) + 1;
        while requests.len() < num_requests as usize {
            let burst = if random.below(8) == 0 { 6 } else { 1 };
            for _ in 0..burst.min(num_requests as usize - requests.len()) {
                requests.push(Scheduled::make(&mut random, round, max_input, max_output));
            }
            round += random.below(gap + 1);
        }
        // Three blocks of sixteen for each sequence where a long one needs more, but enough for the longest alone.
        let longest = (max_input + max_output).div_ceil(16);
        Self {
            num_kv_blocks: (max_num_seqs * longest * 3 / 8).max(longest),
            max_len: max_input + max_output,
            requests,
        }
    }

    /// As text that [`Schedule::parse`] reads.
    pub fn to_json(&self) -> Value {
        let requests: Vec<Value> = self.requests.iter().map(Scheduled::to_json).collect();
        json!({"num_kv_blocks": self.num_kv_blocks, "max_len": self.max_len, "requests": requests})
    }

    /// Reads what [`Schedule::to_json`] wrote.
    pub fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).context("not JSON")?;
        let requests = value["requests"].as_array().context("no requests")?;
        let requests = requests.iter().enumerate().map(|(idx, request)| {
            Scheduled::parse(request).with_context(|| format!("request {idx}"))
        });
        Ok(Self {
            num_kv_blocks: number(&value, "num_kv_blocks")? as u32,
            max_len: number(&value, "max_len")? as u32,
            requests: requests.collect::<Result<_>>()?,
        })
    }
}

impl Scheduled {
    fn make(random: &mut Random, arrival: u64, max_input: u32, max_output: u32) -> Self {
        // Whole blocks in common, where prompts are long enough for one.
        let shared_len = match random.below(2) {
            0 => max_input / 2 / 16 * 16,
            _ => 0,
        };
        let own_len = 1 + random.below(u64::from(max_input - shared_len)) as u32;
        let lasts = 1 + random.below(2 * u64::from(max_output));
        Self {
            arrival,
            cancel: (random.below(CANCELLED) == 0).then_some(arrival + lasts),
            shared: (random.below(NUM_SHARED), shared_len),
            own_len,
            max_tokens: 1 + random.below(u64::from(max_output)) as u32,
            seed: (random.below(2) == 0).then(|| random.next() >> 1),
            all_features: random.below(4) == 0,
        }
    }

    /// Its prompt; `idx` is its place in the schedule.
    pub fn prompt(&self, idx: usize, vocab: u32) -> Vec<u32> {
        let tokens = |seed: u64, len: u32| {
            let mut random = Random(seed);
            (0..len).map(move |_| random.below(vocab.into()) as u32)
        };
        let (group, shared_len) = self.shared;
        let own = tokens(1_000_000 + idx as u64, self.own_len);
        tokens(group, shared_len).chain(own).collect()
    }

    /// How its tokens are chosen.
    pub fn sampling(&self) -> SamplingParams {
        let plain = SamplingParams::default();
        let Some(seed) = self.seed else { return plain };
        let sampled = SamplingParams {
            temperature: 0.9,
            top_k: 20,
            seed: Some(seed),
            ..plain
        };
        match self.all_features {
            false => sampled,
            true => SamplingParams {
                top_p: 0.95,
                min_p: 0.02,
                repetition_penalty: 1.1,
                presence_penalty: 0.1,
                frequency_penalty: 0.1,
                ..sampled
            },
        }
    }

    fn to_json(&self) -> Value {
        json!({"arrival": self.arrival, "cancel": self.cancel, "group": self.shared.0, "shared_len": self.shared.1,
            "own_len": self.own_len, "max_tokens": self.max_tokens, "seed": self.seed, "all_features": self.all_features})
    }

    fn parse(value: &Value) -> Result<Self> {
        Ok(Self {
            arrival: number(value, "arrival")?,
            cancel: value["cancel"].as_u64(),
            shared: (number(value, "group")?, number(value, "shared_len")? as u32),
            own_len: number(value, "own_len")? as u32,
            max_tokens: number(value, "max_tokens")? as u32,
            seed: value["seed"].as_u64(),
            all_features: value["all_features"]
                .as_bool()
                .context("all_features must be true or false")?,
        })
    }
}

fn number(value: &Value, key: &str) -> Result<u64> {
    value[key]
        .as_u64()
        .with_context(|| format!("{key} must be a number"))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_makes_the_same_schedule_and_its_text_reads_back() {
        let schedule = Schedule::make(300, 7, (64, 64), 32);
        assert_eq!(schedule, Schedule::make(300, 7, (64, 64), 32));
        assert_ne!(schedule, Schedule::make(300, 8, (64, 64), 32));
        let text = schedule.to_json().to_string();
        assert_eq!(Schedule::parse(&text).expect("as written"), schedule);
    }

    #[test]
    fn schedule_has_every_kind_of_request() {
        let schedule = Schedule::make(1000, 1, (64, 64), 32);
        let count =
            |which: fn(&Scheduled) -> bool| schedule.requests.iter().filter(|r| which(r)).count();
        assert_eq!(schedule.requests.len(), 1000);
        assert!(count(|r| r.cancel.is_some()) > 80);
        assert!(count(|r| r.seed.is_none()) > 300);
        assert!(count(|r| r.seed.is_some() && r.all_features) > 50);
        assert!(count(|r| r.shared.1 > 0) > 300);
        let is_sorted = schedule
            .requests
            .is_sorted_by_key(|request| request.arrival);
        assert!(is_sorted, "requests are in order of arrival");
        for (idx, request) in schedule.requests.iter().enumerate() {
            let len = request.prompt(idx, 128).len() as u32;
            assert!((1..=64).contains(&len) && request.max_tokens <= 64);
            assert!(request.cancel.is_none_or(|round| round > request.arrival));
        }
    }

    #[test]
    fn schedule_that_lacks_a_number_is_refused_by_its_name() {
        let mut value = Schedule::make(3, 1, (8, 8), 4).to_json();
        value["requests"][1]["own_len"] = Value::Null;
        let error = Schedule::parse(&value.to_string()).expect_err("no length");
        let text = format!("{error:#}");
        assert!(
            text.contains("request 1") && text.contains("own_len"),
            "{text}"
        );
    }
}
