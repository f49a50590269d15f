//! Times decode_projection over the projections of Llama-3-8B, 32 layers with distinct weights,
//! against the memory's read rate and cuBLAS in the same run.
//!
//! `bench_decode_projection [OUT.json]`. Three chains, each one captured graph, median of the replays:
//! *plain* and *cuBLAS* multiply alone; *fused* is the layer's dataflow, with residuals and SwiGLU.
//! cuBLAS is loaded from `libcublas.so.13` if the loader finds it.

#[path = "bench_decode_projection/cublas.rs"]
mod cublas;

use std::error::Error;

use half::bf16;
use izar_kernels::{
    CudaError, DecodeProjection, Device, DeviceBuffer, Epilogue, Event, Graph, Matrix,
    ProjectionWorkspace, Stream, decode_projection, fill_random, read_stream,
};
use serde_json::json;

const LAYERS: usize = 32;
/// Rows and depth of qkv, output, gate_up, down.
const PROJECTIONS: [(u32, u32); 4] = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)];
const TOKENS: [u32; 8] = [1, 4, 8, 16, 24, 32, 48, 64];
const REPLAYS: usize = 21;
/// Read rate that decode is held against, measured on an H200 (docs/perf/h200-kernels.md).
const CEILING_BYTES_PER_MS: f64 = 4.65e9;

struct Bench {
    stream: Stream,
    workspace: ProjectionWorkspace,
    weights: Vec<[DeviceBuffer<bf16>; 4]>,
    /// Activations: hidden state, second hidden state, qkv, SwiGLU output.
    hidden: [DeviceBuffer<bf16>; 2],
    qkv: DeviceBuffer<bf16>,
    wide: DeviceBuffer<bf16>,
}

fn random(
    stream: &Stream,
    len: usize,
    seed: u32,
    scale: f32,
) -> Result<DeviceBuffer<bf16>, CudaError> {
    let buffer = DeviceBuffer::new(stream.device(), len)?;
    fill_random(stream, &buffer, seed, scale)?;
    Ok(buffer)
}

impl Bench {
    fn new(device: &Device) -> Result<Self, CudaError> {
        let stream = Stream::new(device)?;
        let layer = |layer: usize| -> Result<_, CudaError> {
            let weight = |i: usize| {
                let (rows, depth) = PROJECTIONS[i];
                let scale = 3.4 / (depth as f32).sqrt();
                random(
                    &stream,
                    (rows * depth) as usize,
                    (layer * 4 + i) as u32,
                    scale,
                )
            };
            Ok([weight(0)?, weight(1)?, weight(2)?, weight(3)?])
        };
        let weights = (0..LAYERS).map(layer).collect::<Result<_, _>>()?;
        let activations = |seed, cols: usize| random(&stream, 64 * cols, seed, 2.0);
        Ok(Self {
            workspace: ProjectionWorkspace::new(device, &stream, device.num_multiprocessors()?)?,
            weights,
            hidden: [activations(1000, 4096)?, activations(1001, 4096)?],
            qkv: activations(1002, 28672)?,
            wide: activations(1003, 14336)?,
            stream,
        })
    }

    fn weight_bytes() -> f64 {
        let elements: u64 = PROJECTIONS
            .iter()
            .map(|&(r, d)| u64::from(r) * u64::from(d))
            .sum();
        (elements * 2 * LAYERS as u64) as f64
    }

    /// Median milliseconds of a captured chain.
    fn time(
        &self,
        chain: impl Fn(&Stream) -> Result<(), Box<dyn Error>>,
    ) -> Result<f64, Box<dyn Error>> {
        struct Failure(Box<dyn Error>);
        impl From<CudaError> for Failure {
            fn from(error: CudaError) -> Self {
                Self(error.into())
            }
        }
        // Once outside a graph: libraries load their kernels at first use.
        chain(&self.stream)?;
        self.stream.synchronize()?;
        let graph = Graph::capture(&self.stream, |stream| chain(stream).map_err(Failure))
            .map_err(|failure| failure.0)?;
        let exec = graph.instantiate()?;
        let (start, end) = (
            Event::new(self.stream.device())?,
            Event::new(self.stream.device())?,
        );
        let mut times = Vec::new();
        for replay in 0..REPLAYS + 3 {
            start.record(&self.stream)?;
            // SAFETY: every captured buffer belongs to `self` or to the caller, who waits.
            unsafe { exec.launch(&self.stream) }?;
            end.record(&self.stream)?;
            end.synchronize()?;
            if replay >= 3 {
                times.push(f64::from(end.ms_since(&start)?));
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[REPLAYS / 2])
    }

    fn project(
        &self,
        stream: &Stream,
        weight: (usize, usize),
        x: Matrix<'_>,
        y: Matrix<'_>,
        epilogue: Epilogue<'_>,
    ) -> Result<(), Box<dyn Error>> {
        let (rows, depth) = PROJECTIONS[weight.1];
        let weight = Matrix::dense(&self.weights[weight.0][weight.1], rows, depth)?;
        let projection = DecodeProjection {
            weight,
            x,
            y: y.into(),
            epilogue,
        };
        Ok(decode_projection(stream, &projection, &self.workspace)?)
    }

    fn plain(&self, tokens: u32) -> Result<f64, Box<dyn Error>> {
        let epilogue = Epilogue::Add {
            bias: None,
            residual: None,
        };
        self.time(|stream| {
            for layer in 0..LAYERS {
                for (i, (rows, depth)) in PROJECTIONS.into_iter().enumerate() {
                    let x = Matrix::dense(&self.wide, tokens, depth)?;
                    let y = Matrix::dense(&self.qkv, tokens, rows)?;
                    self.project(stream, (layer, i), x, y, epilogue)?;
                }
            }
            Ok(())
        })
    }

    fn fused(&self, tokens: u32) -> Result<f64, Box<dyn Error>> {
        let none = Epilogue::Add {
            bias: None,
            residual: None,
        };
        let [hidden, middle] = &self.hidden;
        let hidden = Matrix::dense(hidden, tokens, 4096)?;
        let middle = Matrix::dense(middle, tokens, 4096)?;
        let qkv = Matrix::dense(&self.qkv, tokens, 6144)?;
        // Attention is left out: its output is stood in for by the queries.
        let attended = Matrix::strided(&self.qkv, 0, tokens, 4096, 6144)?;
        let wide = Matrix::dense(&self.wide, tokens, 14336)?;
        let add = |residual| Epilogue::Add {
            bias: None,
            residual: Some(residual),
        };
        self.time(|stream| {
            for layer in 0..LAYERS {
                self.project(stream, (layer, 0), hidden, qkv, none)?;
                self.project(stream, (layer, 1), attended, middle, add(hidden))?;
                self.project(stream, (layer, 2), middle, wide, Epilogue::Swiglu)?;
                self.project(stream, (layer, 3), wide, hidden, add(middle))?;
            }
            Ok(())
        })
    }

    fn cublas(&self, blas: &cublas::Cublas, tokens: u32) -> Result<f64, Box<dyn Error>> {
        self.time(|_| {
            for layer in &self.weights {
                for (weight, (rows, depth)) in layer.iter().zip(PROJECTIONS) {
                    blas.project(weight, &self.wide, &self.qkv, rows, depth, tokens)?;
                }
            }
            Ok(())
        })
    }

    /// TB/s of one read of 8 GiB.
    fn read_rate(&self) -> Result<f64, Box<dyn Error>> {
        let input = random(&self.stream, 4 << 30, 2000, 1.0)?;
        let sink = DeviceBuffer::new(self.stream.device(), 1)?;
        let ms = self.time(|stream| Ok(read_stream(stream, &input, &sink)?))?;
        Ok(input.len() as f64 * 2.0 / ms / 1e9)
    }
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let device = Device::open(0)?;
    let bench = Bench::new(&device)?;
    let blas = match cublas::Cublas::load(&bench.stream) {
        Ok(blas) => Some(blas),
        Err(error) => {
            println!("without cuBLAS: {error}");
            None
        }
    };
    let read_rate = bench.read_rate()?;
    let bytes = Bench::weight_bytes();
    let floor_ms = bytes / CEILING_BYTES_PER_MS;
    println!(
        "Llama-3-8B projections x {LAYERS} layers: {:.2} GB, floor {floor_ms:.3} ms at 4.65 TB/s",
        bytes / 1e9
    );
    println!(
        "this device reads {read_rate:.2} TB/s, {} SMs",
        device.num_multiprocessors()?
    );
    println!(
        "{:>3} | {:>8} {:>6} {:>5} {:>6} | {:>8} {:>6} | {:>8} {:>6}",
        "M", "plain ms", "TB/s", "%", "/floor", "fused ms", "/floor", "cuBLAS", "/floor"
    );
    let mut rows = Vec::new();
    for tokens in TOKENS {
        let plain = bench.plain(tokens)?;
        let fused = bench.fused(tokens)?;
        let cublas = blas
            .as_ref()
            .map(|blas| bench.cublas(blas, tokens))
            .transpose()?;
        let rate = bytes / plain / 1e9;
        let shown = cublas.map_or("-".into(), |ms| format!("{ms:8.3} {:6.3}", ms / floor_ms));
        println!(
            "{tokens:>3} | {plain:8.3} {rate:6.2} {:5.1} {:6.3} | {fused:8.3} {:6.3} | {shown}",
            100.0 * rate / 4.65,
            plain / floor_ms,
            fused / floor_ms
        );
        rows.push(
            json!({ "tokens": tokens, "plain_ms": plain, "fused_ms": fused, "cublas_ms": cublas }),
        );
    }
    if !bench.workspace.is_sound(&bench.stream)? {
        return Err("a part of a tile did not come: the times are void".into());
    }
    if let Some(path) = std::env::args().nth(1) {
        let report =
            json!({ "bytes": bytes, "floor_ms": floor_ms, "read_tb_s": read_rate, "chain": rows });
        std::fs::write(path, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}
