//! JSON as Python's `json.dumps` writes it: `", "` and `": "` between items, non-ASCII characters as they are, floats
//! as by `repr`.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::repr::float_repr;

/// Arguments of `json.dumps`.
pub(super) struct Options {
    pub ensure_ascii: bool,
    pub indent: Option<Indent>,
    /// Between items, and between key and value.
    pub separators: Option<(String, String)>,
    pub sort_keys: bool,
    /// Characters never escaped.
    pub literal: String,
}

/// What one level of nesting is indented by.
pub(super) struct Indent(String);

impl Indent {
    pub fn from_value(value: Value) -> Result<Self, Error> {
        if let Some(text) = value.as_str() {
            return Ok(Self(text.to_owned()));
        }
        let width = i64::try_from(value)?.clamp(0, 64);
        Ok(Self(" ".repeat(width as usize)))
    }
}

pub(super) fn separators_from_value(value: Value) -> Result<(String, String), Error> {
    let parts: Vec<Value> = value.try_iter()?.collect();
    match parts.as_slice() {
        [item, key] => Ok((item.to_string(), key.to_string())),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson: separators is a pair",
        )),
    }
}

pub(super) fn to_json(value: &Value, options: &Options) -> Result<String, Error> {
    let item = if options.indent.is_some() { "," } else { ", " };
    let (item, key) = options
        .separators
        .as_ref()
        .map_or((item, ": "), |(i, k)| (i, k));
    let mut writer = Writer {
        options,
        item,
        key,
        out: String::new(),
        depth: 0,
    };
    writer.value(value)?;
    Ok(writer.out)
}

/// Nesting that a value may have.
const MAX_DEPTH: usize = 200;

struct Writer<'a> {
    options: &'a Options,
    item: &'a str,
    key: &'a str,
    out: String,
    depth: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items('[', ']', &items, Self::value)?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((key.clone(), value.get_item(&key)?));
                }
                if self.options.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.items('{', '}', &entries, |writer, (key, value)| {
                    writer.map_key(key)?;
                    writer.out.push_str(writer.key);
                    writer.value(value)
                })?;
            }
            kind => {
                let message = format!("tojson: a value of type {kind} is not JSON");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn items<T>(
        &mut self,
        open: char,
        close: char,
        items: &[T],
        each: impl Fn(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: the value is nested too deeply",
            ));
        }
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push_str(self.item);
            }
            self.newline();
            each(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.newline();
        }
        self.out.push(close);
        Ok(())
    }

    fn newline(&mut self) {
        if let Some(Indent(indent)) = &self.options.indent {
            self.out.push('\n');
            (0..self.depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn map_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            _ => {
                self.out.push('"');
                self.value(key)?;
                self.out.push('"');
            }
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            let _ = write!(self.out, "{value}");
        } else {
            let float = f64::try_from(value.clone()).unwrap_or(f64::NAN);
            self.out.push_str(&json_float(float));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' => self.escape(c),
                c if self.options.ensure_ascii
                    && !c.is_ascii()
                    && !self.options.literal.contains(c) =>
                {
                    self.escape(c)
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}

/// A float as `json.dumps` writes it.
fn json_float(x: f64) -> String {
    match x {
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        x if x.is_nan() => "NaN".into(),
        x => float_repr(x),
    }
}
