//! Rotary frequencies against transformers' (golden file by scripts/make-goldens.py).

use std::fs;
use std::path::Path;

use izar_model::{Checkpoint, LoadFormat};
use serde_json::Value;

#[test]
fn frequencies_equal_those_of_transformers_for_every_scaling() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/rope.json");
    let golden: Value = serde_json::from_slice(&fs::read(golden).unwrap()).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), case["config"].to_string()).unwrap();
        let checkpoint = Checkpoint::open_with(dir.path(), LoadFormat::Dummy).unwrap();
        let frequencies = checkpoint
            .config()
            .rope
            .frequencies(case["max_len"].as_u64().unwrap() as usize);

        let attention = case["attention_factor"].as_f64().unwrap();
        assert!(
            (f64::from(frequencies.attention_factor) - attention).abs() < 1e-6,
            "{name}"
        );
        let expected = case["inv_freq"].as_array().unwrap();
        assert_eq!(frequencies.inv_freq.len(), expected.len(), "{name}");
        for (i, (&got, expected)) in frequencies.inv_freq.iter().zip(expected).enumerate() {
            let expected = expected.as_f64().unwrap();
            let relative = (f64::from(got) - expected).abs() / expected;
            assert!(
                relative < 2e-6,
                "{name} pair {i}: expected {expected}, got {got}"
            );
        }
    }
}
