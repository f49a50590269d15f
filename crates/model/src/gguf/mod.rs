//! The GGUF container, versions 2 and 3, little endian.
//!
//! ```text
//! "GGUF" | version u32 | num_tensors u64 | num_metadata u64
//! metadata: key string | type u32 | value                          (string: length u64, bytes)
//! tensors:  name string | num_dims u32 | dims u64… | type u32 | offset u64
//! padding to general.alignment (32 unless stated)
//! data:     every tensor at its offset from here, a multiple of the alignment
//! ```
//! The first dimension listed is the innermost one; shapes elsewhere in this crate are outermost first.

mod ggml;
mod reader;
mod value;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use self::reader::Reader;
pub use self::value::{Array, Value};
use crate::error::LoadError;
use crate::table::{Stored, TensorInfo};

const MAX_DIMS: u32 = 4;
const MAX_METADATA: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
const DEFAULT_ALIGNMENT: u64 = 32;

/// The metadata of a GGUF file.
pub struct Gguf {
    file: PathBuf,
    version: u32,
    metadata: HashMap<String, Value>,
}

impl Gguf {
    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Version of the container.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Every key with its value, in no order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// A non-negative integer. Like its siblings: `None` if there is no such key.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, LoadError> {
        self.typed(key, "a non-negative integer", Value::as_u64)
    }

    /// A number.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, LoadError> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// A bool.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.typed(key, "a bool", Value::as_bool)
    }

    /// Text.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn str(&self, key: &str) -> Result<Option<&str>, LoadError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// A list of strings.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, LoadError> {
        self.typed(key, "an array of strings", Value::as_strings)
    }

    /// A list of f32.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, LoadError> {
        self.typed(key, "an array of f32", Value::as_f32s)
    }

    /// A list of integers of any width.
    ///
    /// # Errors
    /// The value is of another type.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>, LoadError> {
        self.typed(key, "an array of integers", Value::as_ints)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = || self.refuse(key, expected, value.to_string());
        convert(value).map(Some).ok_or_else(wrong)
    }

    /// The error for a value that will not do.
    pub(crate) fn refuse(
        &self,
        key: &str,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> LoadError {
        LoadError::Config {
            file: self.file.clone(),
            key: key.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}

/// Reads the header in `bytes`, the whole file, and checks every tensor to lie inside it.
pub(crate) fn parse(file: &Path, bytes: &[u8]) -> Result<(Gguf, Vec<TensorInfo>), LoadError> {
    let mut reader = Reader::new(file, bytes);
    let version = read_version(&mut reader)?;
    let num_tensors = reader.u64()?;
    let num_metadata = reader.u64()?;
    let metadata = read_metadata(&mut reader, num_metadata)?;
    let mut tensors = read_tensor_infos(&mut reader, num_tensors)?;

    let gguf = Gguf {
        file: file.into(),
        version,
        metadata,
    };
    let alignment = gguf.u64("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > 1 << 20 {
        let expected = "a power of two up to 1048576";
        return Err(gguf.refuse("general.alignment", expected, alignment.to_string()));
    }
    let data_start = (reader.pos() as u64).next_multiple_of(alignment);
    for tensor in &mut tensors {
        place(file, tensor, data_start, alignment, bytes.len() as u64)?;
    }
    Ok((gguf, tensors))
}

fn read_version(reader: &mut Reader<'_>) -> Result<u32, LoadError> {
    let magic = reader.magic()?;
    if magic != *b"GGUF" {
        return Err(reader.malformed(
            "the magic \"GGUF\"",
            format!("\"{}\"", magic.escape_ascii()),
        ));
    }
    let version = reader.u32()?;
    if matches!(version, 2 | 3) {
        return Ok(version);
    }
    let hint = if matches!(version.swap_bytes(), 1..=3) {
        " (a big-endian file)"
    } else {
        ""
    };
    Err(reader.malformed("version 2 or 3", format!("{version}{hint}")))
}

fn read_metadata(reader: &mut Reader<'_>, count: u64) -> Result<HashMap<String, Value>, LoadError> {
    reader.what = "metadata".into();
    let count = reader.count(count, MAX_METADATA, 13)?; // key length, type, one byte of value
    let mut metadata = HashMap::with_capacity(count);
    for i in 0..count {
        reader.what = format!("metadata key {i}");
        let key = reader.string()?;
        reader.what = format!("metadata {key:?}");
        let value = reader.value()?;
        if metadata.insert(key, value).is_some() {
            return Err(reader.malformed("each key once", "a duplicate"));
        }
    }
    Ok(metadata)
}

/// Tensor infos as listed: `offset` is still relative to the data section and `num_bytes` unknown.
fn read_tensor_infos(reader: &mut Reader<'_>, count: u64) -> Result<Vec<TensorInfo>, LoadError> {
    reader.what = "tensor list".into();
    let count = reader.count(count, MAX_TENSORS, 24)?; // name length, dimension count, type, offset
    let mut tensors = Vec::with_capacity(count);
    for i in 0..count {
        reader.what = format!("tensor {i}");
        let name = reader.string()?;
        reader.what = format!("tensor {name:?}");
        let num_dims = reader.u32()?;
        if num_dims > MAX_DIMS {
            return Err(reader.malformed(
                format!("at most {MAX_DIMS} dimensions"),
                num_dims.to_string(),
            ));
        }
        let mut shape = Vec::with_capacity(num_dims as usize);
        for _ in 0..num_dims {
            let dim = reader.u64()?;
            match usize::try_from(dim) {
                Ok(dim) if dim > 0 => shape.push(dim),
                _ => return Err(reader.malformed("dimensions above 0", dim.to_string())),
            }
        }
        shape.reverse();
        let stored = ggml::stored_type(reader.u32()?);
        let offset = reader.u64()?;
        tensors.push(TensorInfo {
            name,
            stored,
            shape,
            offset,
            num_bytes: 0,
        });
    }
    Ok(tensors)
}

/// Turns a listed offset into a place in the file, checked.
fn place(
    file: &Path,
    tensor: &mut TensorInfo,
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), LoadError> {
    let malformed = |expected: String, found: String| LoadError::Malformed {
        file: file.into(),
        what: format!("tensor {:?}", tensor.name),
        expected,
        found,
    };
    if !tensor.offset.is_multiple_of(alignment) {
        return Err(malformed(
            format!("an offset multiple of {alignment}"),
            tensor.offset.to_string(),
        ));
    }
    // A type unknown here has a size unknown here; asking for such a tensor is an error of its own.
    let Stored::Known(dtype) = tensor.stored else {
        return Ok(());
    };
    let cols = tensor.shape.last().copied().unwrap_or(1);
    let rows = tensor
        .shape
        .iter()
        .rev()
        .skip(1)
        .try_fold(1_usize, |n, &dim| n.checked_mul(dim));
    let Some(row_bytes) = dtype.row_bytes(cols) else {
        let expected = format!(
            "rows that are a multiple of {} elements of {dtype}",
            dtype.block_len()
        );
        return Err(malformed(expected, cols.to_string()));
    };
    let num_bytes = rows.and_then(|rows| rows.checked_mul(row_bytes));
    let num_bytes = num_bytes
        .and_then(|n| u64::try_from(n).ok())
        .unwrap_or(u64::MAX);
    let start = data_start.saturating_add(tensor.offset);
    let end = start.saturating_add(num_bytes);
    if end > file_bytes {
        return Err(LoadError::Truncated {
            file: file.into(),
            what: format!("tensor {:?}", tensor.name),
            expected: end,
            found: file_bytes,
        });
    }
    (tensor.offset, tensor.num_bytes) = (start, num_bytes);
    Ok(())
}
