//! A `u32` in device memory that a kernel reads when it runs.

use std::ffi::c_void;
use std::marker::PhantomData;

use bytemuck::Pod;

use crate::memory::DeviceBuffer;

/// The address of one `u32` inside a buffer: a count that a captured launch takes from memory.
#[derive(Debug, Clone, Copy)]
pub struct DeviceWord<'a> {
    address: *mut c_void,
    buffer: PhantomData<&'a ()>,
}

impl<'a> DeviceWord<'a> {
    /// The word `byte_offset` bytes into `buffer`, whatever its elements are.
    ///
    /// # Panics
    /// If it is not inside the buffer, or `byte_offset` is no multiple of 4.
    #[must_use]
    pub fn new<T: Pod>(buffer: &'a DeviceBuffer<T>, byte_offset: usize) -> Self {
        let bytes = buffer.len() * size_of::<T>();
        assert!(
            byte_offset.is_multiple_of(4) && byte_offset + 4 <= bytes,
            "a word at byte {byte_offset} of a buffer of {bytes}"
        );
        Self {
            address: buffer.address_of(0).wrapping_byte_add(byte_offset),
            buffer: PhantomData,
        }
    }

    pub(crate) fn address(self) -> *const c_void {
        self.address
    }
}
