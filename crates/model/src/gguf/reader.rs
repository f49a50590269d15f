//! A bounds-checked cursor over the header of a GGUF file.

use std::path::Path;

use super::value::{Array, Value};
use crate::error::LoadError;

/// Arrays may nest this deep; real files do not nest at all.
const MAX_DEPTH: usize = 4;

pub(super) struct Reader<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    pos: usize,
    /// What is being read, for messages.
    pub(super) what: String,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a Path, bytes: &'a [u8]) -> Self {
        Self {
            file,
            bytes,
            pos: 0,
            what: "header".into(),
        }
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// The error for a broken rule in what is being read.
    pub(super) fn malformed(
        &self,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> LoadError {
        LoadError::Malformed {
            file: self.file.into(),
            what: self.what.clone(),
            expected: expected.into(),
            found: found.into(),
        }
    }

    fn truncated(&self, needed: u64) -> LoadError {
        LoadError::Truncated {
            file: self.file.into(),
            what: self.what.clone(),
            expected: (self.pos as u64).saturating_add(needed),
            found: self.bytes.len() as u64,
        }
    }

    /// Checks that a count is at most `max` and that so many items of at least `min_bytes` are still ahead.
    pub(super) fn count(&self, count: u64, max: u64, min_bytes: u64) -> Result<usize, LoadError> {
        if count > max {
            return Err(self.malformed(format!("at most {max} entries"), count.to_string()));
        }
        let needed = count.saturating_mul(min_bytes);
        if needed > (self.bytes.len() - self.pos) as u64 {
            return Err(self.truncated(needed));
        }
        usize::try_from(count).map_err(|_| self.truncated(needed))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], LoadError> {
        let rest = &self.bytes[self.pos..];
        let taken = rest.get(..len).ok_or_else(|| self.truncated(len as u64))?;
        self.pos += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(super) fn magic(&mut self) -> Result<[u8; 4], LoadError> {
        self.array()
    }

    pub(super) fn u32(&mut self) -> Result<u32, LoadError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, LoadError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn string(&mut self) -> Result<String, LoadError> {
        let len = self.u64()?;
        let len = self.count(len, u64::MAX, 1)?;
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => {
                Err(self.malformed("UTF-8 text", format!("a bad byte at {}", e.valid_up_to())))
            }
        }
    }

    fn bool(&mut self) -> Result<bool, LoadError> {
        match self.array::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.malformed("a bool of 0 or 1", other.to_string())),
        }
    }

    pub(super) fn value(&mut self) -> Result<Value, LoadError> {
        let kind = self.u32()?;
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array()?)),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.bool()?),
            8 => Value::String(self.string()?),
            9 => Value::Array(self.values(MAX_DEPTH)?),
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            other => return Err(self.malformed("a value type of 0 to 12", other.to_string())),
        })
    }

    /// An array: element type, count, elements.
    fn values(&mut self, depth: usize) -> Result<Array, LoadError> {
        if depth == 0 {
            return Err(self.malformed(format!("arrays nested at most {MAX_DEPTH} deep"), "more"));
        }
        let kind = self.u32()?;
        let count = self.u64()?;
        Ok(match kind {
            0 => Array::U8(self.numbers(count, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(count, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(count, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(count, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(count, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(count, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(count, f32::from_le_bytes)?),
            7 => Array::Bool(self.list(count, 1, Self::bool)?),
            8 => Array::String(self.list(count, 8, Self::string)?),
            9 => Array::Array(self.list(count, 12, |reader| reader.values(depth - 1))?),
            10 => Array::U64(self.numbers(count, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(count, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(count, f64::from_le_bytes)?),
            other => return Err(self.malformed("an element type of 0 to 12", other.to_string())),
        })
    }

    fn numbers<T, const N: usize>(
        &mut self,
        count: u64,
        decode: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, LoadError> {
        let count = self.count(count, u64::MAX, N as u64)?;
        let (chunks, _) = self.take(count * N)?.as_chunks::<N>();
        Ok(chunks.iter().map(|&chunk| decode(chunk)).collect())
    }

    fn list<T>(
        &mut self,
        count: u64,
        min_bytes: u64,
        mut read: impl FnMut(&mut Self) -> Result<T, LoadError>,
    ) -> Result<Vec<T>, LoadError> {
        let count = self.count(count, u64::MAX, min_bytes)?;
        // Elements are larger in memory than they may be in the file: let what is really there set the size.
        let mut out = Vec::with_capacity(count.min(1 << 16));
        for _ in 0..count {
            out.push(read(self)?);
        }
        Ok(out)
    }
}
