//! Ways to get at, copy and break the fixtures.

use std::fs;
use std::path::{Path, PathBuf};

use izar_model::{Checkpoint, LoadError};
use serde_json::Value;
use tempfile::TempDir;

/// The directory of a fixture.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(name)
}

/// What to give `Checkpoint::open` for a fixture.
pub fn model_path(name: &str) -> PathBuf {
    let gguf = fixture(name).join("model.gguf");
    if gguf.exists() { gguf } else { fixture(name) }
}

/// Every fixture's name.
pub fn all_fixtures() -> Vec<String> {
    let entries = fs::read_dir(fixture("")).unwrap().map(Result::unwrap);
    let dirs = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let mut names: Vec<String> = dirs.map(|d| d.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A writable copy of a Hugging Face fixture.
pub fn copy_of(name: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        fs::write(
            copy.path().join(entry.file_name()),
            fs::read(entry.path()).unwrap(),
        )
        .unwrap();
    }
    copy
}

/// Edits a JSON file in place.
pub fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    edit(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// Edits the header of a safetensors file in place.
pub fn edit_header(path: &Path, edit: impl FnOnce(&mut Value)) {
    let bytes = fs::read(path).unwrap();
    let (len, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let mut value = serde_json::from_slice(header).unwrap();
    edit(&mut value);
    let header = value.to_string();
    let parts = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
    ];
    fs::write(path, parts.concat()).unwrap();
}

/// The bytes of a GGUF fixture.
pub fn gguf_bytes(name: &str) -> Vec<u8> {
    fs::read(fixture(name).join("model.gguf")).unwrap()
}

/// Where the bytes after a length-prefixed string in a GGUF header start.
pub fn after_string(bytes: &[u8], text: &str) -> usize {
    let needle = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let found = bytes
        .windows(needle.len())
        .position(|window| window == needle);
    found.unwrap_or_else(|| panic!("{text} is in the header")) + needle.len()
}

/// Opens bytes as a GGUF file.
pub fn open_gguf(bytes: &[u8]) -> Result<Checkpoint, LoadError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    Checkpoint::open(&path)
}

/// The message of a refusal, checked to be one line that holds every one of `parts`.
pub fn refusal(result: Result<Checkpoint, LoadError>, parts: &[&str]) -> LoadError {
    let error = match result {
        Ok(checkpoint) => panic!("opened: {:?}", checkpoint.config()),
        Err(error) => error,
    };
    let message = error.to_string();
    assert!(
        !message.chars().any(char::is_control),
        "not one line: {message:?}"
    );
    for part in parts {
        assert!(message.contains(part), "no {part:?} in {message:?}");
    }
    error
}
