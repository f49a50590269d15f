//! What an answer must be, worked out from all of its tokens at once.

use serde_json::Value;

use crate::input::{Input, PROMPT};
use crate::fixture::support::{IM_END, IM_START};

/// The answer.
#[derive(Debug)]
pub struct Answer {
    pub text: String,
    pub finish_reason: &'static str,
    pub stop_reason: Value,
    /// Tokens up to the one that stopped it.
    pub num_tokens: usize,
}

/// Works the answer out.
pub fn answer(input: &Input) -> Answer {
    let (num_tokens, stop_token) = until_stop_token(input);
    let bytes = |count: usize| -> Vec<u8> {
        let tokens = &input.tokens[..count];
        let hides_last = stop_token.is_some() && count == num_tokens && !input.include_stop;
        let shown = &tokens[..count - usize::from(hides_last)];
        shown.iter().flat_map(|token| bytes_of(input, token.id)).collect()
    };
    let prompt = if input.echo { PROMPT } else { "" };
    let whole = String::from_utf8_lossy(&bytes(num_tokens)).into_owned();
    if num_tokens > input.min_tokens {
        let immune = finished_chars(&bytes(input.min_tokens)).len();
        if let Some((end, stop)) = first_match(&input.stops, &whole[immune..]) {
            let end = immune + end;
            let kept = if input.include_stop { end } else { end - stop.len() };
            let done = |&count: &usize| finished_chars(&bytes(count)).len() >= end;
            return Answer {
                text: format!("{prompt}{}", &whole[..kept]),
                finish_reason: "stop",
                stop_reason: stop.into(),
                num_tokens: (0..num_tokens).find(done).unwrap_or(num_tokens),
            };
        }
    }
    Answer {
        text: format!("{prompt}{whole}"),
        finish_reason: if stop_token.is_some() { "stop" } else { "length" },
        stop_reason: match stop_token {
            Some(id) if input.stop_token_ids.contains(&id) => id.into(),
            _ => Value::Null,
        },
        num_tokens,
    }
}

/// Tokens up to the first that stops the answer, and that one.
fn until_stop_token(input: &Input) -> (usize, Option<u32>) {
    let stops = |id: u32| input.stop_token_ids.contains(&id) || (id == IM_END && !input.ignore_eos);
    let found = input
        .tokens
        .iter()
        .enumerate()
        .find(|&(i, token)| i + 1 > input.min_tokens && stops(token.id));
    match found {
        Some((i, token)) => (i + 1, Some(token.id)),
        None => (input.tokens.len(), None),
    }
}

fn bytes_of(input: &Input, id: u32) -> Vec<u8> {
    match id {
        IM_START | IM_END if input.skip_special => Vec::new(),
        IM_START => b"<|im_start|>".to_vec(),
        IM_END => b"<|im_end|>".to_vec(),
        byte => vec![byte as u8],
    }
}

/// The text of `bytes` without a character that may still be going on at their end.
fn finished_chars(bytes: &[u8]) -> String {
    let may_go_on = |tail: &[u8]| std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none());
    let unfinished = (1..=3.min(bytes.len())).find(|&len| may_go_on(&bytes[bytes.len() - len..]));
    String::from_utf8_lossy(&bytes[..bytes.len() - unfinished.unwrap_or(0)]).into_owned()
}

/// The stop string that completes first, the longest of several, and where it ends.
fn first_match<'a>(stops: &'a [String], text: &str) -> Option<(usize, &'a str)> {
    (0..=text.len()).find_map(|end| {
        let done = &text.as_bytes()[..end];
        let matches = stops
            .iter()
            .filter(|stop| !stop.is_empty() && done.ends_with(stop.as_bytes()));
        matches.max_by_key(|stop| stop.len()).map(|stop| (end, stop.as_str()))
    })
}
