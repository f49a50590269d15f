//! One call as models write it: an object with the tool's `name` and its `arguments` (or `parameters`), read as it comes.
//!
//! Arguments that are an object are passed on character by character, as they were written; a control character inside a string, which
//! JSON forbids and models write, is escaped. Arguments that are a string of JSON are passed on at once when the string ends, decoded.

use super::json::{Char, JsonScanner};

/// Reads one call object.
#[derive(Debug)]
pub struct CallObject {
    json: JsonScanner,
    /// The member that is being read.
    member: Member,
    /// The key, name or string of arguments that is being read.
    raw: String,
    name: Option<String>,
    arguments: Arguments,
    /// Arguments that were not yet taken.
    pending: String,
}

/// A member of the call object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    Arguments,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arguments {
    /// Not there yet.
    Missing,
    /// An object, some of which is there.
    Object,
    /// Complete.
    Complete,
}

/// What a character did to the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fed {
    /// More is to come.
    More,
    /// The object is complete, and it is a call.
    Complete,
    /// This is no call. The character is not part of what was read.
    Malformed,
}

impl CallObject {
    /// A call before its `{`.
    pub fn new() -> Self {
        Self {
            json: JsonScanner::new(),
            member: Member::Other,
            raw: String::new(),
            name: None,
            arguments: Arguments::Missing,
            pending: String::new(),
        }
    }

    /// The tool's name, once the name and the beginning of the arguments were read.
    pub fn announced_name(&self) -> Option<&str> {
        let is_begun = self.arguments != Arguments::Missing;
        self.name.as_deref().filter(|_| is_begun)
    }

    /// Takes what was read of the arguments.
    pub fn take_arguments(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }

    /// Takes the next character.
    pub fn feed(&mut self, c: char) -> Fed {
        let depth = self.json.depth();
        let was_in_string = self.json.is_in_string();
        let Some(kind) = self.json.step(c) else {
            return Fed::Malformed;
        };
        let is_fine = match (depth, kind) {
            (0, _) => c == '{',
            (1, Char::Key { ends }) => self.key(c, ends),
            (1, Char::Scalar { begins, ends }) => self.scalar(c, was_in_string, begins, ends),
            (1, Char::Open) => self.open(c),
            (1, Char::Close) => return self.close(),
            (1, Char::Between) => true,
            _ => {
                if self.member == Member::Arguments {
                    push_escaped(&mut self.pending, c, was_in_string);
                    if self.json.depth() == 1 {
                        self.arguments = Arguments::Complete;
                        self.member = Member::Other;
                    }
                }
                true
            }
        };
        if is_fine { Fed::More } else { Fed::Malformed }
    }

    fn key(&mut self, c: char, ends: bool) -> bool {
        self.raw.push(c);
        if ends {
            self.member = match self.raw.as_str() {
                "\"name\"" if self.name.is_none() => Member::Name,
                "\"arguments\"" | "\"parameters\"" if self.arguments == Arguments::Missing => {
                    Member::Arguments
                }
                _ => Member::Other,
            };
            self.raw.clear();
        }
        true
    }

    fn scalar(&mut self, c: char, was_in_string: bool, begins: bool, ends: bool) -> bool {
        if self.member == Member::Other {
            return true;
        }
        if begins && c != '"' && !(c == 'n' && self.member == Member::Arguments) {
            return false;
        }
        push_escaped(&mut self.raw, c, was_in_string);
        if !ends {
            return true;
        }
        let raw = std::mem::take(&mut self.raw);
        let Ok(text) = serde_json::from_str::<Option<String>>(&raw) else {
            // Half a surrogate pair, say.
            return false;
        };
        let text = text.unwrap_or_default();
        match self.member {
            Member::Name if text.is_empty() => return false,
            Member::Name => self.name = Some(text),
            _ => {
                let text = if text.trim().is_empty() { "{}" } else { &text };
                self.pending.push_str(text);
                self.arguments = Arguments::Complete;
            }
        }
        true
    }

    fn open(&mut self, c: char) -> bool {
        match self.member {
            Member::Name => false,
            Member::Arguments if c == '[' => false,
            Member::Arguments => {
                self.arguments = Arguments::Object;
                self.pending.push(c);
                true
            }
            Member::Other => true,
        }
    }

    fn close(&mut self) -> Fed {
        if self.name.is_none() {
            return Fed::Malformed;
        }
        if self.arguments == Arguments::Missing {
            self.arguments = Arguments::Complete;
            self.pending.push_str("{}");
        }
        Fed::Complete
    }
}

/// Appends a character of JSON; one that may not stand in a string is escaped.
fn push_escaped(out: &mut String, c: char, in_string: bool) {
    match c {
        _ if !in_string || c >= ' ' => out.push(c),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        _ => out.push_str(&format!("\\u{:04x}", u32::from(c))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The call that `text` is: name and arguments.
    fn read(text: &str) -> Option<(String, String)> {
        let mut call = CallObject::new();
        let mut chars = text.chars();
        loop {
            match call.feed(chars.next()?) {
                Fed::More => {}
                Fed::Malformed => return None,
                Fed::Complete => break,
            }
        }
        assert_eq!(chars.next(), None);
        let name = call.announced_name()?.to_owned();
        Some((name, call.pending))
    }

    fn call(name: &str, arguments: &str) -> Option<(String, String)> {
        Some((name.to_owned(), arguments.to_owned()))
    }

    #[test]
    fn arguments_come_as_they_were_written() {
        for arguments in [
            "{}",
            r#"{ "a" : [1, {"b": "}"}] }"#,
            r#"{"q": "\"x\" \u00e9 é"}"#,
        ] {
            for text in [
                format!(r#"{{"name": "f", "arguments": {arguments}}}"#),
                format!(r#"{{"parameters":{arguments},"name":"f"}}"#),
                format!(
                    r#"{{"id": {{"name": "no"}}, "type": "function", "name": "f", "arguments": {arguments} }}"#
                ),
            ] {
                assert_eq!(read(&text), call("f", arguments), "{text}");
            }
        }
    }

    #[test]
    fn arguments_in_a_string_are_decoded_and_missing_ones_are_empty() {
        assert_eq!(
            read(r#"{"name": "f", "arguments": "{\"a\": 1}"}"#),
            call("f", r#"{"a": 1}"#)
        );
        for text in [
            r#"{"name": "f"}"#,
            r#"{"name": "f", "arguments": null}"#,
            r#"{"name": "f", "arguments": ""}"#,
        ] {
            assert_eq!(read(text), call("f", "{}"), "{text}");
        }
    }

    #[test]
    fn control_characters_in_strings_are_escaped() {
        assert_eq!(
            read("{\"name\": \"f\", \"arguments\": {\"a\":\n \"x\ny\t\u{1}\"}}"),
            call("f", "{\"a\":\n \"x\\ny\\t\\u0001\"}")
        );
    }

    #[test]
    fn what_is_no_call_is_malformed() {
        for text in [
            "{}",
            r#"{"name": 3, "arguments": {}}"#,
            r#"{"name": "", "arguments": {}}"#,
            r#"{"name": {"x": 1}}"#,
            r#"{"name": "f", "arguments": [1]}"#,
            r#"{"name": "f", "arguments": 5}"#,
            r#"{"name": "f", "arguments": true}"#,
            r#"{"arguments": {}}"#,
            r#"{"name": "f" "arguments": {}}"#,
            r#"{"name": "\ud800"}"#,
            "[]",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn nothing_is_announced_before_name_and_arguments_are_there() {
        let mut call = CallObject::new();
        for c in r#"{"name": "f", "arguments": "#.chars() {
            assert_eq!((call.feed(c), call.announced_name()), (Fed::More, None));
        }
        call.feed('{');
        assert_eq!(call.announced_name(), Some("f"));
    }
}
