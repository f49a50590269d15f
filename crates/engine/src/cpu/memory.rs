//! Large buffers: zeroed, page aligned, committed when first touched, on huge pages where the system grants them;
//! and the raw view through which the ranks of a team write disjoint parts of one.

use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;

/// A fixed array of plain elements in memory of its own.
pub(super) struct Buffer<T> {
    map: MmapMut,
    len: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// `len` zeros. Pages cost memory once they are written (or read).
    pub(super) fn zeroed(len: usize) -> std::io::Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(std::io::ErrorKind::OutOfMemory)?;
        let map = MmapMut::map_anon(bytes.max(1))?;
        // Huge pages save most of the address translation of a weight stream. A kernel without them says no, which
        // costs speed alone.
        #[cfg(target_os = "linux")]
        if bytes >= 4 << 20 {
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self {
            map,
            len,
            element: std::marker::PhantomData,
        })
    }

    /// A view that several threads may write through.
    pub(super) fn shared(&mut self) -> Shared<T> {
        Shared {
            base: self.as_mut_ptr(),
            len: self.len,
        }
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.map[..self.len * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.map[..self.len * size_of::<T>()])
    }
}

/// A borrowed array whose parts different ranks write. Who writes what is the phase's business: within a phase no
/// element is written by one rank and touched by another.
#[derive(Clone, Copy)]
pub(super) struct Shared<T> {
    base: *mut T,
    len: usize,
}

// SAFETY: a `Shared` is an address; every access through it is unsafe and states its own disjointness.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// A view of `slice`, which stays borrowed only as long as the caller sees to it.
    pub(super) fn of(slice: &mut [T]) -> Self {
        Self {
            base: slice.as_mut_ptr(),
            len: slice.len(),
        }
    }

    /// Address of element `index`, from which `count` elements may be accessed.
    ///
    /// # Panics
    /// If the range leaves the array.
    #[inline(always)]
    pub(super) fn at(&self, index: usize, count: usize) -> *mut T {
        assert!(
            index + count <= self.len,
            "elements {index}..+{count} of {}",
            self.len
        );
        // SAFETY: in bounds, checked above.
        unsafe { self.base.add(index) }
    }

    /// Elements `index..index + count`.
    ///
    /// # Safety
    /// The buffer is alive, and nobody writes the range while the slice lives.
    ///
    /// # Panics
    /// If the range leaves the array.
    #[inline(always)]
    pub(super) unsafe fn slice<'a>(&self, index: usize, count: usize) -> &'a [T] {
        // SAFETY: in bounds by `at`; alive and unwritten by the contract.
        unsafe { std::slice::from_raw_parts(self.at(index, count), count) }
    }

    /// Elements `index..index + count`, to write.
    ///
    /// # Safety
    /// The buffer is alive, and nobody else touches the range while the slice lives.
    ///
    /// # Panics
    /// If the range leaves the array.
    #[inline(always)]
    pub(super) unsafe fn slice_mut<'a>(&self, index: usize, count: usize) -> &'a mut [T] {
        // SAFETY: in bounds by `at`; alive and unshared by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.at(index, count), count) }
    }
}
