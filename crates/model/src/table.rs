//! Tensors of mapped files, by name: what both containers come down to.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::Dtype;
use crate::error::LoadError;
use crate::param::TensorView;

/// A tensor as a file lists it.
#[derive(Clone, Debug)]
pub(crate) struct TensorInfo {
    pub(crate) name: String,
    pub(crate) stored: Stored,
    /// Outermost dimension first.
    pub(crate) shape: Vec<usize>,
    /// First byte, from the start of the file.
    pub(crate) offset: u64,
    pub(crate) num_bytes: u64,
}

/// An element type in a file.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    /// One this crate decodes. Then `offset` and `num_bytes` lie inside the file and fit the shape.
    Known(Dtype),
    /// Any other, by name. Such a tensor's place is not to be used.
    Other(String),
}

/// A file mapped for reading.
pub(crate) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps a regular file.
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let io = |source| LoadError::Io {
            file: path.into(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(io(std::io::Error::other("not a regular file")));
        }
        // SAFETY: the map is private to this struct and only read, as bytes, for which every value is valid. It
        // lives as long as the struct, independently of `file`. Another process truncating the file would turn a later read
        // into SIGBUS; weights are immutable by contract while a server runs, as for every memory-mapping loader.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self {
            path: path.into(),
            map,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Lets the system drop the pages that lie wholly inside `bytes`, if those are of this file.
    fn release(&self, bytes: &[u8]) {
        // At least the page size of every supported system, and a multiple of it.
        const PAGE: usize = 1 << 16;
        let Some(start) = (bytes.as_ptr() as usize).checked_sub(self.map.as_ptr() as usize) else {
            return;
        };
        let (first, last) = (
            start.next_multiple_of(PAGE),
            (start + bytes.len()) / PAGE * PAGE,
        );
        if start + bytes.len() <= self.map.len() && first < last {
            #[cfg(unix)]
            // SAFETY: the map is a file, never written through: dropped pages read the same when touched again.
            // A system that refuses keeps the pages, which is correct, too.
            let _ = unsafe {
                self.map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    first,
                    last - first,
                )
            };
        }
    }
}

/// Where a parameter lies: some rows of a tensor that must have a given shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Source {
    pub(crate) tensor: String,
    /// Outermost dimension first; its last is the width of a row.
    pub(crate) shape: Vec<usize>,
    /// The rows wanted, all but the last dimension flattened.
    pub(crate) rows: Range<usize>,
}

/// All tensors of a checkpoint.
pub(crate) struct TensorTable {
    /// The file that says which tensors there are: the index if sharded.
    listing: PathBuf,
    files: Vec<MappedFile>,
    tensors: HashMap<String, (usize, TensorInfo)>,
}

impl TensorTable {
    pub(crate) fn new(listing: PathBuf) -> Self {
        Self {
            listing,
            files: Vec::new(),
            tensors: HashMap::new(),
        }
    }

    /// Adds a file and those of its tensors that `wanted` lets through.
    pub(crate) fn add(
        &mut self,
        file: MappedFile,
        tensors: Vec<TensorInfo>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(), LoadError> {
        let file_idx = self.files.len();
        for tensor in tensors.into_iter().filter(|t| wanted(&t.name)) {
            match self.tensors.entry(tensor.name.clone()) {
                Entry::Vacant(entry) => entry.insert((file_idx, tensor)),
                Entry::Occupied(_) => {
                    return Err(LoadError::Malformed {
                        file: file.path,
                        what: format!("tensor {:?}", tensor.name),
                        expected: "each tensor once".into(),
                        found: "a duplicate".into(),
                    });
                }
            };
        }
        self.files.push(file);
        Ok(())
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(MappedFile::path)
    }

    /// See [`Checkpoint::release`](crate::Checkpoint::release).
    pub(crate) fn release(&self, bytes: &[u8]) {
        self.files.iter().for_each(|file| file.release(bytes));
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Every tensor with the file it is in, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Path, &TensorInfo)> {
        self.tensors
            .values()
            .map(|(file, info)| (self.files[*file].path(), info))
    }

    /// The view a source describes.
    pub(crate) fn view(&self, source: &Source) -> Result<TensorView<'_>, LoadError> {
        let Some((file_idx, info)) = self.tensors.get(&source.tensor) else {
            return Err(LoadError::MissingTensor {
                file: self.listing.clone(),
                tensor: source.tensor.clone(),
                expected: format!("{:?}", source.shape),
            });
        };
        let file = &self.files[*file_idx];
        let dtype = check(file.path(), info, source)?;
        let cols = *source.shape.last().unwrap_or(&1);
        // `check` has tied the tensor's size to its shape, and the parser both to the file.
        let data = &file.bytes()[info.offset as usize..][..info.num_bytes as usize];
        let all_rows = source.shape.iter().rev().skip(1).product::<usize>();
        let row_bytes = data.len() / all_rows;
        Ok(TensorView {
            name: &info.name,
            dtype,
            rows: source.rows.len(),
            cols,
            data: &data[source.rows.start * row_bytes..source.rows.end * row_bytes],
        })
    }
}

fn check(file: &Path, info: &TensorInfo, source: &Source) -> Result<Dtype, LoadError> {
    if info.shape != source.shape {
        return Err(LoadError::WrongShape {
            file: file.into(),
            tensor: source.tensor.clone(),
            expected: format!("{:?}", source.shape),
            found: format!("{:?}", info.shape),
        });
    }
    match &info.stored {
        Stored::Known(dtype) => Ok(*dtype),
        Stored::Other(found) => Err(LoadError::UnsupportedDtype {
            file: file.into(),
            tensor: source.tensor.clone(),
            expected: Dtype::ALL.map(Dtype::name).join(", "),
            found: found.clone(),
        }),
    }
}

#[cfg(test)]
mod release_tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn released_bytes_read_the_same_and_foreign_ones_are_left_alone() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..1 << 20).map(|i: u32| (i ^ (i >> 8)) as u8).collect();
        file.write_all(&bytes).unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        assert!(mapped.bytes() == bytes);
        for range in [0..bytes.len(), 100..900_000, 5..6, 70_000..140_000] {
            mapped.release(&mapped.bytes()[range]);
            assert!(mapped.bytes() == bytes);
        }
        let foreign = bytes.clone();
        mapped.release(&foreign);
        assert!(foreign == bytes);
    }
}
