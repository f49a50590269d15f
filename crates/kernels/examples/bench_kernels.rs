//! Times every kernel of Llama-3-8B's step against its floor, and the algorithms of `linear` against each other.
//!
//! `bench_kernels [OUT.json]`.

use std::error::Error;

use izar_kernels::bench::{self, ModelShape};
use izar_kernels::{Device, DeviceBuffer, Linear, LinearProjection, Matrix, Stream, fill_random};
use serde_json::json;

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let device = Device::open(0)?;
    println!("{}", bench::TABLE_HEAD);
    let rows = bench::run(&device, &ModelShape::LLAMA_3_8B, &mut |row| {
        println!("{row}")
    })?;
    let algorithms = algorithms(&device)?;
    if let Some(path) = std::env::args().nth(1) {
        let report = json!({ "kernels": rows, "linear_algorithms": algorithms });
        std::fs::write(path, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

/// Times of the first eight algorithms for each projection, weights in the cache if they fit.
fn algorithms(device: &Device) -> Result<Vec<serde_json::Value>, Box<dyn Error>> {
    let stream = Stream::new(device)?;
    let linear = Linear::new(device, &stream)?;
    println!("{linear:?}");
    let mut found = Vec::new();
    for (rows, depth) in [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)] {
        let random = |len: u32, scale| {
            let buffer = DeviceBuffer::new(device, len as usize)?;
            fill_random(&stream, &buffer, len, scale)?;
            Ok::<_, izar_kernels::CudaError>(buffer)
        };
        let weight = random(rows * depth, 3.4 / (depth as f32).sqrt())?;
        let (x, y) = (random(2048 * depth, 2.0)?, random(2048 * rows, 2.0)?);
        for tokens in [72, 96, 128, 256, 512, 2048] {
            let projection = LinearProjection {
                weight: Matrix::dense(&weight, rows, depth)?,
                x: Matrix::dense(&x, tokens, depth)?,
                y: Matrix::dense(&y, tokens, rows)?.into(),
                bias: None,
                residual: None,
            };
            let us = linear.tune(&stream, &projection, 8, 10)?;
            println!("linear [{rows}, {depth}] {tokens:>5}: {us:.1?} us");
            found.push(json!({ "rows": rows, "depth": depth, "tokens": tokens, "us": us }));
        }
    }
    Ok(found)
}
