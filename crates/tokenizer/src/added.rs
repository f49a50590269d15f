//! The added vocabulary: tokens matched in the text itself before the model sees it.
//!
//! The back ends match added tokens on their own. This matcher exists for the case they cannot express: a text in
//! which some occurrences are control tokens and others are somebody's words (see `chat::guard`).

use std::collections::HashSet;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use serde::{Deserialize, Serialize};

/// One entry of `added_tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AddedToken {
    /// Its id.
    pub id: u32,
    /// The text it is written as.
    pub content: String,
    /// Matches whole words only.
    #[serde(default)]
    pub single_word: bool,
    /// Swallows white space before it.
    #[serde(default)]
    pub lstrip: bool,
    /// Swallows white space after it.
    #[serde(default)]
    pub rstrip: bool,
    /// Is matched in the normalised text.
    #[serde(default)]
    pub normalized: bool,
    /// Is a control token: dropped by `skip_special`, and text when `parse_special` is off.
    #[serde(default)]
    pub special: bool,
}

/// Finds some of the added tokens in a text, leftmost first and longest first, as Hugging Face does.
pub(crate) struct AddedMatcher {
    tokens: Vec<AddedToken>,
    automaton: Option<AhoCorasick>,
    /// Proper prefixes and suffixes of tokens, without bare words.
    heads: HashSet<String>,
    tails: HashSet<String>,
    /// Which bytes tokens begin and end with.
    first: [bool; 256],
    last: [bool; 256],
    max_len: usize,
}

/// What an occurrence of an added token's text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The token.
    Token,
    /// Text, as a whole.
    Text,
    /// No occurrence at all: its parts do not belong together.
    Broken,
}

/// An added token found in a text; `span` includes white space that the token swallows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddedMatch {
    pub id: u32,
    pub span: Range<usize>,
}

impl AddedMatcher {
    /// A matcher for `tokens`.
    pub fn new(tokens: Vec<AddedToken>) -> Self {
        let tokens: Vec<_> = tokens
            .into_iter()
            .filter(|t| !t.content.is_empty())
            .collect();
        let automaton = (!tokens.is_empty()).then(|| {
            AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(tokens.iter().map(|t| t.content.as_bytes()))
                .expect("a vocabulary's added tokens fit an automaton")
        });
        let max_len = tokens.iter().map(|t| t.content.len()).max().unwrap_or(0);
        let fragments = |cut: fn(&str, usize) -> &str| {
            let cuts = tokens.iter().flat_map(|t| {
                t.content
                    .char_indices()
                    .skip(1)
                    .map(|(at, _)| cut(&t.content, at))
            });
            cuts.filter(|part| !is_bare_word(part))
                .map(str::to_owned)
                .collect()
        };
        let heads = fragments(|token, at| &token[..at]);
        let tails = fragments(|token, at| &token[at..]);
        let (mut first, mut last) = ([false; 256], [false; 256]);
        for bytes in tokens.iter().map(|t| t.content.as_bytes()) {
            first[usize::from(bytes[0])] = true;
            last[usize::from(bytes[bytes.len() - 1])] = true;
        }
        Self {
            heads,
            tails,
            first,
            last,
            max_len,
            tokens,
            automaton,
        }
    }

    /// Whether `text` begins in the middle of a token (or lies in one as a whole), other than with a bare word.
    pub fn starts_inside(&self, text: &str) -> bool {
        let near = text.bytes().take(self.max_len).enumerate();
        let ends = near
            .filter(|(_, byte)| self.last[usize::from(*byte)])
            .map(|(at, _)| at + 1);
        ends.into_iter().any(|end| {
            text.get(..end)
                .is_some_and(|part| self.tails.contains(part))
        }) || self.lies_inside(text)
    }

    /// Whether `text` ends in the middle of a token (or lies in one as a whole), other than with a bare word.
    pub fn ends_inside(&self, text: &str) -> bool {
        let from = text.len().saturating_sub(self.max_len);
        let near = text.bytes().enumerate().skip(from);
        let starts = near
            .filter(|(_, byte)| self.first[usize::from(*byte)])
            .map(|(at, _)| at);
        starts
            .into_iter()
            .any(|at| text.get(at..).is_some_and(|part| self.heads.contains(part)))
            || self.lies_inside(text)
    }

    fn lies_inside(&self, text: &str) -> bool {
        let may_lie = !text.is_empty() && text.len() < self.max_len && !is_bare_word(text);
        may_lie
            && self
                .tokens
                .iter()
                .any(|t| t.content.len() > text.len() && t.content.contains(text))
    }

    /// Byte ranges of every occurrence, without swallowed white space. Ranges do not overlap.
    pub fn occurrences<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
        self.automaton
            .iter()
            .flat_map(move |a| a.find_iter(text))
            .map(|m| m.range())
    }

    /// The occurrences in `text` that `judge` (given the bare range) finds to be tokens, in order.
    pub fn find(
        &self,
        text: &str,
        mut judge: impl FnMut(&Range<usize>) -> Verdict,
    ) -> Vec<AddedMatch> {
        let Some(automaton) = &self.automaton else {
            return Vec::new();
        };
        let (mut found, mut from, mut covered) = (Vec::new(), 0, 0);
        while let Some(hit) = automaton.find(aho_corasick::Input::new(text).range(from..)) {
            let token = &self.tokens[hit.pattern().as_usize()];
            let range = hit.range();
            let verdict = if token.single_word && !is_whole_word(text, &range) {
                Verdict::Broken
            } else {
                judge(&range)
            };
            match verdict {
                // Another one may start inside.
                Verdict::Broken => {
                    from =
                        range.start + text[range.start..].chars().next().map_or(1, char::len_utf8)
                }
                Verdict::Text => from = range.end,
                Verdict::Token => {
                    from = range.end;
                    let span = widened(text, token, range, covered);
                    covered = span.end;
                    found.push(AddedMatch { id: token.id, span });
                }
            }
        }
        found
    }
}

fn is_bare_word(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

fn widened(text: &str, token: &AddedToken, range: Range<usize>, covered: usize) -> Range<usize> {
    let start = if token.lstrip {
        text[..range.start].trim_end().len().max(covered)
    } else {
        range.start
    };
    let after = &text[range.end..];
    let end = if token.rstrip {
        range.end + (after.len() - after.trim_start().len())
    } else {
        range.end
    };
    start..end
}

fn is_whole_word(text: &str, range: &Range<usize>) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..range.start].chars().next_back().is_some_and(is_word)
        && !text[range.end..].chars().next().is_some_and(is_word)
}
