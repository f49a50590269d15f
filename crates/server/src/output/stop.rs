//! Stop strings: where generated text ends.
//!
//! A [`StopSet`] is compiled once for a request; each choice runs its own [`StopMatcher`] over its text. The match that *completes* first
//! wins, and among those that complete at the same byte the one that began first, so that the result depends on the text alone and
//! never on how it was cut into pieces. Only a proper prefix of a stop string is ever held back. Each byte costs O(stops), amortised
//! (Knuth, Morris, Pratt 1977), whatever the stop strings are.

use std::sync::Arc;

/// The stop strings of one request, compiled.
#[derive(Debug, Default)]
pub struct StopSet {
    stops: Vec<Stop>,
    /// Whether a match stays in the text (`include_stop_str_in_output`).
    include_match: bool,
}

#[derive(Debug)]
struct Stop {
    text: Box<str>,
    /// `border[k]`: length in bytes of the longest proper prefix of `text[..k + 1]` that is also its suffix.
    border: Box<[usize]>,
}

impl Stop {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut border = vec![0; bytes.len()];
        let mut matched = 0;
        for at in 1..bytes.len() {
            while matched > 0 && bytes[at] != bytes[matched] {
                matched = border[matched - 1];
            }
            matched += usize::from(bytes[at] == bytes[matched]);
            border[at] = matched;
        }
        Self {
            text: text.into(),
            border: border.into(),
        }
    }

    /// Length of the prefix matched after `byte`, given that `matched` bytes were matched before it.
    fn step(&self, mut matched: usize, byte: u8) -> usize {
        let bytes = self.text.as_bytes();
        while matched > 0 && bytes[matched] != byte {
            matched = self.border[matched - 1];
        }
        matched + usize::from(bytes[matched] == byte)
    }
}

impl StopSet {
    /// Compiles `stops`; empty strings match nothing and are left out.
    pub fn new(stops: &[String], include_match: bool) -> Self {
        Self {
            stops: stops
                .iter()
                .filter(|s| !s.is_empty())
                .map(|s| Stop::new(s))
                .collect(),
            include_match,
        }
    }

    /// The stop string that [`StopMatcher::push`] named.
    pub fn text(&self, stop: usize) -> &str {
        &self.stops[stop].text
    }
}

/// Finds the end of one choice's text.
#[derive(Debug)]
pub struct StopMatcher {
    set: Arc<StopSet>,
    /// Bytes matched so far, for each stop string.
    matched: Vec<usize>,
    /// Text that could still become part of a match: a proper prefix of some stop string.
    held: String,
}

impl StopMatcher {
    /// A matcher at the start of a text.
    pub fn new(set: Arc<StopSet>) -> Self {
        let matched = vec![0; set.stops.len()];
        Self {
            set,
            matched,
            held: String::new(),
        }
    }

    /// Takes the next piece of text and appends to `out` what is certain not to be part of a match.
    /// Returns the index of the stop string that matched; the text then ends, and nothing more may be pushed.
    pub fn push(&mut self, piece: &str, out: &mut String) -> Option<usize> {
        if self.set.stops.is_empty() {
            out.push_str(piece);
            return None;
        }
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            if let Some(stop) = self.step(byte) {
                self.cut(stop, &piece[..=at], out);
                return Some(stop);
            }
        }
        self.release(piece, out);
        None
    }

    /// Ends the text without a match and releases what was held.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.matched.fill(0);
    }

    /// Feeds one byte to every stop string; returns the longest that is now complete.
    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut complete: Option<usize> = None;
        for (idx, stop) in self.set.stops.iter().enumerate() {
            let matched = stop.step(self.matched[idx], byte);
            self.matched[idx] = matched;
            if matched == stop.text.len()
                && complete.is_none_or(|best| self.set.stops[best].text.len() < matched)
            {
                complete = Some(idx);
            }
        }
        complete
    }

    /// Ends the text at the match of `stop` that ends with `piece`.
    fn cut(&mut self, stop: usize, piece: &str, out: &mut String) {
        self.held.push_str(piece);
        let kept = match self.set.include_match {
            true => self.held.len(),
            false => self.held.len() - self.set.stops[stop].text.len(),
        };
        out.push_str(&self.held[..kept]);
        self.held.clear();
    }

    /// Moves to `out` all but the longest suffix that a stop string could begin with. That suffix starts where a stop string starts,
    /// which is a character boundary.
    fn release(&mut self, piece: &str, out: &mut String) {
        let keep = self.matched.iter().copied().max().unwrap_or(0);
        if self.held.is_empty() {
            let (done, held) = piece.split_at(piece.len() - keep);
            out.push_str(done);
            self.held.push_str(held);
        } else {
            self.held.push_str(piece);
            let done = self.held.len() - keep;
            out.push_str(&self.held[..done]);
            self.held.drain(..done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], include: bool, pieces: &[&str]) -> (Vec<String>, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
        let mut matcher = StopMatcher::new(Arc::new(StopSet::new(&stops, include)));
        let mut outs = Vec::new();
        for piece in pieces {
            let mut out = String::new();
            let hit = matcher.push(piece, &mut out);
            outs.push(out);
            if hit.is_some() {
                return (outs, hit);
            }
        }
        let mut out = String::new();
        matcher.finish(&mut out);
        outs.push(out);
        (outs, None)
    }

    #[test]
    fn match_across_pieces_leaks_nothing() {
        let (outs, hit) = run(&["STOP"], false, &["abcS", "TO", "Pdef"]);
        assert_eq!((outs.concat().as_str(), hit), ("abc", Some(0)));
    }

    #[test]
    fn match_inside_a_piece_cuts_it() {
        assert_eq!(run(&["\n\n"], false, &["one\n\ntwo"]).0, ["one"]);
        assert_eq!(run(&["\n\n"], true, &["one\n\ntwo"]).0, ["one\n\n"]);
    }

    #[test]
    fn only_a_proper_prefix_is_held() {
        let (outs, _) = run(&["abab"], false, &["xaba", "c", "ab"]);
        assert_eq!(outs, ["x", "abac", "", "ab"]);
    }

    #[test]
    fn match_that_completes_first_wins_whatever_its_place_in_the_list() {
        assert_eq!(
            run(&["xabc", "ab"], false, &["xabc"]),
            (vec!["x".to_owned()], Some(1))
        );
        assert_eq!(
            run(&["b", "ab"], false, &["xab"]),
            (vec!["x".to_owned()], Some(1))
        );
    }

    #[test]
    fn empty_stops_never_end_a_text() {
        assert_eq!(run(&["", ""], false, &["text"]).0.concat(), "text");
    }

    #[test]
    fn held_text_of_many_bytes_a_character_stays_whole() {
        let (outs, _) = run(&["日本語"], false, &["これは日本", "人"]);
        assert_eq!(outs, ["これは", "日本人", ""]);
    }

    /// The definition, written the slow way.
    fn oracle(stops: &[String], text: &str) -> String {
        for end in 0..=text.len() {
            let done = &text.as_bytes()[..end];
            let longest = stops
                .iter()
                .filter(|s| !s.is_empty() && done.ends_with(s.as_bytes()))
                .map(String::len)
                .max();
            if let Some(len) = longest {
                return text[..end - len].to_owned();
            }
        }
        text.to_owned()
    }

    proptest! {
        #[test]
        fn any_cut_of_a_text_ends_where_the_definition_says(
            stops in proptest::collection::vec("[abé]{0,4}", 0..4),
            pieces in proptest::collection::vec("[abcé]{0,5}", 0..12),
        ) {
            let stop_refs: Vec<&str> = stops.iter().map(String::as_str).collect();
            let piece_refs: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (outs, _) = run(&stop_refs, false, &piece_refs);
            prop_assert_eq!(outs.concat(), oracle(&stops, &pieces.concat()));
        }
    }
}
