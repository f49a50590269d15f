//! Everything but attention.

use half::bf16;

use super::chain::Chain;
use super::{BenchError, Cost, ModelShape, Row};
use crate::decode_projection::{
    DecodeProjection, Epilogue, ProjectionWorkspace, decode_projection,
};
use crate::gather_rows::embed;
use crate::linear::{Linear, LinearProjection};
use crate::matrix::{Matrix, Output};
use crate::memory::DeviceBuffer;
use crate::paged_decode_attention::KvCache;
use crate::read_stream::read_stream;
use crate::rms_norm::{RmsNorm, rms_norm};
use crate::rope_and_kv_write::{RopeAndKvWrite, RopeTable, rope_and_kv_write};
use crate::swiglu::swiglu;

/// Launches of a chain.
const LAUNCHES: usize = 32;
const DECODE_TOKENS: [u32; 5] = [1, 8, 16, 32, 64];
const LINEAR_TOKENS: [u32; 6] = [72, 96, 128, 256, 512, 2048];
const SMALL_TOKENS: [u32; 5] = [1, 8, 64, 512, 2048];
const MAX_TOKENS: u32 = 2048;

/// The memory's read rate.
pub(super) fn read(chain: &Chain<'_>, note: &mut dyn FnMut(Row)) -> Result<(), BenchError> {
    let input = chain.random(2 << 30, 1.0)?;
    let sink = DeviceBuffer::new(chain.stream.device(), 1)?;
    let us = chain.time(1, |stream, _| Ok(read_stream(stream, &input, &sink)?))?;
    let cost = Cost {
        bytes: 2.0 * input.len() as f64,
        flops: 0.0,
    };
    note(Row::new("read_stream", "4 GiB".into(), 0, us, cost));
    Ok(())
}

/// Weights of one projection, several copies, and random inputs and outputs for [`MAX_TOKENS`].
struct Weights {
    copies: Vec<DeviceBuffer<bf16>>,
    rows: u32,
    depth: u32,
}

impl Weights {
    fn new(chain: &Chain<'_>, rows: u32, depth: u32) -> Result<Self, BenchError> {
        let scale = 3.4 / (depth as f32).sqrt();
        Ok(Self {
            copies: chain.uncached(rows as usize * depth as usize, scale)?,
            rows,
            depth,
        })
    }

    fn view(&self, launch: usize) -> Result<Matrix<'_>, BenchError> {
        let copy = &self.copies[launch % self.copies.len()];
        Ok(Matrix::dense(copy, self.rows, self.depth)?)
    }

    fn shape(&self, name: &str) -> String {
        format!("{name} {}x{}", self.rows, self.depth)
    }

    /// Weights and activations once each.
    fn cost(&self, tokens: u32, output_bytes: f64, num_outputs: u32) -> Cost {
        let [rows, depth, tokens, outputs] =
            [self.rows, self.depth, tokens, num_outputs].map(f64::from);
        Cost {
            bytes: 2.0 * rows * depth + tokens * (2.0 * depth + output_bytes * outputs),
            flops: 2.0 * rows * depth * tokens,
        }
    }
}

pub(super) fn decode_projections(
    chain: &Chain<'_>,
    shape: &ModelShape,
    note: &mut dyn FnMut(Row),
) -> Result<(), BenchError> {
    let device = chain.stream.device();
    let workspace = ProjectionWorkspace::new(device, chain.stream, device.num_multiprocessors()?)?;
    let head = [("head", shape.vocab, shape.hidden)];
    for (name, rows, depth) in shape.projections().into_iter().chain(head) {
        let weights = Weights::new(chain, rows, depth)?;
        let x = chain.random(64 * depth as usize, 2.0)?;
        let skip = chain.random(64 * rows as usize, 2.0)?;
        let y = DeviceBuffer::<bf16>::new(device, 64 * rows as usize)?;
        let logits = DeviceBuffer::<f32>::new(device, 64 * rows as usize)?;
        let is_swiglu = name == "gate_up";
        let has_residual = matches!(name, "output" | "down");
        let outputs = if is_swiglu { rows / 2 } else { rows };
        for tokens in DECODE_TOKENS {
            let skip = Matrix::dense(&skip, tokens, rows)?;
            let y: Output<'_> = match name {
                "head" => Matrix::dense(&logits, tokens, rows)?.into(),
                _ => Matrix::dense(&y, tokens, outputs)?.into(),
            };
            let epilogue = match is_swiglu {
                true => Epilogue::Swiglu,
                false => Epilogue::Add {
                    bias: None,
                    residual: has_residual.then_some(skip),
                },
            };
            let x = Matrix::dense(&x, tokens, depth)?;
            let us = chain.time(LAUNCHES, |stream, launch| {
                let projection = DecodeProjection {
                    weight: weights.view(launch)?,
                    x,
                    y,
                    epilogue,
                };
                Ok(decode_projection(stream, &projection, &workspace)?)
            })?;
            let output_bytes = if y.is_f32() { 4.0 } else { 2.0 };
            let cost = weights.cost(tokens, output_bytes, outputs);
            note(Row::new(
                "decode_projection",
                weights.shape(name),
                tokens,
                us,
                cost,
            ));
        }
    }
    Ok(())
}

pub(super) fn linears(
    chain: &Chain<'_>,
    shape: &ModelShape,
    note: &mut dyn FnMut(Row),
) -> Result<(), BenchError> {
    let device = chain.stream.device();
    let linear = Linear::new(device, chain.stream)?;
    for (name, rows, depth) in shape.projections() {
        let weights = Weights::new(chain, rows, depth)?;
        let x = chain.random((MAX_TOKENS * depth) as usize, 2.0)?;
        let y = chain.random((MAX_TOKENS * rows) as usize, 2.0)?;
        let has_residual = matches!(name, "output" | "down");
        for tokens in LINEAR_TOKENS {
            let (x, y) = (
                Matrix::dense(&x, tokens, depth)?,
                Matrix::dense(&y, tokens, rows)?,
            );
            let us = chain.time(LAUNCHES, |stream, launch| {
                let projection = LinearProjection {
                    weight: weights.view(launch)?,
                    x,
                    y: y.into(),
                    bias: None,
                    residual: has_residual.then_some(y),
                };
                Ok(linear.project(stream, &projection)?)
            })?;
            let cost = weights.cost(tokens, 2.0, rows);
            note(Row::new("linear", weights.shape(name), tokens, us, cost));
        }
    }
    Ok(())
}

/// Norms, heads, embeddings and SwiGLU: activations stay in the second-level cache, as in a step.
pub(super) fn small(
    chain: &Chain<'_>,
    shape: &ModelShape,
    note: &mut dyn FnMut(Row),
) -> Result<(), BenchError> {
    let (hidden, inner) = (shape.hidden, shape.intermediate);
    let rows = |width: u32| chain.random((MAX_TOKENS * width) as usize, 2.0);
    let (x, y, wide, qkv) = (
        rows(hidden)?,
        rows(hidden)?,
        rows(2 * inner)?,
        rows(shape.qkv())?,
    );
    let table = chain.random(shape.vocab as usize * hidden as usize, 1.0)?;
    let norm = chain.random(hidden as usize, 2.0)?;
    let slot = (shape.num_kv_heads * shape.head_dim) as usize;
    let (k, v) = (
        chain.random(MAX_TOKENS as usize * slot, 1.0)?,
        chain.random(MAX_TOKENS as usize * slot, 1.0)?,
    );
    let frequencies = vec![0.01; shape.head_dim as usize / 2];
    let angles = RopeTable::new(chain.stream, &frequencies, 1.0, MAX_TOKENS as usize)?;
    let counting: Vec<u32> = (0..MAX_TOKENS).collect();
    let counting = DeviceBuffer::from_slice(chain.stream, &counting)?;
    for tokens in SMALL_TOKENS {
        let view = |buffer, width| Matrix::dense(buffer, tokens, width);
        let (x, y) = (view(&x, hidden)?, view(&y, hidden)?);
        let cost = |elements: u32| Cost {
            bytes: 2.0 * f64::from(tokens) * f64::from(elements),
            flops: 0.0,
        };
        let mut note = |kernel, width: u32, us, cost| {
            note(Row::new(kernel, width.to_string(), tokens, us, cost));
        };
        let normed = RmsNorm {
            x,
            residual: None,
            weight: Matrix::dense(&norm, 1, hidden)?,
            y,
            epsilon: 1e-5,
        };
        let us = chain.time(LAUNCHES, |stream, _| Ok(rms_norm(stream, &normed)?))?;
        note("rms_norm", hidden, us, cost(2 * hidden));

        let heads = RopeAndKvWrite {
            qkv: view(&qkv, shape.qkv())?,
            cache: KvCache {
                k: &k,
                v: &v,
                num_kv_heads: shape.num_kv_heads,
                head_dim: shape.head_dim,
            },
            norms: None,
            table: &angles,
            interleaved: false,
            positions: &counting,
            kv_slots: &counting,
        };
        let us = chain.time(LAUNCHES, |stream, _| Ok(rope_and_kv_write(stream, &heads)?))?;
        note("rope_and_kv_write", shape.qkv(), us, cost(2 * shape.qkv()));

        let table = Matrix::dense(&table, shape.vocab, hidden)?;
        let us = chain.time(LAUNCHES, |stream, _| {
            Ok(embed(stream, table, &counting, y)?)
        })?;
        note("embed", hidden, us, cost(2 * hidden));

        let (both, out) = (view(&wide, 2 * inner)?, view(&wide, inner)?);
        let us = chain.time(LAUNCHES, |stream, _| Ok(swiglu(stream, both, out)?))?;
        note("swiglu", inner, us, cost(3 * inner));
    }
    Ok(())
}
