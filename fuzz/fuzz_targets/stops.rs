//! The stop matcher against the definition, written the slow way.
//!
//! The match that completes first ends the text, and of several that complete together the longest; nothing of it leaks; at
//! any time the text that is held back is a proper prefix of a stop string and no more than that; without a match nothing is lost.
#![no_main]

use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use izar_server::fuzzing::{StopMatcher, StopSet};
use libfuzzer_sys::fuzz_target;

/// Few characters, of one to four bytes, two pairs of which begin with the same byte: matches, near misses and overlaps are common.
const ALPHABET: [char; 8] = ['a', 'b', 'é', 'è', '日', '旦', '😀', '\u{fffd}'];

#[derive(Debug)]
struct Input {
    stops: Vec<String>,
    pieces: Vec<String>,
    include_match: bool,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let stops = (0..u.int_in_range(0..=5)?)
            .map(|_| text(u, 9))
            .collect::<Result<_>>()?;
        let include_match = u.arbitrary()?;
        let mut pieces = Vec::new();
        while !u.is_empty() && pieces.len() < 64 {
            pieces.push(text(u, 7)?);
        }
        Ok(Self {
            stops,
            pieces,
            include_match,
        })
    }
}

fn text(u: &mut Unstructured<'_>, max_chars: usize) -> Result<String> {
    let len = u.int_in_range(0..=max_chars)?;
    (0..len).map(|_| u.choose(&ALPHABET).copied()).collect()
}

/// Where the text ends: the end of the match that completes first, and the length of the longest stop string that ends there.
fn definition(stops: &[String], text: &str) -> Option<(usize, usize)> {
    (0..=text.len()).find_map(|end| {
        let done = &text.as_bytes()[..end];
        let matches = stops
            .iter()
            .filter(|stop| !stop.is_empty() && done.ends_with(stop.as_bytes()));
        matches.map(|stop| stop.len()).max().map(|len| (end, len))
    })
}

fuzz_target!(|input: Input| {
    let text = input.pieces.concat();
    let expected = definition(&input.stops, &text);
    let set = Arc::new(StopSet::new(&input.stops, input.include_match));
    let mut matcher = StopMatcher::new(Arc::clone(&set));
    let (mut out, mut fed) = (String::new(), 0);
    for piece in &input.pieces {
        let hit = matcher.push(piece, &mut out);
        fed += piece.len();
        if let Some(stop) = hit {
            let (end, len) = expected.expect("a match that the definition has");
            assert!(end <= fed, "the match is in what was pushed");
            assert_eq!(set.text(stop).len(), len, "the longest of those that complete together");
            let kept = if input.include_match { end } else { end - len };
            assert_eq!(out, text[..kept]);
            return;
        }
        let held = text[..fed].strip_prefix(&out).expect("in order");
        let is_prefix = |stop: &String| held.len() < stop.len() && stop.starts_with(held);
        assert!(held.is_empty() || input.stops.iter().any(is_prefix), "held {held:?}");
    }
    assert_eq!(expected, None, "missed");
    matcher.finish(&mut out);
    assert_eq!(out, text);
});
