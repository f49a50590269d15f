//! The device's sampler against the CPU's: the same logits and bindings must give the same tokens, finish reasons, errors,
//! ranks and order of logprobs, step by step.
//!
//! Inputs are random; the seed is printed and can be set by `IZAR_TEST_SEED`. On a machine without a device the tests pass
//! after saying so.

mod cases;
mod check;
#[path = "../support/masked_ring.rs"]
mod masked_ring;
mod masks;
mod scores;

use izar_engine::cuda::sampler::{DeviceSampler, DeviceSamplerOptions};
use izar_kernels::{Device, DeviceBuffer, StepInputs, Stream};

/// A device with a sampler, and room for the inputs of its steps.
struct Gpu {
    stream: Stream,
    sampler: DeviceSampler,
    inputs: StepInputs,
    logits: DeviceBuffer<f32>,
    stride: usize,
    vocab_size: usize,
}

const EOS_IDS: [u32; 3] = [2, 3, 1 << 30];
const MAX_MODEL_LEN: usize = 600;

/// `stride` elements from one row of logits to the next.
fn gpu(vocab_size: usize, stride: usize, max_num_seqs: usize) -> Option<Gpu> {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("nothing checked: {error}");
            return None;
        }
    };
    let stream = Stream::new(&device).unwrap();
    let options = DeviceSamplerOptions {
        max_num_seqs: max_num_seqs as u32,
        max_model_len: MAX_MODEL_LEN as u32,
        vocab_size: vocab_size as u32,
        eos_ids: EOS_IDS.to_vec(),
    };
    Some(Gpu {
        sampler: DeviceSampler::new(&device, &stream, &options).unwrap(),
        inputs: StepInputs::new(&device, max_num_seqs as u32, max_num_seqs as u32, 1).unwrap(),
        logits: DeviceBuffer::new(&device, max_num_seqs * stride).unwrap(),
        stream,
        stride,
        vocab_size,
    })
}
