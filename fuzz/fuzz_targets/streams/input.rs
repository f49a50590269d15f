//! What the fuzzer chooses: the request's parameters, and the tokens that the engine is to say.

use arbitrary::{Arbitrary, Result, Unstructured};
use izar_server::fuzzing::ReplayToken;
use serde_json::{Value, json};

/// Most tokens of an answer.
const MAX_TOKENS: usize = 128;

/// Pieces of text that tokens are often made of, so that stop strings are hit, nearly hit, and cut in the middle of characters.
const PHRASES: [&[u8]; 10] = [
    b"a",
    b"ab",
    b"b",
    "é".as_bytes(),
    "日".as_bytes(),
    "😀".as_bytes(),
    b"\n",
    b"\xe6\x97",
    b"\xff",
    b"\"\\\0",
];

/// One run.
#[derive(Debug)]
pub struct Input {
    pub is_chat: bool,
    pub tokens: Vec<ReplayToken>,
    pub stops: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    pub include_stop: bool,
    pub ignore_eos: bool,
    pub skip_special: bool,
    pub min_tokens: usize,
    pub logprobs: Option<usize>,
    pub return_token_ids: bool,
    pub include_usage: bool,
    pub continuous_usage: bool,
    pub echo: bool,
}

/// What a completion continues.
pub const PROMPT: &str = "Once";

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let flags: u16 = u.arbitrary()?;
        let flag = |bit: u32| flags >> bit & 1 == 1;
        let is_chat = flag(0);
        let logprobs = match flag(1) {
            true => Some(u.int_in_range(0..=3)?),
            false => None,
        };
        let stops = (0..u.int_in_range(0..=3)?)
            .map(|_| stop(u))
            .collect::<Result<_>>()?;
        let stop_token_ids = (0..u.int_in_range(0..=2)?)
            .map(|_| u.int_in_range(0..=257))
            .collect::<Result<_>>()?;
        let min_tokens = if flag(2) { u.int_in_range(0..=12)? } else { 0 };
        Ok(Self {
            is_chat,
            stops,
            stop_token_ids,
            min_tokens,
            logprobs,
            include_stop: flag(3),
            ignore_eos: flag(4),
            skip_special: flag(5),
            return_token_ids: flag(6),
            include_usage: flag(7),
            continuous_usage: flag(8),
            echo: flag(9) && !is_chat && logprobs.is_none(),
            tokens: tokens(u)?,
        })
    }
}

fn stop(u: &mut Unstructured<'_>) -> Result<String> {
    let phrases = (0..u.int_in_range(0..=4)?)
        .map(|_| u.choose(&PHRASES[..7]).copied())
        .collect::<Result<Vec<_>>>()?;
    Ok(String::from_utf8_lossy(&phrases.concat()).into_owned())
}

fn tokens(u: &mut Unstructured<'_>) -> Result<Vec<ReplayToken>> {
    let mut tokens = Vec::new();
    while !u.is_empty() && tokens.len() < MAX_TOKENS - 8 {
        let choice: u8 = u.arbitrary()?;
        let joins_previous = choice & 1 == 1;
        let mut add = |id: u32, joins_previous| tokens.push(ReplayToken { id, joins_previous });
        match choice >> 1 {
            kind @ 0..120 => {
                let phrase = PHRASES[usize::from(kind) % PHRASES.len()];
                for (i, &byte) in phrase.iter().enumerate() {
                    add(byte.into(), joins_previous != (i == 1));
                }
            }
            120..125 => add(u.arbitrary::<u8>()?.into(), joins_previous),
            125 => add(256, joins_previous),
            _ => add(257, joins_previous),
        }
    }
    Ok(tokens)
}

impl Input {
    /// The request.
    pub fn body(&self) -> Value {
        let mut body = json!({
            "max_tokens": MAX_TOKENS,
            "stop": self.stops,
            "stop_token_ids": self.stop_token_ids,
            "include_stop_str_in_output": self.include_stop,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special,
            "min_tokens": self.min_tokens,
            "return_token_ids": self.return_token_ids,
            "stream": true,
            "stream_options": {"include_usage": self.include_usage, "continuous_usage_stats": self.continuous_usage},
        });
        if self.is_chat {
            body["messages"] = json!([{"role": "user", "content": "Hi"}]);
            body["logprobs"] = self.logprobs.is_some().into();
            if let Some(num_top) = self.logprobs {
                body["top_logprobs"] = num_top.into();
            }
        } else {
            body["prompt"] = PROMPT.into();
            body["echo"] = self.echo.into();
            body["logprobs"] = json!(self.logprobs);
        }
        body
    }
}
