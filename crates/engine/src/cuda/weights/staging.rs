//! Pieces of tensors on their way to the device: converted by several threads into pinned buffers, copied from there.
//!
//! A thread has a stream and two buffers: while one is copied, the other is filled. What limits it is reading the mapped
//! file, a page fault at a time, hence the threads.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use half::bf16;
use izar_kernels::{CudaError, Device, DeviceBuffer, Event, PinnedBuffer, Stream};
use izar_model::TensorView;

use super::to_bf16::convert;

/// Elements of a piece, at most, unless a single row is longer.
const PIECE: usize = 2 << 20;
/// Threads, at most: more only wait for the memory.
const MAX_THREADS: usize = 16;

/// Some rows of a parameter, and where they go.
pub(super) struct Piece<'a> {
    pub(super) view: TensorView<'a>,
    pub(super) target: Arc<DeviceBuffer<bf16>>,
    /// First element in `target`.
    pub(super) index: usize,
}

impl<'a> Piece<'a> {
    /// Cuts a parameter into pieces.
    pub(super) fn cut(
        view: TensorView<'a>,
        target: &Arc<DeviceBuffer<bf16>>,
        index: usize,
    ) -> impl Iterator<Item = Piece<'a>> {
        let target = Arc::clone(target);
        row_ranges(view.rows, view.cols).map(move |(first, rows)| {
            let bytes = view.row_bytes();
            Piece {
                view: TensorView {
                    rows,
                    data: &view.data[first * bytes..(first + rows) * bytes],
                    ..view
                },
                target: Arc::clone(&target),
                index: index + first * view.cols,
            }
        })
    }

    fn len(&self) -> usize {
        self.view.rows * self.view.cols
    }
}

/// First row and number of rows of each piece of a matrix.
fn row_ranges(rows: usize, cols: usize) -> impl Iterator<Item = (usize, usize)> {
    let step = (PIECE / cols).max(1);
    (0..rows)
        .step_by(step)
        .map(move |first| (first, step.min(rows - first)))
}

/// Brings all pieces to the device. `done` is told of each, from the calling thread, once it is converted.
///
/// # Errors
/// The first failed CUDA call.
pub(super) fn bring(
    device: &Device,
    pieces: &[Piece<'_>],
    done: &mut dyn FnMut(&Piece<'_>),
) -> Result<(), CudaError> {
    let Some(longest) = pieces.iter().map(Piece::len).max() else {
        return Ok(());
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let num_threads = cores.min(MAX_THREADS).min(pieces.len());
    let queue = Mutex::new(pieces.iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let (sender, converted) = channel();
        for _ in 0..num_threads {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                if let Err(error) = work(device, longest, next, &sender) {
                    // The receiver leaves only after an error of another thread.
                    let _ = sender.send(Err(error));
                }
            });
        }
        drop(sender);
        for piece in converted {
            done(piece?);
        }
        Ok(())
    })
}

/// A pinned buffer and the event that follows its last copy.
struct Slot {
    buffer: PinnedBuffer<bf16>,
    copied: Event,
}

fn work<'a, 'b>(
    device: &Device,
    longest: usize,
    next: &impl Fn() -> Option<&'a Piece<'b>>,
    converted: &Sender<Result<&'a Piece<'b>, CudaError>>,
) -> Result<(), CudaError> {
    let stream = Stream::new(device)?;
    let slot = || {
        Ok(Slot {
            buffer: PinnedBuffer::new(device, longest)?,
            copied: Event::new(device)?,
        })
    };
    let mut slots = [slot()?, slot()?];
    // An event that was never recorded counts as happened.
    for turn in 0.. {
        let Some(piece) = next() else { break };
        let Slot { buffer, copied } = &mut slots[turn % 2];
        copied.synchronize()?;
        // SAFETY: the copy from this buffer has ended, and no other is under way.
        convert(
            &piece.view,
            &mut unsafe { buffer.as_mut_slice() }[..piece.len()],
        );
        // SAFETY: the target outlives the wait below, the buffer is written again only after `copied`.
        unsafe {
            piece
                .target
                .write_async(&stream, piece.index, buffer, 0, piece.len())?;
        }
        copied.record(&stream)?;
        if converted.send(Ok(piece)).is_err() {
            break;
        }
    }
    stream.synchronize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_row_once_in_order() {
        for (rows, cols) in [
            (1, 1),
            (1, PIECE + 5),
            (1000, 4096),
            (128_256, 4096),
            (3, PIECE),
        ] {
            let mut next = 0;
            for (first, count) in row_ranges(rows, cols) {
                assert_eq!(first, next);
                assert!(count > 0 && (count == 1 || count * cols <= PIECE));
                next += count;
            }
            assert_eq!(next, rows);
        }
    }
}
