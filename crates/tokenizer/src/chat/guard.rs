//! Keeping special tokens that somebody wrote into an input apart from those that the template writes.
//!
//! The rule is in the documentation of `chat`. This module puts marks into the inputs before rendering and takes them
//! out of the rendered text afterwards.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::render::Inputs;
use crate::added::{AddedMatch, AddedMatcher, AddedToken, Verdict};

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

/// Who wrote an input.
#[derive(Clone, Copy)]
enum Writer {
    /// The application: system and developer messages.
    Developer,
    /// The model: assistant messages.
    Model,
    /// Anybody: all else.
    Outside,
}

/// The tokens to guard, by writer, for one vocabulary and one template.
pub(super) struct Guard {
    guarded: [AddedMatcher; 3],
    all: AddedMatcher,
}

impl Guard {
    /// A guard for `added`, the added tokens of a vocabulary, and a template.
    pub fn new(added: &[AddedToken], source: &str) -> Self {
        let only = |keep: &dyn Fn(&AddedToken) -> bool| {
            AddedMatcher::new(added.iter().filter(|t| keep(t)).cloned().collect())
        };
        let is_searched = |t: &AddedToken| is_searched_for(&t.content, source);
        let is_written =
            |t: &AddedToken| source.contains(&t.content) && looks_like_markup(&t.content);
        Self {
            guarded: [
                only(&|t| t.special),
                only(&|t| t.special && !is_searched(t)),
                only(&|t| t.special || (is_written(t) && !is_searched(t))),
            ],
            all: only(&|_| true),
        }
    }

    /// The inputs with marks; `None` if nothing in them needs any. `source` is the template's.
    pub fn mark(&self, inputs: &Inputs, source: &str) -> Option<(Inputs, Marks)> {
        let is_hazard = |value: &Value, writer: Writer| {
            let mut found = false;
            visit_value(value, &mut |text| found |= self.is_hazard(text, writer));
            found
        };
        let lists = [&inputs.tools, &inputs.documents]
            .into_iter()
            .flatten()
            .flatten();
        let needs_marks = inputs.messages.iter().any(|m| is_hazard(m, writer_of(m)))
            || lists
                .chain(inputs.kwargs.values())
                .any(|value| is_hazard(value, Writer::Outside));
        if !needs_marks {
            return None;
        }
        let marks = unused_marks(inputs, source);
        let outside = |value: &Value| self.marked(value, marks, Writer::Outside);
        let list = |list: &Option<Vec<Value>>| {
            list.as_ref()
                .map(|items| items.iter().map(outside).collect())
        };
        let marked = Inputs {
            messages: inputs
                .messages
                .iter()
                .map(|m| self.marked(m, marks, writer_of(m)))
                .collect(),
            tools: list(&inputs.tools),
            documents: list(&inputs.documents),
            kwargs: inputs
                .kwargs
                .iter()
                .map(|(key, value)| (key.clone(), outside(value)))
                .collect(),
        };
        Some((marked, marks))
    }

    /// Takes the marks out of `rendered`; the second result is the tokens in the text that may be tokens.
    pub fn unmark(&self, rendered: &str, marks: Marks) -> (String, Vec<AddedMatch>) {
        let mut text = String::with_capacity(rendered.len());
        let (mut opens, mut closes, mut places) = (HashSet::new(), HashSet::new(), Vec::new());
        for c in rendered.chars() {
            if c == marks.open {
                opens.insert(text.len());
            } else if c == marks.close {
                closes.insert(text.len());
            } else {
                text.push(c);
                continue;
            }
            places.push(text.len());
        }
        let matches = self.all.find(&text, |range| {
            let next = places.partition_point(|&place| place <= range.start);
            let is_interrupted = places.get(next).is_some_and(|&place| place < range.end);
            if is_interrupted {
                Verdict::Broken
            } else if opens.contains(&range.start) && closes.contains(&range.end) {
                Verdict::Text
            } else {
                Verdict::Token
            }
        });
        (text, matches)
    }

    fn is_hazard(&self, text: &str, writer: Writer) -> bool {
        let guarded = &self.guarded[writer as usize];
        guarded.occurrences(text).next().is_some()
            || guarded.starts_inside(text)
            || guarded.ends_inside(text)
    }

    fn marked(&self, value: &Value, marks: Marks, writer: Writer) -> Value {
        match value {
            Value::String(text) => self.marked_text(text, marks, writer).into(),
            Value::Array(items) => items
                .iter()
                .map(|v| self.marked(v, marks, writer))
                .collect(),
            Value::Object(fields) => {
                let field = |(key, value): (&String, &Value)| {
                    (
                        self.marked_text(key, marks, writer),
                        self.marked(value, marks, writer),
                    )
                };
                Value::Object(fields.iter().map(field).collect())
            }
            other => other.clone(),
        }
    }

    fn marked_text(&self, text: &str, marks: Marks, writer: Writer) -> String {
        if !self.is_hazard(text, writer) {
            return text.to_owned();
        }
        let guarded = &self.guarded[writer as usize];
        let mut out = String::with_capacity(text.len() + 16);
        if guarded.starts_inside(text) {
            out.push(marks.close);
        }
        let mut copied = 0;
        for range in guarded.occurrences(text) {
            out.push_str(&text[copied..range.start]);
            out.push(marks.open);
            out.push_str(&text[range.clone()]);
            out.push(marks.close);
            copied = range.end;
        }
        out.push_str(&text[copied..]);
        if guarded.ends_inside(text) {
            out.push(marks.open);
        }
        out
    }
}

fn writer_of(message: &Value) -> Writer {
    match message["role"].as_str() {
        Some("system" | "developer") => Writer::Developer,
        Some("assistant") => Writer::Model,
        _ => Writer::Outside,
    }
}

/// Whether an added token is of the kind that templates structure a prompt with, rather than a word or white space.
fn looks_like_markup(token: &str) -> bool {
    let is_bracket = |c: char| !c.is_alphanumeric() && !c.is_whitespace();
    token.len() > 2 && token.starts_with(is_bracket) && token.ends_with(is_bracket)
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
