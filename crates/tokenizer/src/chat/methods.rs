//! Python's string and list methods that minijinja's compatibility layer lacks or does differently.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// Calls method `name` of `value`: ours first, then minijinja-contrib's.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, name, args)
    {
        return result;
    }
    if (value.kind(), name) == (ValueKind::Seq, "index") {
        let (item,): (Value,) = from_args(args)?;
        let index = value.try_iter()?.position(|other| other == item);
        return index
            .map(Value::from)
            .ok_or_else(|| invalid("the value is not in the list"));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// The result of a string method; `None` if it is not one of those here.
fn string_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match name {
        "title" => no_args(args).map(|()| title(text).into()),
        "swapcase" => {
            no_args(args).map(|()| text.chars().flat_map(swap_case).collect::<String>().into())
        }
        "casefold" => no_args(args).map(|()| text.to_lowercase().into()),
        "isdecimal" => {
            no_args(args).map(|()| (!text.is_empty() && text.chars().all(char::is_numeric)).into())
        }
        "removeprefix" => {
            one_text(args).map(|p| text.strip_prefix(p.as_str()).unwrap_or(text).into())
        }
        "removesuffix" => {
            one_text(args).map(|s| text.strip_suffix(s.as_str()).unwrap_or(text).into())
        }
        "partition" => one_text(args).and_then(|sep| partition(text, &sep, text.find(&sep), false)),
        "rpartition" => {
            one_text(args).and_then(|sep| partition(text, &sep, text.rfind(&sep), true))
        }
        "index" => one_text(args).and_then(|part| index(text, text.find(&part))),
        "rindex" => one_text(args).and_then(|part| index(text, text.rfind(&part))),
        "rsplit" => rsplit(text, args),
        "zfill" => width(args).map(|(width, _)| zfill(text, width).into()),
        "ljust" => width(args).map(|(width, fill)| pad(text, 0, missing(text, width), fill)),
        "rjust" => width(args).map(|(width, fill)| pad(text, missing(text, width), 0, fill)),
        "center" => width(args).map(|(width, fill)| {
            // Python puts the odd one in front if the width is odd.
            let missing = missing(text, width);
            let before = missing / 2 + (missing & width & 1);
            pad(text, before, missing - before, fill)
        }),
        _ => return None,
    })
}

fn no_args(args: &[Value]) -> Result<(), Error> {
    from_args::<()>(args)
}

fn one_text(args: &[Value]) -> Result<String, Error> {
    from_args::<(String,)>(args).map(|(text,)| text)
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Words are runs of letters: an upper-case letter starts each, lower-case ones follow.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        let is_cased = c.is_lowercase() || c.is_uppercase();
        match (is_cased, in_word) {
            (true, true) => out.extend(c.to_lowercase()),
            (true, false) => out.extend(c.to_uppercase()),
            (false, _) => out.push(c),
        }
        in_word = is_cased;
    }
    out
}

fn swap_case(c: char) -> Vec<char> {
    if c.is_uppercase() {
        c.to_lowercase().collect()
    } else {
        c.to_uppercase().collect()
    }
}

fn partition(
    text: &str,
    separator: &str,
    at: Option<usize>,
    is_last: bool,
) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let parts = match (at, is_last) {
        (Some(at), _) => [&text[..at], separator, &text[at + separator.len()..]],
        (None, false) => [text, "", ""],
        (None, true) => ["", "", text],
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn index(text: &str, at: Option<usize>) -> Result<Value, Error> {
    let at = at.ok_or_else(|| invalid("substring not found"))?;
    Ok(text[..at].chars().count().into())
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, kwargs): (Option<String>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("sep")?);
    let limit = limit
        .or(kwargs.get("maxsplit")?)
        .and_then(|n| usize::try_from(n).ok());
    kwargs.assert_all_used()?;
    let mut parts: Vec<&str> = match (separator.as_deref(), limit) {
        (Some(""), _) => return Err(invalid("empty separator")),
        (Some(separator), Some(limit)) => {
            text.rsplitn(limit.saturating_add(1), separator).collect()
        }
        (Some(separator), None) => text.rsplit(separator).collect(),
        (None, limit) => rsplit_white_space(text, limit.unwrap_or(usize::MAX)),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Words from the last to the first; after `limit` of them the rest of the text in one.
fn rsplit_white_space(text: &str, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end();
    while !rest.trim_start().is_empty() {
        if parts.len() == limit {
            parts.push(rest);
            break;
        }
        let start = rest
            .char_indices()
            .rev()
            .find(|(_, c)| c.is_whitespace())
            .map_or(0, |(i, c)| i + c.len_utf8());
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end();
    }
    parts
}

/// Widths are bounded so that a template cannot ask for gigabytes.
fn width(args: &[Value]) -> Result<(usize, char), Error> {
    let (width, fill): (i64, Option<char>) = from_args(args)?;
    Ok((width.clamp(0, 10_000) as usize, fill.unwrap_or(' ')))
}

fn missing(text: &str, width: usize) -> usize {
    width.saturating_sub(text.chars().count())
}

fn pad(text: &str, before: usize, after: usize, fill: char) -> Value {
    let fill = |num: usize| std::iter::repeat_n(fill, num);
    fill(before)
        .chain(text.chars())
        .chain(fill(after))
        .collect::<String>()
        .into()
}

fn zfill(text: &str, width: usize) -> String {
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    format!("{sign}{}{digits}", "0".repeat(missing(text, width)))
}
