//! What Hugging Face's template environment has beyond Jinja, and where Python's answers differ from minijinja's.

use jiff::Zoned;
use jiff::tz::TimeZone;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::render::{MARKS, NOW};
use super::repr::python_str;
use super::tojson;

/// The message of a template's `raise_exception`, as the source of the render's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);

/// Adds functions, filters, tests and methods to `env`.
pub(super) fn install(env: &mut Environment<'static>) {
    minijinja_contrib::add_to_environment(env);
    env.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => out
            .write_str(&python_str(value, &marks(state)))
            .map_err(Error::from),
        _ => minijinja::escape_formatter(out, state, value),
    });
    env.set_unknown_method_callback(super::methods::call);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.add_filter("tojson", tojson_filter);
    env.add_filter("int", |value: &Value, default: Option<Value>| {
        let whole = number(value).map(|x| x.trunc()).filter(|x| x.is_finite());
        let exact = value
            .as_str()
            .map_or_else(|| value.as_i64(), |text| text.trim().parse().ok());
        exact
            .map(Value::from)
            .or(whole.map(|x| Value::from(x as i64)))
            .or(default)
            .unwrap_or(Value::from(0))
    });
    env.add_filter("float", |value: &Value, default: Option<Value>| {
        number(value)
            .map(Value::from)
            .or(default)
            .unwrap_or(Value::from(0.0))
    });
    for name in ["e", "escape"] {
        env.add_filter(name, |value: &Value| Value::from_safe_string(escape(value)));
    }
    env.add_filter("string", |state: &mut State, value: &Value| {
        python_str(value, &marks(state))
    });
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", |v: &Value| {
        is_sequence(v) || v.kind() == ValueKind::Iterable
    });
}

/// Whether Python's `len` and indexing work: strings and dictionaries count, and Jinja's undefined value.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Bytes, Map, Seq, String, Undefined};
    matches!(value.kind(), Seq | String | Map | Bytes | Undefined)
}

/// A number, or a string that reads as one; Jinja's `int` and `float` give their default for anything else.
fn number(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    }
}

/// HTML escaping with the entities that MarkupSafe writes.
fn escape(value: &Value) -> String {
    let text = python_str(value, "");
    if value.is_safe() {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// The guard's marks, which must reach the output as they are.
fn marks(state: &State) -> String {
    state
        .lookup(MARKS)
        .map(|marks| marks.to_string())
        .unwrap_or_default()
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The local time, or the instant that the caller gave, formatted as by C's `strftime`.
fn strftime_now(state: &mut State, format: String) -> Result<String, Error> {
    let now = match state.lookup(NOW).and_then(|v| i64::try_from(v).ok()) {
        Some(seconds) => jiff::Timestamp::from_second(seconds)
            .map(|t| t.to_zoned(TimeZone::UTC))
            .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))?,
        None => Zoned::now(),
    };
    jiff::fmt::strtime::format(&format, &now).map_err(|e| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now({format:?}): {e}"),
        )
    })
}

/// `json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson_filter(
    state: &mut State,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if args.len() > names.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let get = |index: usize| -> Result<Option<Value>, Error> {
        let value = match args.get(index) {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(names[index])?,
        };
        Ok(value.filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let options = tojson::Options {
        ensure_ascii: get(0)?.is_some_and(|v| v.is_true()),
        indent: get(1)?.map(tojson::Indent::from_value).transpose()?,
        separators: get(2)?.map(tojson::separators_from_value).transpose()?,
        sort_keys: get(3)?.is_some_and(|v| v.is_true()),
        literal: marks(state),
    };
    kwargs.assert_all_used()?;
    tojson::to_json(value, &options)
}
