//! JSON's grammar (RFC 8259), a character at a time, to know where a value begins and ends inside a stream.

/// Containers inside containers that are followed; deeper is taken for malformed.
const MAX_DEPTH: usize = 128;

/// Where in a value the last character was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value begins.
    Value,
    /// A value begins, or `]`: after `[`.
    ValueOrEnd,
    /// A key begins, or `}`: after `{`.
    KeyOrEnd,
    /// A key begins: after a comma.
    Key,
    /// `:` comes.
    Colon,
    /// A comma or the container's end comes.
    CommaOrEnd,
    /// Inside a string, which is a key or a value.
    Text { is_key: bool },
    /// After a backslash.
    Escape { is_key: bool },
    /// So many hexadecimal digits are missing.
    Hex { is_key: bool, missing: u8 },
    /// Inside a number.
    Number(Number),
    /// Inside `true`, `false` or `null`: what is missing of it.
    Word(&'static str),
    /// The outermost value has ended.
    Done,
}

/// Where in a number the last character was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Int,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// What a character was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Char {
    /// Part of a key; `ends` at its closing quote.
    Key {
        /// Whether the key is complete.
        ends: bool,
    },
    /// Part of a value that is not a container; `ends` with a string's closing quote and a word's last letter, but not with a
    /// number, which only what follows ends.
    Scalar {
        /// Whether the value begins here.
        begins: bool,
        /// Whether the value is complete.
        ends: bool,
    },
    /// `{` or `[`.
    Open,
    /// `}` or `]`.
    Close,
    /// A comma, a colon or white space between values.
    Between,
}

/// Follows one object or array.
#[derive(Debug, Clone)]
pub struct JsonScanner {
    state: State,
    /// True for an object.
    containers: Vec<bool>,
}

impl JsonScanner {
    /// A scanner before its value.
    pub fn new() -> Self {
        Self {
            state: State::Value,
            containers: Vec::new(),
        }
    }

    /// Containers that are open.
    pub fn depth(&self) -> usize {
        self.containers.len()
    }

    /// Whether the last character was inside a string (a control character may stand there only escaped).
    pub fn is_in_string(&self) -> bool {
        matches!(
            self.state,
            State::Text { .. } | State::Escape { .. } | State::Hex { .. }
        )
    }

    /// Takes the next character; `None` where JSON does not allow it. Control characters inside strings are let pass.
    pub fn step(&mut self, c: char) -> Option<Char> {
        match self.state {
            State::Text { is_key } => Some(self.in_text(c, is_key)),
            State::Escape { is_key } => self.in_escape(c, is_key),
            State::Hex { is_key, missing } => {
                let missing = c.is_ascii_hexdigit().then(|| missing - 1)?;
                self.state = match missing {
                    0 => State::Text { is_key },
                    _ => State::Hex { is_key, missing },
                };
                Some(part_of_text(is_key, false))
            }
            State::Number(number) => match number.step(c) {
                Some(next) => {
                    self.state = State::Number(next);
                    Some(Char::Scalar {
                        begins: false,
                        ends: false,
                    })
                }
                None if number.may_end() => {
                    self.end_value();
                    self.step(c)
                }
                None => None,
            },
            State::Word(missing) => {
                let missing = missing.strip_prefix(c)?;
                Some(self.word(missing, false))
            }
            State::Done => None,
            _ if matches!(c, ' ' | '\n' | '\r' | '\t') => Some(Char::Between),
            State::Value | State::ValueOrEnd | State::KeyOrEnd if matches!(c, ']' | '}') => {
                self.close_empty(c)
            }
            State::Value | State::ValueOrEnd => self.begin_value(c),
            State::Key | State::KeyOrEnd => {
                (c == '"').then_some(())?;
                self.state = State::Text { is_key: true };
                Some(Char::Key { ends: false })
            }
            State::Colon => {
                (c == ':').then_some(())?;
                self.state = State::Value;
                Some(Char::Between)
            }
            State::CommaOrEnd => self.comma_or_end(c),
        }
    }

    fn in_text(&mut self, c: char, is_key: bool) -> Char {
        match c {
            '\\' => self.state = State::Escape { is_key },
            '"' if is_key => self.state = State::Colon,
            '"' => self.end_value(),
            _ => {}
        }
        part_of_text(is_key, c == '"')
    }

    fn in_escape(&mut self, c: char, is_key: bool) -> Option<Char> {
        self.state = match c {
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => State::Text { is_key },
            'u' => State::Hex { is_key, missing: 4 },
            _ => return None,
        };
        Some(part_of_text(is_key, false))
    }

    fn begin_value(&mut self, c: char) -> Option<Char> {
        let begins = Char::Scalar {
            begins: true,
            ends: false,
        };
        match c {
            '{' | '[' => {
                (self.containers.len() < MAX_DEPTH).then_some(())?;
                self.containers.push(c == '{');
                self.state = if c == '{' {
                    State::KeyOrEnd
                } else {
                    State::ValueOrEnd
                };
                Some(Char::Open)
            }
            '"' => {
                self.state = State::Text { is_key: false };
                Some(begins)
            }
            't' => Some(self.word("rue", true)),
            'f' => Some(self.word("alse", true)),
            'n' => Some(self.word("ull", true)),
            _ => {
                self.state = State::Number(Number::begin(c)?);
                Some(begins)
            }
        }
    }

    fn word(&mut self, missing: &'static str, begins: bool) -> Char {
        let ends = missing.is_empty();
        match ends {
            true => self.end_value(),
            false => self.state = State::Word(missing),
        }
        Char::Scalar { begins, ends }
    }

    fn comma_or_end(&mut self, c: char) -> Option<Char> {
        let is_object = *self.containers.last()?;
        match (c, is_object) {
            (',', true) => self.state = State::Key,
            (',', false) => self.state = State::Value,
            ('}', true) | (']', false) => return Some(self.close()),
            _ => return None,
        }
        Some(Char::Between)
    }

    /// `{}` or `[]`.
    fn close_empty(&mut self, c: char) -> Option<Char> {
        match (self.state, c) {
            (State::KeyOrEnd, '}') | (State::ValueOrEnd, ']') => Some(self.close()),
            _ => None,
        }
    }

    fn close(&mut self) -> Char {
        self.containers.pop();
        self.end_value();
        Char::Close
    }

    fn end_value(&mut self) {
        self.state = if self.containers.is_empty() {
            State::Done
        } else {
            State::CommaOrEnd
        };
    }
}

fn part_of_text(is_key: bool, ends: bool) -> Char {
    if is_key {
        Char::Key { ends }
    } else {
        Char::Scalar {
            begins: false,
            ends,
        }
    }
}

impl Number {
    fn begin(c: char) -> Option<Self> {
        match c {
            '-' => Some(Self::Minus),
            '0' => Some(Self::Zero),
            '1'..='9' => Some(Self::Int),
            _ => None,
        }
    }

    fn step(self, c: char) -> Option<Self> {
        match (self, c) {
            (Self::Minus, _) => Self::begin(c).filter(|next| *next != Self::Minus),
            (Self::Int, '0'..='9') => Some(Self::Int),
            (Self::Zero | Self::Int, '.') => Some(Self::Point),
            (Self::Point | Self::Fraction, '0'..='9') => Some(Self::Fraction),
            (Self::Zero | Self::Int | Self::Fraction, 'e' | 'E') => Some(Self::Exponent),
            (Self::Exponent, '+' | '-') => Some(Self::ExponentSign),
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, '0'..='9') => {
                Some(Self::ExponentDigits)
            }
            _ => None,
        }
    }

    fn may_end(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Int | Self::Fraction | Self::ExponentDigits
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The length of the object or array that `text` begins with.
    fn scan(text: &str) -> Option<usize> {
        let mut scanner = JsonScanner::new();
        for (at, c) in text.char_indices() {
            scanner.step(c)?;
            if scanner.state == State::Done {
                return Some(at + c.len_utf8());
            }
        }
        None
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            "\\PC{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                proptest::collection::btree_map("\\PC{0,4}", inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_serde_json_writes_is_followed_to_its_end(value in value(), rest in "\\PC{0,4}", pretty in any::<bool>()) {
            let value = serde_json::json!([value]);
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.expect("JSON");
            prop_assert_eq!(scan(&format!("{text}{rest}")), Some(text.len()));
        }

        #[test]
        fn what_ends_is_what_serde_json_reads(text in r#"[\[{]["\[\]{},:0-9eE.+\-ntrufalse\\ ]{0,12}"#) {
            let read = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            // White space may follow a value and is no part of it.
            let scanned = scan(&text) == Some(text.trim_end().len());
            // A number too large for f64 is JSON all the same.
            prop_assert!(scanned == read || (scanned && text.contains(['e', 'E'])), "{text}: {scanned} {read}");
        }
    }

    #[test]
    fn broken_values_are_noticed_where_they_break() {
        for text in [
            "{]",
            "[1 2]",
            "{\"a\" 1}",
            "{a:1}",
            "[01]",
            "[1.]",
            "[+1]",
            "[\"\\x\"]",
            "[tru ]",
            "[,]",
            "[1,]",
            "{\"a\":1,}",
            "}",
        ] {
            let mut scanner = JsonScanner::new();
            assert!(text.chars().any(|c| scanner.step(c).is_none()), "{text}");
        }
    }

    #[test]
    fn bottomless_nesting_is_malformed() {
        assert_eq!(scan(&"[".repeat(100_000)), None);
    }
}
