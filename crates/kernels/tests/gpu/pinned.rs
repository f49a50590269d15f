//! Pinned memory: copies from and to it, and kernels that use it in place; and memory of others, mapped.

use std::ptr::NonNull;
use std::sync::Arc;

use half::bf16;
use izar_kernels::{CudaError, DeviceBuffer, Graph, MappedRegion, PinnedBuffer, Stream};

use crate::gpu;

#[test]
fn copies_move_the_ranges_they_name() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.stream.device();
    let mut from = PinnedBuffer::<u32>::new(device, 1000).unwrap();
    let to = PinnedBuffer::<u32>::new(device, 1000).unwrap();
    let buffer = DeviceBuffer::<u32>::new(device, 500).unwrap();
    buffer.fill_bytes(&gpu.stream, 0xFF).unwrap();
    // SAFETY: no copy is under way.
    let words = unsafe { from.as_mut_slice() };
    words.iter_mut().zip(0..).for_each(|(word, i)| *word = i);
    // SAFETY: all buffers live until the wait below, and the host touches none before it.
    unsafe {
        buffer
            .write_async(&gpu.stream, 10, &from, 700, 300)
            .unwrap();
        buffer.read_async(&gpu.stream, 0, &to, 500, 500).unwrap();
    }
    gpu.stream.synchronize().unwrap();
    // SAFETY: the copies have ended.
    let got = unsafe { to.as_slice() };
    let wanted = |i: usize| match i {
        0..500 => 0,
        510..810 => 700 + (i - 510) as u32,
        _ => u32::MAX,
    };
    assert!(got.iter().enumerate().all(|(i, &word)| word == wanted(i)));
}

#[test]
fn a_captured_copy_reads_what_is_there_at_launch() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.stream.device();
    let mut from = PinnedBuffer::<bf16>::new(device, 64).unwrap();
    let buffer = DeviceBuffer::<bf16>::new(device, 64).unwrap();
    let graph = Graph::capture(&gpu.stream, |stream| {
        // SAFETY: both buffers live to the end of the test; the source is written between launches alone.
        unsafe { buffer.write_async(stream, 0, &from, 0, 64) }
    })
    .unwrap();
    let exec = graph.instantiate_for_device(&gpu.stream).unwrap();
    for round in 1..5_u8 {
        // SAFETY: the launch before was waited for by the read.
        unsafe { from.as_mut_slice() }.fill(bf16::from(round));
        // SAFETY: as above.
        unsafe { exec.launch(&gpu.stream) }.unwrap();
        assert_eq!(gpu.read(&buffer), vec![bf16::from(round); 64]);
    }
}

#[test]
fn an_urgent_stream_runs_work_like_any_other() -> Result<(), CudaError> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let stream = Stream::urgent(gpu.stream.device())?;
    let buffer = DeviceBuffer::from_slice(&stream, &[7_u32; 100])?;
    let mut got = [0; 100];
    buffer.read(&stream, &mut got)?;
    assert_eq!(got, [7; 100]);
    Ok(())
}

#[test]
fn mapped_memory_is_kept_and_can_be_mapped_again() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.stream.device();
    let memory = Arc::new(vec![0_u64; 4096]);
    let map = || {
        let base = NonNull::from(memory.as_slice()).cast::<u8>();
        // SAFETY: the vector lives as long as its owner and is not changed meanwhile.
        unsafe { MappedRegion::register(device, base, 8 * memory.len(), Box::new(memory.clone())) }
    };
    for _ in 0..2 {
        let region = map().unwrap();
        assert_eq!((region.len(), Arc::strong_count(&memory)), (32_768, 2));
        let first = region.address_of(0).unwrap();
        assert_eq!(region.address_of(32_768), Some(first + 32_768));
        assert_eq!(region.address_of(32_769), None);
        assert!(map().is_err(), "mapped already");
        drop(region);
    }
    assert_eq!(Arc::strong_count(&memory), 1);
}
