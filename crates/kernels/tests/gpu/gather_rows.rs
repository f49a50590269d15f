//! gather_rows and embed: copies, bit for bit.

use half::bf16;
use izar_kernels::{DeviceBuffer, LaunchError, Matrix, embed, gather_rows};

use crate::{Gpu, POISON, gpu};

fn check(gpu: &mut Gpu, table_rows: u32, width: u32, rows: &[u32]) {
    let (table_stride, y_stride) = (width + 8, width + 16);
    let table = gpu.random((table_rows * table_stride) as usize, 2.0);
    let list = DeviceBuffer::from_slice(&gpu.stream, rows).unwrap();
    let y = gpu.poisoned((rows.len() + 1) * y_stride as usize);
    let table_view = Matrix::strided(&table, 0, table_rows, width, table_stride).unwrap();
    let y_view = Matrix::strided(&y, 0, rows.len() as u32, width, y_stride).unwrap();
    gather_rows(&gpu.stream, table_view, &list, y_view).unwrap();
    let (table, got) = (gpu.read(&table), gpu.read(&y));
    for (i, got) in got.chunks(y_stride as usize).enumerate() {
        let written = if i < rows.len() { width as usize } else { 0 };
        let is_poison = |value: &bf16| value.to_bits() == POISON;
        assert!(got[written..].iter().all(is_poison), "row {i} of {rows:?}");
        let got = &got[..written];
        match rows.get(i) {
            Some(&row) if row < table_rows => {
                let wanted = &table[(row * table_stride) as usize..][..written];
                assert_eq!(got, wanted, "row {i}: {row} of {table_rows}");
            }
            _ => assert!(got.iter().all(|value| value.is_nan()), "row {i}"),
        }
    }
}

#[test]
fn rows_are_copied_and_rows_outside_the_table_are_nan() {
    let Some(mut gpu) = gpu() else { return };
    for width in [8, 1024, 1032, 3584, 5120] {
        check(&mut gpu, 1, width, &[0]);
        check(&mut gpu, 500, width, &[499, 0, 500, 7, 7, u32::MAX, 1]);
        let many: Vec<u32> = (0..3000).map(|i| i * 37 % 501).collect();
        check(&mut gpu, 500, width, &many);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let Some(mut gpu) = gpu() else { return };
    let buffer = gpu.random(4096, 1.0);
    let list = DeviceBuffer::from_slice(&gpu.stream, &[0_u32; 3]).unwrap();
    let view = |rows, width| Matrix::dense(&buffer, rows, width).unwrap();
    let refused = |table, y, wanted: &str| match embed(&gpu.stream, table, &list, y) {
        Err(LaunchError::Argument { op, what, .. }) => assert_eq!((op, what), ("embed", wanted)),
        other => panic!("{other:?}"),
    };
    refused(view(4, 64), view(3, 72), "the width of y");
    refused(view(4, 60), view(3, 60), "the width");
    refused(view(4, 64), view(4, 64), "the row list");
    let shifted = Matrix::strided(&buffer, 4, 3, 64, 64).unwrap();
    refused(shifted, view(3, 64), "rows");
}
