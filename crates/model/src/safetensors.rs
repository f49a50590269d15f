//! The safetensors container.
//!
//! ```text
//! header_len u64 | header: JSON { name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {…} } | data
//! ```
//! Offsets count from the start of the data. Tensors must tile the data without gap or overlap, as the format demands.
//! A directory holds `model.safetensors`, or `model.safetensors.index.json` with the shards it names; other
//! safetensors files beside an index are not looked at.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::Dtype;
use crate::error::LoadError;
use crate::json;
use crate::table::{MappedFile, Stored, TensorInfo, TensorTable};

/// The reference implementation's limit on the header.
const MAX_HEADER_BYTES: u64 = 100_000_000;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Opens the weights of a directory.
pub(crate) fn open_dir(dir: &Path) -> Result<TensorTable, LoadError> {
    let index = dir.join(INDEX);
    if index.exists() {
        return open_sharded(dir, index);
    }
    let single = dir.join(SINGLE);
    if !single.exists() {
        return Err(LoadError::MissingFile {
            file: single,
            needed_because: format!(
                "weights must be {SINGLE} or shards listed by {INDEX}{}",
                other_weights(dir)
            ),
        });
    }
    let mut table = TensorTable::new(single.clone());
    add_file(&mut table, &single, |_| true)?;
    Ok(table)
}

/// A hint for directories whose weights are in another format.
fn other_weights(dir: &Path) -> &'static str {
    let names = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    let mut hint = "";
    for name in names {
        match Path::new(&name).extension().and_then(|e| e.to_str()) {
            Some("gguf") => return "; to run a .gguf file, give its own path",
            Some("bin" | "pt" | "pth") => hint = "; convert the PyTorch files here to safetensors",
            _ => {}
        }
    }
    hint
}

fn open_sharded(dir: &Path, index: PathBuf) -> Result<TensorTable, LoadError> {
    let weight_map = read_index(&index)?;
    let mut shards: BTreeMap<&str, &str> = BTreeMap::new();
    for (tensor, shard) in &weight_map {
        shards.entry(shard).or_insert(tensor);
    }
    let mut table = TensorTable::new(index.clone());
    for (shard, tensor) in shards {
        let path = dir.join(shard);
        if !path.exists() {
            let needed_because = format!("{INDEX} lists it for tensor {tensor:?}");
            return Err(LoadError::MissingFile {
                file: path,
                needed_because,
            });
        }
        let listed = |name: &str| weight_map.get(name).is_some_and(|s| s == shard);
        add_file(&mut table, &path, listed)?;
    }
    match weight_map
        .iter()
        .find(|(tensor, _)| !table.contains(tensor))
    {
        None => Ok(table),
        Some((tensor, shard)) => Err(LoadError::Malformed {
            file: dir.join(shard),
            what: format!("tensor {tensor:?}"),
            expected: format!("it here, as {INDEX} says"),
            found: "no such tensor".into(),
        }),
    }
}

/// Tensor name → file name. Names must stay in the directory.
fn read_index(index: &Path) -> Result<BTreeMap<String, String>, LoadError> {
    let json = json::read(index)?;
    let map = json.object("weight_map")?;
    let mut weight_map = BTreeMap::new();
    for tensor in map.keys() {
        let shard = map.str(tensor)?;
        if shard.is_empty() || shard.contains(['/', '\\', '\0']) || shard == ".." {
            return Err(map.refuse(
                tensor,
                "a file name without directories",
                format!("{shard:?}"),
            ));
        }
        weight_map.insert(tensor.to_owned(), shard.to_owned());
    }
    Ok(weight_map)
}

fn add_file(
    table: &mut TensorTable,
    path: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<(), LoadError> {
    let file = MappedFile::open(path)?;
    let tensors = parse(path, file.bytes())?;
    table.add(file, tensors, wanted)
}

/// Reads the header in `bytes`, the whole file, and checks that the tensors tile the data.
pub(crate) fn parse(file: &Path, bytes: &[u8]) -> Result<Vec<TensorInfo>, LoadError> {
    let truncated = |what: String, expected: u64| LoadError::Truncated {
        file: file.into(),
        what,
        expected,
        found: bytes.len() as u64,
    };
    let malformed = |what: String, expected: &str, found: String| LoadError::Malformed {
        file: file.into(),
        what,
        expected: expected.into(),
        found,
    };
    let Some((header_len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(truncated("header".into(), 8));
    };
    let header_len = u64::from_le_bytes(*header_len);
    if header_len > MAX_HEADER_BYTES {
        let expected = "a header of at most 100000000 bytes";
        return Err(malformed("header".into(), expected, header_len.to_string()));
    }
    let Some(header) = rest.get(..header_len as usize) else {
        return Err(truncated("header".into(), 8 + header_len));
    };
    let header: Header = serde_json::from_slice(header).map_err(|e| {
        malformed(
            "header".into(),
            "a JSON object of tensors",
            json::one_line(&e.to_string()),
        )
    })?;

    let data_start = 8 + header_len;
    let mut tensors = Vec::with_capacity(header.tensors.len());
    let mut entries = header.tensors;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut covered = 0;
    for (name, entry) in entries {
        let what = format!("tensor {name:?}");
        let (begin, end) = entry.data_offsets;
        if begin != covered || end < begin {
            let expected = format!("data from byte {covered} on");
            return Err(malformed(
                what,
                &expected,
                format!("offsets [{begin}, {end}]"),
            ));
        }
        covered = end;
        let file_end = data_start.saturating_add(end);
        if file_end > bytes.len() as u64 {
            return Err(truncated(what, file_end));
        }
        let num_bytes = end - begin;
        let stored = stored_type(&entry.dtype);
        if let Stored::Known(dtype) = stored {
            let elements = entry
                .shape
                .iter()
                .try_fold(1_u64, |n, &dim| n.checked_mul(dim as u64));
            let expected = elements.and_then(|n| n.checked_mul(dtype.block_bytes() as u64));
            if expected != Some(num_bytes) {
                let expected = format!("the bytes of {dtype} {:?}", entry.shape);
                return Err(malformed(what, &expected, num_bytes.to_string()));
            }
        }
        tensors.push(TensorInfo {
            name,
            stored,
            shape: entry.shape,
            offset: data_start + begin,
            num_bytes,
        });
    }
    if data_start + covered != bytes.len() as u64 {
        let expected = format!("data of {covered} bytes");
        let found = bytes.len() as u64 - data_start;
        return Err(malformed("data".into(), &expected, found.to_string()));
    }
    Ok(tensors)
}

fn stored_type(name: &str) -> Stored {
    match name {
        "F32" => Stored::Known(Dtype::F32),
        "F16" => Stored::Known(Dtype::F16),
        "BF16" => Stored::Known(Dtype::Bf16),
        other => Stored::Other(json::one_line(other)),
    }
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// The header's tensors in file order. A duplicate name passes here and fails in the tiling check or the table.
struct Header {
    tensors: Vec<(String, Entry)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(Header { tensors })
            }
        }

        deserializer.deserialize_map(HeaderVisitor)
    }
}
