//! Files damaged at random: anything but a panic will do, and whatever still opens can be read to the end.

use std::fs;

use izar_model::{Checkpoint, LoadError, Param};
use proptest::prelude::*;

use crate::files::{copy_of, fixture, gguf_bytes, open_gguf};

/// Reads every parameter of what opened; checks that what did not says so in one line.
fn exercise(result: Result<Checkpoint, LoadError>) {
    match result {
        Err(error) => assert!(
            !error.to_string().chars().any(char::is_control),
            "{error:?}"
        ),
        Ok(checkpoint) => {
            checkpoint
                .config()
                .rope
                .frequencies(checkpoint.config().max_model_len());
            for param in Param::all(checkpoint.config()) {
                checkpoint.param(param).unwrap().unwrap().to_f32();
            }
        }
    }
}

/// Where the data of a GGUF or safetensors fixture certainly has begun: flips before it are the interesting ones.
const HEADER_BYTES: usize = 4096;

fn flip(bytes: &mut [u8], flips: &[(usize, u8)]) {
    for &(at, bit) in flips {
        let at = at % bytes.len().min(HEADER_BYTES);
        bytes[at] ^= 1 << bit;
    }
}

fn open_safetensors(bytes: &[u8]) -> Result<Checkpoint, LoadError> {
    let dir = copy_of("llama2");
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    Checkpoint::open(dir.path())
}

fn safetensors_bytes() -> Vec<u8> {
    fs::read(fixture("llama2").join("model.safetensors")).unwrap()
}

fn flips() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((0..HEADER_BYTES, 0..8_u8), 1..6)
}

#[test]
fn control_character_in_an_unexpected_tensors_name_is_escaped() {
    let mut bytes = gguf_bytes("llama31-f16");
    let name = b"rope_freqs.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap();
    bytes[at + 4] = 0x7f;
    let error = open_gguf(&bytes).err().expect("an unexpected tensor");
    assert!(
        matches!(error, LoadError::UnexpectedTensor { .. }),
        "{error:?}"
    );
    exercise(Err(error));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bits_of_a_gguf_file_never_panic(flips in flips()) {
        let mut bytes = gguf_bytes("phi4-longrope-f16");
        flip(&mut bytes, &flips);
        exercise(open_gguf(&bytes));
    }

    #[test]
    fn flipped_bits_of_a_safetensors_file_never_panic(flips in flips()) {
        let mut bytes = safetensors_bytes();
        flip(&mut bytes, &flips);
        exercise(open_safetensors(&bytes));
    }

    #[test]
    fn a_random_u64_anywhere_in_a_gguf_header_never_panics(at in 0..HEADER_BYTES, value: u64, shift in 0..64_u32) {
        let mut bytes = gguf_bytes("qwen3moe-q8_0");
        bytes[at..at + 8].copy_from_slice(&(value >> shift).to_le_bytes());
        exercise(open_gguf(&bytes));
    }

    #[test]
    fn truncation_anywhere_is_an_error(at in 0.0..1.0_f64) {
        let gguf = gguf_bytes("llama31-f16");
        let cut = (gguf.len() as f64 * at) as usize;
        prop_assert!(open_gguf(&gguf[..cut]).is_err());
        let safetensors = safetensors_bytes();
        let cut = (safetensors.len() as f64 * at) as usize;
        prop_assert!(open_safetensors(&safetensors[..cut]).is_err());
    }

    #[test]
    fn flipped_bits_of_a_config_never_panic(flips in flips()) {
        let dir = copy_of("phi4-longrope");
        let path = dir.path().join("config.json");
        let mut bytes = fs::read(&path).unwrap();
        flip(&mut bytes, &flips);
        fs::write(&path, bytes).unwrap();
        exercise(Checkpoint::open(dir.path()));
    }
}

#[test]
fn every_truncation_of_a_header_is_an_error() {
    let gguf = gguf_bytes("llama31-f16");
    for cut in 0..HEADER_BYTES {
        assert!(open_gguf(&gguf[..cut]).is_err(), "cut at {cut}");
    }
}
