//! Dequantisation against the gguf package's (golden files by scripts/make-goldens.py).

use std::fs;
use std::path::Path;

use izar_model::{Dtype, TensorView};

fn golden(dtype: Dtype) -> (Vec<u8>, Vec<f32>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/dequant");
    let blocks = fs::read(dir.join(format!("{dtype}.bin"))).unwrap();
    let values = fs::read(dir.join(format!("{dtype}.f32"))).unwrap();
    let values = values
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    (blocks, values.collect())
}

#[test]
fn every_type_decodes_bit_for_bit_as_the_gguf_package_does() {
    for dtype in Dtype::ALL {
        let (blocks, expected) = golden(dtype);
        let mut decoded = vec![f32::NAN; expected.len()];
        dtype.dequantize(&blocks, &mut decoded);
        let differs = (0..expected.len()).find(|&i| decoded[i].to_bits() != expected[i].to_bits());
        if let Some(i) = differs {
            panic!(
                "{dtype} element {i}: expected {}, decoded {}",
                expected[i], decoded[i]
            );
        }
    }
}

#[test]
fn a_row_of_a_view_decodes_alone() {
    let (blocks, expected) = golden(Dtype::Q6K);
    let view = TensorView {
        name: "golden",
        dtype: Dtype::Q6K,
        rows: 4,
        cols: 256,
        data: &blocks,
    };
    let mut row = vec![0.0; 256];
    view.dequantize_row(2, &mut row);
    assert_eq!(row, expected[512..768]);
    assert_eq!(view.to_f32(), expected);
}

#[test]
fn a_row_must_be_whole_blocks() {
    assert_eq!(Dtype::Q4K.row_bytes(512), Some(288));
    assert_eq!(Dtype::Q4K.row_bytes(32), None);
    assert_eq!(Dtype::Bf16.row_bytes(3), Some(6));
    assert_eq!(Dtype::F32.row_bytes(usize::MAX), None);
}
