//! Tokens that tell when they were published: the time in µs, modulo 2^16, as four hexadecimal digits.
//!
//! The mock's token is the time; this vocabulary writes it out; the client reads it off the chunk. Both sides use the same wall clock, and
//! a latency of more than 65 ms would read as less.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use izar_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// Number of times.
pub const NUM_TIMES: u32 = 1 << 16;

/// What stands before the time in a completion's chunk.
const BEFORE_TIME: &[u8] = b"\"text\":\"";

/// The vocabulary: every time, and the digits that the self-check of a tokenizer encodes with.
pub fn tokenizer() -> Arc<Tokenizer> {
    let times = (0..NUM_TIMES).map(|time| (format!("{time:04x}"), Value::from(time)));
    let digits = (0..16).map(|digit| (format!("{digit:x}"), Value::from(NUM_TIMES + digit)));
    let vocab: Map<String, Value> = times.chain(digits).collect();
    let definition = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null, "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    Arc::new(Tokenizer::from_json(definition).expect("a valid definition"))
}

/// The time now.
pub fn now() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    (since.map_or(0, |since| since.as_micros()) % u128::from(NUM_TIMES)) as u32
}

/// A chunk as Izar writes them, published now.
pub fn chunk() -> String {
    format!(
        "data: {{\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"mock\",\
         \"choices\":[{{\"index\":0,\"text\":\"{:04x}\",\"logprobs\":null,\"finish_reason\":null}}]}}\n\n",
        now()
    )
}

/// Appends the latency of every token in `read`, which has just come.
pub fn latencies(read: &[u8], latencies_us: &mut Vec<u32>) {
    let now = now();
    let mut rest = read;
    while let Some(at) = find(rest, BEFORE_TIME) {
        rest = &rest[at + BEFORE_TIME.len()..];
        let digits = rest
            .get(..4)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(published) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
            latencies_us.push(now.wrapping_sub(published) % NUM_TIMES);
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = haystack[from..].iter().position(|&byte| byte == needle[0]) {
        if haystack[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}
