//! What keeps a server from starting is said in one line that names the file and what was expected.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;

use crate::server::{izar, model_path};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(name)
}

/// A copy of a fixture's files but for `left_out`.
fn copy_of(name: &str, left_out: &str) -> TempDir {
    let copy = tempfile::tempdir().expect("a directory");
    for entry in fs::read_dir(fixture(name)).expect(name) {
        let entry = entry.expect("an entry");
        if entry.file_name() != left_out {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
        }
    }
    copy
}

/// The one line that `izar serve MODEL` leaves with.
#[track_caller]
fn refusal(model: &Path, flags: &[&str]) -> String {
    let output = izar()
        .args(["--log", "error", "serve"])
        .arg(model)
        .args(["--port", "0"])
        .args(flags)
        .output();
    line_of(&output.expect("izar runs"))
}

#[track_caller]
fn line_of(output: &Output) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty());
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 1, "one line: {stderr}");
    let line = lines[0].strip_prefix("izar: ").expect("who says so");
    eprintln!("{line}");
    line.to_owned()
}

#[track_caller]
fn names(line: &str, what: &[&str]) {
    for what in what {
        assert!(line.contains(what), "does not name {what}: {line}");
    }
}

#[test]
fn truncated_gguf_names_file_and_tensor() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("cut.gguf");
    let whole = fs::read(model_path()).expect("a model");
    fs::write(&path, &whole[..whole.len() / 2]).expect("written");
    names(&refusal(&path, &[]), &["cut.gguf", "blk."]);
    // In the middle of the metadata.
    fs::write(&path, &whole[..1000]).expect("written");
    names(&refusal(&path, &[]), &["cut.gguf"]);
}

#[test]
fn unknown_architecture_is_named_with_those_that_are_known() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("other.gguf");
    let mut bytes = fs::read(fixture("llama2-q8_0/model.gguf")).expect("a fixture");
    let key = b"general.architecture";
    let at = bytes
        .windows(key.len())
        .position(|window| window == key)
        .expect("the key");
    // A type and a length stand before the value.
    let value = at + key.len() + 4 + 8;
    assert_eq!(&bytes[value..value + 5], b"llama");
    bytes[value..value + 5].copy_from_slice(b"mamba");
    fs::write(&path, bytes).expect("written");
    names(&refusal(&path, &[]), &["other.gguf", "mamba", "llama"]);

    let dir = copy_of("llama2", "");
    let config = dir.path().join("config.json");
    let text = fs::read_to_string(&config).expect("a config");
    fs::write(
        &config,
        text.replace("LlamaForCausalLM", "MambaForCausalLM")
            .replace("\"llama\"", "\"mamba\""),
    )
    .expect("written");
    names(&refusal(dir.path(), &[]), &["config.json", "Mamba"]);
}

#[test]
fn missing_shard_is_named() {
    let shard = "model-00002-of-00003.safetensors";
    let dir = copy_of("llama-sharded", shard);
    names(&refusal(dir.path(), &[]), &[shard]);
}

#[test]
fn wrong_shape_names_file_tensor_and_what_was_expected() {
    let dir = copy_of("llama-sharded", "");
    let config = dir.path().join("config.json");
    let text = fs::read_to_string(&config).expect("a config");
    fs::write(
        &config,
        text.replace("\"intermediate_size\": 96", "\"intermediate_size\": 80"),
    )
    .expect("written");
    let line = refusal(dir.path(), &[]);
    names(
        &line,
        &[".safetensors", "model.layers.", "mlp.", "80", "96"],
    );
}

#[test]
fn what_is_not_a_model_is_said_to_be_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let nothing = dir.path().join("nothing.gguf");
    names(&refusal(&nothing, &[]), &["nothing.gguf"]);
    names(&refusal(dir.path(), &[]), &["config.json"]);
    let text = dir.path().join("text.gguf");
    fs::write(&text, "not a model").expect("written");
    names(&refusal(&text, &[]), &["text.gguf", "GGUF"]);
    // A whole checkpoint without its text side.
    names(&refusal(&fixture("llama2"), &[]), &["tokenizer"]);
}

#[test]
fn impossible_flags_are_refused_with_what_is_possible() {
    let model = model_path();
    names(
        &refusal(&model, &["--max-model-len", "100000"]),
        &["100000", "8192"],
    );
    let line = refusal(&model, &["--max-model-len", "1000", "--num-kv-blocks", "8"]);
    names(&line, &["1000", "129"]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = taken.local_addr().expect("an address").port().to_string();
    let output = izar()
        .arg("serve")
        .arg(&model)
        .args(["--port", &port])
        .output();
    names(&line_of(&output.expect("izar runs")), &[&port, "--port"]);
}
