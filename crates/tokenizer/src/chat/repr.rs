//! Values as Python's `str` and `repr` write them, where minijinja's own notation differs: floats with an exponent,
//! and strings inside lists and dictionaries.

use std::fmt::Write;

use minijinja::Value;
use minijinja::value::ValueKind;

/// `str(value)`; characters of `literal` are never escaped.
pub(super) fn python_str(value: &Value, literal: &str) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let mut out = String::new();
            write_repr(value, literal, 0, &mut out);
            out
        }
    }
}

/// Nesting that is written out.
const MAX_DEPTH: usize = 200;

fn write_repr(value: &Value, literal: &str, depth: usize, out: &mut String) {
    let display = |out: &mut String| {
        let _ = write!(out, "{value}");
    };
    match value.kind() {
        ValueKind::String => string_repr(value.as_str().unwrap_or_default(), literal, out),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&float_repr(
                f64::try_from(value.clone()).unwrap_or(f64::NAN),
            ));
        }
        ValueKind::Seq if depth < MAX_DEPTH && !is_tuple(value) => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(&item, literal, depth + 1, out);
            }
            out.push(']');
        }
        ValueKind::Map if depth < MAX_DEPTH && value.to_string().starts_with('{') => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(&key, literal, depth + 1, out);
                out.push_str(": ");
                write_repr(
                    &value.get_item(&key).unwrap_or_default(),
                    literal,
                    depth + 1,
                    out,
                );
            }
            out.push('}');
        }
        _ => display(out),
    }
}

fn is_tuple(value: &Value) -> bool {
    value.to_string().starts_with('(')
}

/// `repr(str)`.
fn string_repr(text: &str, literal: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) || literal.contains(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// `str.isprintable` of one character: Rust escapes the same categories for debugging, and combining marks besides if
/// nothing is in front of them.
fn is_printable(c: char) -> bool {
    matches!(c, '\'' | '"') || ['a', c].iter().collect::<String>().escape_debug().count() == 2
}

/// `repr(float)`: the shortest digits that read back, with an exponent outside 1e-4..1e16.
pub(super) fn float_repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) {
        let digits = x.to_string();
        return if digits.contains('.') {
            digits
        } else {
            digits + ".0"
        };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use minijinja::Value;

    use super::{float_repr, python_str};

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (x, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (9999999999999998.0, "9999999999999998.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (-2.5e-300, "-2.5e-300"),
        ] {
            assert_eq!(float_repr(x), expected);
        }
    }

    #[test]
    fn strings_in_lists_are_quoted_as_python_quotes_them() {
        let strings = [
            "it's",
            "a\"b",
            "'\"",
            "\\ \n\t\u{0}\u{7f}",
            "é\u{301}",
            "\u{a0}\u{2028}\u{10ffff}",
            "日本👋",
        ];
        let list: Value = strings.iter().map(|s| Value::from(*s)).collect();
        let expected =
            r#"["it's", 'a"b', '\'"', '\\ \n\t\x00\x7f', 'é́', '\xa0\u2028\U0010ffff', '日本👋']"#;
        assert_eq!(python_str(&list, ""), expected);
    }
}
