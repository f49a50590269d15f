//! Made-up weights.

use std::collections::HashSet;
use std::fs;

use izar_model::{Checkpoint, Dtype, LayerParam, LoadFormat, Param};

use crate::files::{fixture, model_path};

#[test]
fn a_config_alone_is_enough_and_always_gives_the_same_weights() {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(
        fixture("qwen3moe").join("config.json"),
        dir.path().join("config.json"),
    )
    .unwrap();
    let a = Checkpoint::open_with(dir.path(), LoadFormat::Dummy).unwrap();
    let b = Checkpoint::dummy(a.config().clone());
    for param in Param::all(a.config()) {
        let (a, b) = (
            a.param(param).unwrap().unwrap(),
            b.param(param).unwrap().unwrap(),
        );
        assert_eq!(a.dtype, Dtype::Bf16);
        assert_eq!(a.data, b.data, "{param:?}");
    }
    assert!(a.files().is_empty());
    assert!(a.total_bytes() > 0);
}

#[test]
fn weights_are_small_and_random_and_norms_are_one() {
    let real = Checkpoint::open(&model_path("llama2")).unwrap();
    let dummy = Checkpoint::dummy(real.config().clone());
    let values = |p| dummy.param(p).unwrap().unwrap().to_f32();
    assert!(values(Param::FinalNorm).iter().all(|&v| v == 1.0));
    let q = values(Param::Layer(0, LayerParam::Wq));
    let mean = q.iter().sum::<f32>() / q.len() as f32;
    let std = (q.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / q.len() as f32).sqrt();
    assert!(
        mean.abs() < 0.002 && (std - 0.02).abs() < 0.002,
        "mean {mean}, std {std}"
    );
    assert_ne!(q, values(Param::Layer(1, LayerParam::Wq)));
}

#[test]
fn no_two_rows_of_the_embedding_are_equal() {
    let mut config = Checkpoint::open(&model_path("llama2"))
        .unwrap()
        .config()
        .clone();
    config.vocab_size = 40_000; // several times round the repeating stream
    let dummy = Checkpoint::dummy(config);
    let embedding = dummy.param(Param::TokenEmbedding).unwrap().unwrap();
    let rows: HashSet<&[u8]> = (0..embedding.rows).map(|row| embedding.row(row)).collect();
    assert_eq!(rows.len(), 40_000);
}

#[test]
fn a_quantised_file_is_imitated_in_f32() {
    let dummy = Checkpoint::open_with(&model_path("llama2-q8_0"), LoadFormat::Dummy).unwrap();
    assert_eq!(
        dummy.param(Param::TokenEmbedding).unwrap().unwrap().dtype,
        Dtype::F32
    );
    assert!(dummy.gguf().is_some());
}
