//! Metadata values of a GGUF file.

use std::fmt;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Type 0.
    U8(u8),
    /// Type 1.
    I8(i8),
    /// Type 2.
    U16(u16),
    /// Type 3.
    I16(i16),
    /// Type 4.
    U32(u32),
    /// Type 5.
    I32(i32),
    /// Type 6.
    F32(f32),
    /// Type 7.
    Bool(bool),
    /// Type 8.
    String(String),
    /// Type 9.
    Array(Array),
    /// Type 10.
    U64(u64),
    /// Type 11.
    I64(i64),
    /// Type 12.
    F64(f64),
}

/// A metadata array; all elements have one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Of bytes.
    U8(Vec<u8>),
    /// Of signed bytes.
    I8(Vec<i8>),
    /// Of u16.
    U16(Vec<u16>),
    /// Of i16.
    I16(Vec<i16>),
    /// Of u32.
    U32(Vec<u32>),
    /// Of i32.
    I32(Vec<i32>),
    /// Of f32.
    F32(Vec<f32>),
    /// Of bool.
    Bool(Vec<bool>),
    /// Of strings.
    String(Vec<String>),
    /// Of arrays.
    Array(Vec<Array>),
    /// Of u64.
    U64(Vec<u64>),
    /// Of i64.
    I64(Vec<i64>),
    /// Of f64.
    F64(Vec<f64>),
}

impl Value {
    /// The value as a non-negative integer, whatever integer type it is stored as.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value as a number, whatever numeric type it is stored as.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            Value::I8(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::I64(v) => Some(v as f64),
            _ => self.as_u64().map(|v| v as f64),
        }
    }

    /// The value as a bool.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The value as text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(v) => Some(v),
            _ => None,
        }
    }

    /// The value as a list of strings.
    pub fn as_strings(&self) -> Option<&[String]> {
        match self {
            Value::Array(Array::String(v)) => Some(v),
            _ => None,
        }
    }

    /// The value as a list of f32.
    pub fn as_f32s(&self) -> Option<&[f32]> {
        match self {
            Value::Array(Array::F32(v)) => Some(v),
            _ => None,
        }
    }

    /// The value as a list of integers, whatever integer type they are stored as.
    pub fn as_ints(&self) -> Option<Vec<i64>> {
        let Value::Array(array) = self else {
            return None;
        };
        match array {
            Array::U8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::I8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::U16(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::I16(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::U32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::I32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            Array::U64(v) => v.iter().map(|&x| x.try_into().ok()).collect(),
            Array::I64(v) => Some(v.clone()),
            _ => None,
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Short, one line, for messages.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::String(s) if s.len() > 80 => write!(f, "a string of {} bytes", s.len()),
            Value::String(s) => write!(f, "{s:?}"),
            Value::Array(a) => write!(f, "an array of {}", a.len()),
            Value::Bool(b) => write!(f, "{b}"),
            number => write!(f, "{}", number.as_f64().unwrap_or(f64::NAN)),
        }
    }
}
