//! Keeping special tokens that somebody wrote into an input apart from those that the template writes.
//!
//! The rule is in the documentation of `chat`. This module puts marks into the inputs before rendering and takes them
//! out of the rendered text afterwards.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::render::Inputs;
use crate::added::{SpecialMatch, SpecialMatcher, Verdict};

/// Two characters that occur nowhere in the inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    open: char,
    close: char,
}

impl Marks {
    /// Both, as one string.
    pub fn both(self) -> String {
        [self.open, self.close].into_iter().collect()
    }
}

/// The special tokens to guard.
pub(super) struct Guard<'a> {
    specials: &'a SpecialMatcher,
}

impl<'a> Guard<'a> {
    pub fn new(specials: &'a SpecialMatcher) -> Self {
        Self { specials }
    }

    /// The inputs with marks; `None` if nothing in them needs any. `source` is the template's.
    pub fn mark(&self, inputs: &Inputs, source: &str) -> Option<(Inputs, Marks)> {
        let mut needs_marks = false;
        visit(inputs, &mut |text| needs_marks |= self.is_hazard(text));
        if !needs_marks {
            return None;
        }
        let marks = unused_marks(inputs, source);
        let searched: HashSet<&str> = self
            .specials
            .contents()
            .filter(|token| is_searched_for(token, source))
            .collect();
        let nothing = HashSet::new();
        let list = |list: &Option<Vec<Value>>| {
            list.as_ref().map(|items| {
                items
                    .iter()
                    .map(|v| self.marked(v, marks, &nothing))
                    .collect()
            })
        };
        let messages = inputs.messages.iter().map(|message| {
            let by_assistant = message["role"] == "assistant";
            self.marked(
                message,
                marks,
                if by_assistant { &searched } else { &nothing },
            )
        });
        let marked = Inputs {
            messages: messages.collect(),
            tools: list(&inputs.tools),
            documents: list(&inputs.documents),
            kwargs: self.marked_fields(&inputs.kwargs, marks, &nothing),
        };
        Some((marked, marks))
    }

    /// Takes the marks out of `rendered`; the second result is the template's control tokens in the text.
    pub fn unmark(&self, rendered: &str, marks: Marks) -> (String, Vec<SpecialMatch>) {
        let mut text = String::with_capacity(rendered.len());
        let (mut opens, mut closes) = (HashSet::new(), HashSet::new());
        let mut places = Vec::new();
        for c in rendered.chars() {
            if c == marks.open || c == marks.close {
                (if c == marks.open {
                    &mut opens
                } else {
                    &mut closes
                })
                .insert(text.len());
                places.push(text.len());
            } else {
                text.push(c);
            }
        }
        let controls = self.specials.find(&text, |range| {
            let next = places.partition_point(|&place| place <= range.start);
            let is_interrupted = places.get(next).is_some_and(|&place| place < range.end);
            if is_interrupted {
                Verdict::Broken
            } else if opens.contains(&range.start) && closes.contains(&range.end) {
                Verdict::Text
            } else {
                Verdict::Control
            }
        });
        (text, controls)
    }

    fn is_hazard(&self, text: &str) -> bool {
        self.specials.occurrences(text).next().is_some()
            || self.specials.starts_inside(text)
            || self.specials.ends_inside(text)
    }

    fn marked(&self, value: &Value, marks: Marks, exempt: &HashSet<&str>) -> Value {
        match value {
            Value::String(text) => self.marked_text(text, marks, exempt).into(),
            Value::Array(items) => items
                .iter()
                .map(|v| self.marked(v, marks, exempt))
                .collect(),
            Value::Object(fields) => self.marked_fields(fields, marks, exempt).into(),
            other => other.clone(),
        }
    }

    fn marked_fields(
        &self,
        fields: &Map<String, Value>,
        marks: Marks,
        exempt: &HashSet<&str>,
    ) -> Map<String, Value> {
        let marked = |(key, value): (&String, &Value)| {
            (
                self.marked_text(key, marks, exempt),
                self.marked(value, marks, exempt),
            )
        };
        fields.iter().map(marked).collect()
    }

    fn marked_text(&self, text: &str, marks: Marks, exempt: &HashSet<&str>) -> String {
        if !self.is_hazard(text) {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len() + 16);
        if self.specials.starts_inside(text) {
            out.push(marks.close);
        }
        let mut copied = 0;
        for range in self
            .specials
            .occurrences(text)
            .filter(|r| !exempt.contains(&text[r.clone()]))
        {
            out.push_str(&text[copied..range.start]);
            out.push(marks.open);
            out.push_str(&text[range.clone()]);
            out.push(marks.close);
            copied = range.end;
        }
        out.push_str(&text[copied..]);
        if self.specials.ends_inside(text) {
            out.push(marks.open);
        }
        out
    }
}

/// Calls `f` with every string of the inputs, keys included.
fn visit(inputs: &Inputs, f: &mut dyn FnMut(&str)) {
    let lists = [
        Some(&inputs.messages),
        inputs.tools.as_ref(),
        inputs.documents.as_ref(),
    ];
    lists
        .into_iter()
        .flatten()
        .flatten()
        .for_each(|value| visit_value(value, f));
    visit_fields(&inputs.kwargs, f);
}

fn visit_value(value: &Value, f: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => f(text),
        Value::Array(items) => items.iter().for_each(|v| visit_value(v, f)),
        Value::Object(fields) => visit_fields(fields, f),
        _ => {}
    }
}

fn visit_fields(fields: &Map<String, Value>, f: &mut dyn FnMut(&str)) {
    for (key, value) in fields {
        f(key);
        visit_value(value, f);
    }
}

/// The two highest private-use characters that occur neither in the inputs nor in the template.
fn unused_marks(inputs: &Inputs, source: &str) -> Marks {
    let mut used: HashSet<char> = HashSet::new();
    let mut note = |text: &str| used.extend(text.chars().filter(|&c| c >= '\u{100000}'));
    note(source);
    visit(inputs, &mut note);
    let mut unused = ('\u{100000}'..='\u{10fffd}')
        .rev()
        .filter(|c| !used.contains(c));
    match (unused.next(), unused.next()) {
        (Some(open), Some(close)) => Marks { open, close },
        // An input would have to hold all 65,534 of them.
        _ => Marks {
            open: '\u{10fffd}',
            close: '\u{10fffc}',
        },
    }
}

/// Whether the template looks for `token` in strings: `'token' in x`, `x.split('token')`, `x.startswith("token")`, ….
fn is_searched_for(token: &str, source: &str) -> bool {
    source.match_indices(token).any(|(start, _)| {
        let (before, after) = (&source[..start], &source[start + token.len()..]);
        let quote = before
            .chars()
            .next_back()
            .filter(|q| matches!(q, '\'' | '"') && after.starts_with(*q));
        let Some(quote) = quote else {
            return false;
        };
        let before = before[..before.len() - quote.len_utf8()].trim_end();
        let after = after[quote.len_utf8()..].trim_start();
        let is_argument = before
            .strip_suffix('(')
            .is_some_and(|call| SEARCHES.iter().any(|name| call.ends_with(name)));
        is_argument || after.starts_with("in ") || after.starts_with("not in ")
    })
}

const SEARCHES: [&str; 8] = [
    "split",
    "startswith",
    "endswith",
    "replace",
    "find",
    "index",
    "count",
    "partition",
];
