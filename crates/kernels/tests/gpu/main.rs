//! What needs a GPU.
//!
//! Every test draws fresh inputs (the seed is printed), poisons outputs and unused inputs with NaN and
//! checks that nothing is read or written there. On a machine without a device they pass after saying so.

mod decode_projection;
mod expand_plan;
mod gather_rows;
mod linear;
mod moe;
mod moe_router;
mod paged_cache;
mod paged_decode_attention;
mod paged_prefill_attention;
mod pinned;
mod rms_norm;
mod rope_and_kv_write;
mod swiglu;

use std::time::{SystemTime, UNIX_EPOCH};

use half::bf16;
use izar_kernels::{Device, DeviceBuffer, ProjectionWorkspace, Stream, fill_random};

/// Bits of memory that nothing may read or write: a NaN.
const POISON: u16 = 0xFFFF;

struct Gpu {
    stream: Stream,
    projections: ProjectionWorkspace,
    seed: u32,
}

fn gpu() -> Option<Gpu> {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("nothing checked: {error}");
            return None;
        }
    };
    let stream = Stream::new(&device).unwrap();
    let num_sms = device.num_multiprocessors().unwrap();
    let projections = ProjectionWorkspace::new(&device, &stream, num_sms).unwrap();
    let seed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .subsec_nanos();
    eprintln!("seed {seed}");
    Some(Gpu {
        stream,
        projections,
        seed,
    })
}

impl Gpu {
    fn random(&mut self, len: usize, scale: f32) -> DeviceBuffer<bf16> {
        self.seed = self.seed.wrapping_add(1);
        let buffer = DeviceBuffer::new(self.stream.device(), len).unwrap();
        fill_random(&self.stream, &buffer, self.seed, scale).unwrap();
        buffer
    }

    fn poisoned(&self, len: usize) -> DeviceBuffer<bf16> {
        let buffer = DeviceBuffer::new(self.stream.device(), len).unwrap();
        buffer.fill_bytes(&self.stream, 0xFF).unwrap();
        buffer
    }

    fn read(&self, buffer: &DeviceBuffer<bf16>) -> Vec<bf16> {
        let mut host = vec![bf16::ZERO; buffer.len()];
        buffer.read(&self.stream, &mut host).unwrap();
        host
    }
}

/// ‖got − wanted‖ / ‖wanted‖.
fn relative_error(
    got: impl IntoIterator<Item = f64>,
    wanted: impl IntoIterator<Item = f64>,
) -> f64 {
    let (mut error, mut norm) = (0.0, 0.0);
    for (got, wanted) in got.into_iter().zip(wanted) {
        error += (got - wanted).powi(2);
        norm += wanted.powi(2);
    }
    (error / norm).sqrt()
}
