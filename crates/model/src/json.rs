//! JSON files read key by key, with errors that name the file and the key.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::LoadError;

/// Configs and indexes are kilobytes; this keeps a wrong file from being read whole.
const MAX_BYTES: u64 = 64 << 20;

/// A parsed file whose top level is an object.
pub(crate) struct Document<'a> {
    file: &'a Path,
    map: Map<String, Value>,
}

/// An object in a document. Keys holding `null` count as absent.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    file: &'a Path,
    /// Path of keys down to here, with a trailing dot, for messages.
    parent: Option<&'a str>,
    map: &'a Map<String, Value>,
}

/// Reads a file.
pub(crate) fn read(file: &Path) -> Result<Document<'_>, LoadError> {
    let io = |source| LoadError::Io {
        file: file.into(),
        source,
    };
    let metadata = std::fs::metadata(file).map_err(io)?;
    if !metadata.is_file() {
        return Err(io(std::io::Error::other("not a regular file")));
    }
    let malformed = |expected: &str, found: String| LoadError::Malformed {
        file: file.into(),
        what: "JSON".into(),
        expected: expected.into(),
        found,
    };
    if metadata.len() > MAX_BYTES {
        return Err(malformed(
            "at most 67108864 bytes",
            metadata.len().to_string(),
        ));
    }
    let bytes = std::fs::read(file).map_err(io)?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(Document { file, map }),
        Ok(other) => Err(malformed("an object", describe(&other))),
        Err(e) => Err(malformed("valid JSON", one_line(&e.to_string()))),
    }
}

/// `text` with control characters escaped and its length bounded.
pub(crate) fn one_line(text: &str) -> String {
    let shown: String = text.chars().take(200).flat_map(escape_control).collect();
    if text.chars().nth(200).is_some() {
        shown + "…"
    } else {
        shown
    }
}

fn escape_control(c: char) -> impl Iterator<Item = char> {
    let escaped = c.is_control().then(|| c.escape_default());
    let plain = escaped.is_none().then_some(c);
    escaped.into_iter().flatten().chain(plain)
}

/// A value for messages.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".into(),
        scalar => one_line(&scalar.to_string()),
    }
}

impl Document<'_> {
    /// The top-level object.
    pub(crate) fn root(&self) -> Object<'_> {
        Object {
            file: self.file,
            parent: None,
            map: &self.map,
        }
    }

    /// A required object at the top level.
    pub(crate) fn object<'s>(&'s self, key: &'s str) -> Result<Object<'s>, LoadError> {
        let root = self.root();
        root.opt_object(key)?
            .ok_or_else(|| root.missing(key, "an object"))
    }
}

impl<'a> Object<'a> {
    pub(crate) fn file(&self) -> &'a Path {
        self.file
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The error for a key's value that will not do.
    pub(crate) fn refuse(
        &self,
        key: &str,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> LoadError {
        let key = match self.parent {
            Some(parent) => format!("{}.{}", parent, one_line(key)),
            None => one_line(key),
        };
        LoadError::Config {
            file: self.file.into(),
            key,
            expected: expected.into(),
            found: found.into(),
        }
    }

    pub(crate) fn missing(&self, key: &str, expected: impl Into<String>) -> LoadError {
        self.refuse(key, expected, "no such key")
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        convert(value)
            .map(Some)
            .ok_or_else(|| self.refuse(key, expected, describe(value)))
    }

    pub(crate) fn opt_object(&self, key: &'a str) -> Result<Option<Object<'a>>, LoadError> {
        let map = self.typed(key, "an object", Value::as_object)?;
        Ok(map.map(|map| Object {
            file: self.file,
            parent: Some(key),
            map,
        }))
    }

    pub(crate) fn opt_u64(&self, key: &str) -> Result<Option<u64>, LoadError> {
        self.typed(key, "a non-negative integer", Value::as_u64)
    }

    pub(crate) fn opt_f64(&self, key: &str) -> Result<Option<f64>, LoadError> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub(crate) fn opt_bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(crate) fn opt_str(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn str(&self, key: &str) -> Result<&'a str, LoadError> {
        self.opt_str(key)?
            .ok_or_else(|| self.missing(key, "a string"))
    }

    pub(crate) fn opt_list(&self, key: &str) -> Result<Option<&'a [Value]>, LoadError> {
        self.typed(key, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// A list of numbers.
    pub(crate) fn opt_f64s(&self, key: &str) -> Result<Option<Vec<f64>>, LoadError> {
        self.typed(key, "a list of numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect()
        })
    }

    /// One token id or a list of them. Negative ids are how some files say "none".
    pub(crate) fn token_ids(&self, key: &str) -> Result<Vec<u32>, LoadError> {
        let id = |value: &Value| match value.as_i64()? {
            negative if negative < 0 => Some(None),
            id => u32::try_from(id).ok().map(Some),
        };
        let ids = self.typed(key, "a token id or a list of them", |value| {
            match value.as_array() {
                Some(list) => list.iter().map(id).collect::<Option<Vec<_>>>(),
                None => id(value).map(|id| vec![id]),
            }
        })?;
        Ok(ids.into_iter().flatten().flatten().collect())
    }
}
