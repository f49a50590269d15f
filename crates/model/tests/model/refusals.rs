//! Broken checkpoints: each stops with one line that names the file, the tensor, what was expected and what was found.

use std::fs;
use std::path::Path;

use izar_model::{Checkpoint, LoadError};
use serde_json::json;

use crate::files::{after_string, copy_of, edit_header, edit_json, gguf_bytes, open_gguf, refusal};

const WEIGHTS: &str = "model.safetensors";

fn refuse_dir(dir: &Path, parts: &[&str]) -> LoadError {
    refusal(Checkpoint::open(dir), parts)
}

fn refuse_gguf(bytes: &[u8], parts: &[&str]) -> LoadError {
    refusal(open_gguf(bytes), &[parts, &["model.gguf"]].concat())
}

#[test]
fn a_missing_shard() {
    let dir = copy_of("llama-sharded");
    fs::remove_file(dir.path().join("model-00002-of-00003.safetensors")).unwrap();
    let parts = [
        "model-00002-of-00003.safetensors",
        "no such file",
        "index.json",
        "model.layers.0",
    ];
    assert!(matches!(
        refuse_dir(dir.path(), &parts),
        LoadError::MissingFile { .. }
    ));
}

#[test]
fn a_stray_file_beside_an_index_is_ignored_even_if_broken() {
    let dir = copy_of("llama-sharded");
    fs::write(
        dir.path().join("consolidated.safetensors"),
        b"not safetensors at all",
    )
    .unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.files().len(), 3);
}

#[test]
fn an_index_that_lies_about_a_shard() {
    let dir = copy_of("llama-sharded");
    edit_json(&dir.path().join("model.safetensors.index.json"), |index| {
        index["weight_map"]["lm_head.weight"] = "model-00001-of-00003.safetensors".into();
    });
    refuse_dir(
        dir.path(),
        &[
            "model-00001-of-00003.safetensors",
            "lm_head.weight",
            "no such tensor",
        ],
    );
}

#[test]
fn an_index_that_reaches_out_of_its_directory() {
    for shard in ["../secret.safetensors", "/etc/passwd", "..", ""] {
        let dir = copy_of("llama-sharded");
        edit_json(&dir.path().join("model.safetensors.index.json"), |index| {
            index["weight_map"]["lm_head.weight"] = shard.into();
        });
        refuse_dir(
            dir.path(),
            &[
                "index.json",
                "weight_map.lm_head.weight",
                "without directories",
            ],
        );
    }
}

#[test]
fn missing_weights_say_what_is_there_instead() {
    let dir = copy_of("llama2");
    fs::rename(
        dir.path().join(WEIGHTS),
        dir.path().join("pytorch_model.bin"),
    )
    .unwrap();
    refuse_dir(dir.path(), &[WEIGHTS, "no such file", "convert"]);
    fs::write(dir.path().join("x.gguf"), b"").unwrap();
    refuse_dir(dir.path(), &[".gguf file, give its own path"]);
}

#[test]
fn paths_that_are_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    refuse_dir(
        dir.path(),
        &["without config.json", "config.json or a .gguf file"],
    );
    refuse_dir(&dir.path().join("absent"), &["absent", "found nothing"]);
    let text = dir.path().join("text");
    fs::write(&text, "hello").unwrap();
    refuse_dir(&text, &["text", "does not start with \"GGUF\""]);
}

#[test]
fn a_truncated_safetensors_file() {
    let dir = copy_of("llama2");
    let path = dir.path().join(WEIGHTS);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let (expected, found) = (bytes.len().to_string(), (bytes.len() - 10).to_string());
    let error = refuse_dir(
        dir.path(),
        &[WEIGHTS, "truncated", "tensor", &expected, &found],
    );
    assert!(matches!(error, LoadError::Truncated { .. }));
    fs::write(&path, &bytes[..100]).unwrap();
    refuse_dir(dir.path(), &[WEIGHTS, "truncated", "header", "found 100"]);
    fs::write(&path, b"").unwrap();
    refuse_dir(dir.path(), &[WEIGHTS, "truncated", "header", "found 0"]);
}

#[test]
fn a_wrong_shape_in_safetensors() {
    let dir = copy_of("llama2");
    edit_header(&dir.path().join(WEIGHTS), |header| {
        header["model.layers.1.self_attn.k_proj.weight"]["shape"] = json!([128, 32]);
    });
    let parts = [
        WEIGHTS,
        "model.layers.1.self_attn.k_proj.weight",
        "expected shape [64, 64], found [128, 32]",
    ];
    assert!(matches!(
        refuse_dir(dir.path(), &parts),
        LoadError::WrongShape { .. }
    ));
}

#[test]
fn a_missing_and_a_left_over_tensor() {
    let dir = copy_of("qwen2");
    edit_header(&dir.path().join(WEIGHTS), |header| {
        let tensors = header.as_object_mut().unwrap();
        let bias = tensors
            .remove("model.layers.0.self_attn.q_proj.bias")
            .unwrap();
        tensors.insert("model.layers.0.self_attn.q_proj.bios".into(), bias);
    });
    let parts = [
        WEIGHTS,
        "model.layers.0.self_attn.q_proj.bias",
        "[64]",
        "no such tensor",
    ];
    assert!(matches!(
        refuse_dir(dir.path(), &parts),
        LoadError::MissingTensor { .. }
    ));

    // A Llama has no biases: computing without them would be silently wrong.
    let dir = copy_of("qwen2");
    edit_json(&dir.path().join("config.json"), |c| {
        c["architectures"] = json!(["LlamaForCausalLM"])
    });
    let parts = [
        WEIGHTS,
        "self_attn.k_proj.bias",
        "no such tensor in a LlamaForCausalLM",
    ];
    assert!(matches!(
        refuse_dir(dir.path(), &parts),
        LoadError::UnexpectedTensor { .. }
    ));
}

#[test]
fn an_unread_type_in_safetensors() {
    let dir = copy_of("llama2");
    edit_header(&dir.path().join(WEIGHTS), |header| {
        header["lm_head.weight"]["dtype"] = "F8_E4M3".into();
    });
    let parts = [
        WEIGHTS,
        "lm_head.weight",
        "expected one of F32, F16, BF16",
        "found F8_E4M3",
    ];
    assert!(matches!(
        refuse_dir(dir.path(), &parts),
        LoadError::UnsupportedDtype { .. }
    ));
}

#[test]
fn safetensors_data_must_be_tiled_and_sized_by_its_tensors() {
    for (offsets, parts) in [
        (json!([0, 16383]), ["lm_head.weight", "bytes of F16"]),
        (json!([2, 16384]), ["lm_head.weight", "data from byte"]),
        (json!([16384, 0]), ["tensor", "data from byte"]),
        (json!([0, u64::MAX]), ["tensor", "18446744073709551615"]),
    ] {
        let dir = copy_of("llama2");
        edit_header(&dir.path().join(WEIGHTS), |header| {
            assert_eq!(header["lm_head.weight"]["data_offsets"], json!([0, 16384]));
            header["lm_head.weight"]["data_offsets"] = offsets;
        });
        refuse_dir(dir.path(), &[&parts[..], &[WEIGHTS]].concat());
    }
    let dir = copy_of("llama2");
    let path = dir.path().join(WEIGHTS);
    fs::write(&path, [fs::read(&path).unwrap(), vec![0; 4]].concat()).unwrap();
    refuse_dir(dir.path(), &[WEIGHTS, "data", "expected data of"]);
}

#[test]
fn broken_json() {
    let dir = copy_of("llama2");
    fs::write(dir.path().join("config.json"), "{\"hidden_size\": 64,").unwrap();
    refuse_dir(dir.path(), &["config.json", "valid JSON", "line 1"]);
    fs::write(dir.path().join("config.json"), "[]").unwrap();
    refuse_dir(dir.path(), &["config.json", "an object", "a list of 0"]);
}

#[test]
fn a_truncated_gguf_file() {
    let bytes = gguf_bytes("llama2-q8_0");
    let error = refuse_gguf(&bytes[..bytes.len() - 1000], &["truncated", "tensor"]);
    assert!(matches!(error, LoadError::Truncated { .. }));
    refuse_gguf(&bytes[..300], &["truncated", "found 300"]);
}

#[test]
fn a_wrong_shape_in_a_gguf_file() {
    let mut bytes = gguf_bytes("llama2-q8_0");
    let at = after_string(&bytes, "blk.1.ffn_down.weight");
    bytes[at + 4] = 32; // innermost dimension: 96
    let parts = [
        "blk.1.ffn_down.weight",
        "expected shape [64, 96], found [64, 32]",
    ];
    assert!(matches!(
        refuse_gguf(&bytes, &parts),
        LoadError::WrongShape { .. }
    ));
    bytes[at + 4] = 97;
    refuse_gguf(
        &bytes,
        &[
            "blk.1.ffn_down.weight",
            "multiple of 32 elements of Q8_0",
            "found 97",
        ],
    );
}

#[test]
fn an_unread_quantisation_in_a_gguf_file() {
    for (id, name) in [(10, "Q2_K"), (20, "IQ4_NL"), (99, "ggml type 99")] {
        let mut bytes = gguf_bytes("llama2-q8_0");
        let at = after_string(&bytes, "blk.0.attn_v.weight");
        bytes[at + 4 + 16] = id; // after the dimension count and two dimensions
        let parts = [
            "blk.0.attn_v.weight",
            "unsupported type",
            "Q4_K",
            &format!("found {name}"),
        ];
        assert!(matches!(
            refuse_gguf(&bytes, &parts),
            LoadError::UnsupportedDtype { .. }
        ));
    }
}

#[test]
fn an_unknown_architecture_in_a_gguf_file() {
    let mut bytes = gguf_bytes("llama2-q8_0");
    let at = after_string(&bytes, "general.architecture");
    bytes[at + 12..at + 17].copy_from_slice(b"gemma");
    let parts = ["unknown architecture", "qwen3moe", "found \"gemma\""];
    assert!(matches!(
        refuse_gguf(&bytes, &parts),
        LoadError::UnknownArchitecture { .. }
    ));
}

#[test]
fn an_unknown_rope_type_in_a_gguf_file() {
    let mut bytes = gguf_bytes("qwen3-yarn-q8_0");
    let at = after_string(&bytes, "qwen3.rope.scaling.type");
    bytes[at + 12..at + 16].copy_from_slice(b"spin");
    let parts = [
        "unsupported rope type",
        "linear, yarn, longrope",
        "\"spin\"",
    ];
    assert!(matches!(
        refuse_gguf(&bytes, &parts),
        LoadError::UnsupportedRope { .. }
    ));
}

#[test]
fn gguf_tensors_missing_or_displaced() {
    let mut bytes = gguf_bytes("qwen2-q8_0");
    let end = after_string(&bytes, "blk.0.attn_q.bias");
    bytes[end - 1] = b'z';
    refuse_gguf(
        &bytes,
        &["blk.0.attn_q.bias", "expected shape [64]", "no such tensor"],
    );

    let mut bytes = gguf_bytes("llama2-q8_0");
    let at = after_string(&bytes, "blk.0.attn_v.weight") + 4 + 16 + 4;
    bytes[at] += 1;
    refuse_gguf(&bytes, &["blk.0.attn_v.weight", "an offset multiple of 32"]);
    bytes[at..at + 8].copy_from_slice(&(u64::MAX - 31).to_le_bytes());
    refuse_gguf(&bytes, &["blk.0.attn_v.weight", "truncated"]);
}

#[test]
fn gguf_headers_of_other_versions_and_byte_orders() {
    let mut bytes = gguf_bytes("llama2-q8_0");
    bytes[4..8].copy_from_slice(&1_u32.to_le_bytes());
    refuse_gguf(&bytes, &["version 2 or 3", "found 1"]);
    bytes[4..8].copy_from_slice(&3_u32.to_be_bytes());
    refuse_gguf(&bytes, &["version 2 or 3", "big-endian"]);
    bytes[4..8].copy_from_slice(&2_u32.to_le_bytes());
    open_gguf(&bytes).unwrap();
}

#[test]
fn gguf_metadata_of_the_wrong_type() {
    let mut bytes = gguf_bytes("llama2-q8_0");
    let at = after_string(&bytes, "llama.block_count");
    bytes[at] = 6; // f32 instead of u32
    refuse_gguf(&bytes, &["llama.block_count", "non-negative integer"]);
    bytes[at] = 77;
    refuse_gguf(
        &bytes,
        &["llama.block_count", "a value type of 0 to 12", "77"],
    );
}

#[test]
fn a_name_given_twice_in_a_gguf_file() {
    let mut bytes = gguf_bytes("llama2-q8_0");
    let name = after_string(&bytes, "blk.0.attn_k.weight") - "k.weight".len();
    bytes[name] = b'v';
    refuse_gguf(
        &bytes,
        &["blk.0.attn_v.weight", "each tensor once", "a duplicate"],
    );

    let mut bytes = gguf_bytes("llama2-q8_0");
    let key = after_string(&bytes, "tokenizer.ggml.bos_token_id") - "bos_token_id".len();
    bytes[key] = b'e';
    refuse_gguf(
        &bytes,
        &[
            "tokenizer.ggml.eos_token_id",
            "each key once",
            "a duplicate",
        ],
    );
}
