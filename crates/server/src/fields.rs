//! Typed access to the members of a JSON object, with errors that name the member.
//!
//! A request is parsed once to a [`serde_json::Map`] and its members are *taken* one by one, so that every refusal can say which field it
//! is about and what would be accepted, `null` is absence everywhere, and what is left at the end is what the server does not know.
//! Values are never coerced between types, with one exception: a number such as `5.0` is an integer where an integer is asked for.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::ApiError;

/// The members of a JSON object that have not been taken yet.
#[derive(Debug)]
pub struct Fields {
    members: Map<String, Value>,
    /// Path of the object itself: empty for the body, `messages[1]` for a message.
    path: String,
}

impl Fields {
    /// Parses a request body.
    ///
    /// # Errors
    /// [`ApiError::MalformedJson`] (also for invalid UTF-8 and lone surrogates), [`ApiError::NotAnObject`].
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(members)) => Ok(Self {
                members,
                path: String::new(),
            }),
            Ok(_) => Err(ApiError::NotAnObject),
            Err(error) => Err(ApiError::MalformedJson {
                reason: match error.classify() {
                    serde_json::error::Category::Eof => "it ends too early",
                    _ => "syntax error",
                },
                line: error.line(),
                column: error.column(),
            }),
        }
    }

    /// Views `value`, found at `path`, as an object.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] where it is not one.
    pub fn nested(value: Value, path: String) -> Result<Self, ApiError> {
        match value {
            Value::Object(members) => Ok(Self { members, path }),
            _ => Err(ApiError::field(path, "must be an object")),
        }
    }

    /// The path of member `name`, for an error.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// An error about member `name`.
    pub fn error(&self, name: &str, problem: impl Into<String>) -> ApiError {
        ApiError::field(self.path_of(name), problem)
    }

    /// Takes a member of any type; `null` is absence.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name).filter(|value| !value.is_null())
    }

    /// Looks at a member; `null` is absence.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    /// Puts a member in, or replaces it.
    pub fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.members.insert(name.to_owned(), value.into());
    }

    /// Takes a boolean.
    pub fn take_bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(self.error(name, "must be a boolean")),
        }
    }

    /// Takes a string.
    pub fn take_string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(self.error(name, "must be a string")),
        }
    }

    /// Takes a string, or a list of strings.
    pub fn take_strings(&mut self, name: &str) -> Result<Option<Vec<String>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(vec![value])),
            Some(Value::Array(values)) => values
                .into_iter()
                .map(|value| match value {
                    Value::String(value) => Ok(value),
                    _ => Err(self.error(name, "must be a string or a list of strings")),
                })
                .collect::<Result<_, _>>()
                .map(Some),
            Some(_) => Err(self.error(name, "must be a string or a list of strings")),
        }
    }

    /// Takes a number inside `range`.
    pub fn take_f32(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number as f32)),
            _ => Err(self.error(
                name,
                format!("must be a number from {} to {}", range.start(), range.end()),
            )),
        }
    }

    /// Takes an integer inside `range`.
    pub fn take_int(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match integer(&value) {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ if *range.end() == i64::MAX => Err(self.error(
                name,
                format!("must be an integer of at least {}", range.start()),
            )),
            _ => Err(self.error(
                name,
                format!(
                    "must be an integer from {} to {}",
                    range.start(),
                    range.end()
                ),
            )),
        }
    }

    /// Takes an unsigned 64-bit integer; a negative one is taken as its two's complement, as a seed may be.
    pub fn take_seed(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        value
            .as_u64()
            .or_else(|| value.as_i64().map(i64::cast_unsigned))
            .map(Some)
            .ok_or_else(|| self.error(name, "must be an integer from -2^63 to 2^64 - 1"))
    }

    /// Takes a list of token ids below `vocab_size`.
    pub fn take_token_ids(
        &mut self,
        name: &str,
        vocab_size: u32,
    ) -> Result<Option<Vec<u32>>, ApiError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        token_ids(&value, vocab_size)
            .map(Some)
            .map_err(|problem| self.error(name, problem))
    }

    /// Names of the members nobody took; they are ignored.
    pub fn finish(self) {
        if !self.members.is_empty() && tracing::enabled!(tracing::Level::DEBUG) {
            let names: Vec<&str> = self.members.keys().take(16).map(String::as_str).collect();
            tracing::debug!(
                at = self.path,
                count = self.members.len(),
                ?names,
                "unknown fields ignored"
            );
        }
    }
}

fn integer(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    value.as_i64().or_else(|| {
        value
            .as_f64()
            .filter(|x| x.fract() == 0.0 && x.abs() <= EXACT)
            .map(|x| x as i64)
    })
}

/// Reads a list of token ids below `vocab_size`; the error is a predicate about the field.
pub fn token_ids(value: &Value, vocab_size: u32) -> Result<Vec<u32>, String> {
    let problem = || {
        format!(
            "must be a list of token ids from 0 to {}",
            vocab_size.saturating_sub(1)
        )
    };
    let values = value.as_array().ok_or_else(problem)?;
    values
        .iter()
        .map(|id| {
            id.as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .filter(|&id| id < vocab_size)
                .ok_or_else(problem)
        })
        .collect()
}

#[cfg(test)]
mod tests;
