//! Little-endian encoding of fixed records, field by field at the offsets of their `#[repr(C)]` layout.
//!
//! Front ends build records as bytes and move them with one-sided writes, so records never have to be
//! references into shared memory.

/// A field with one fixed little-endian encoding.
pub(crate) trait LeField: Copy {
    fn put(self, buf: &mut [u8], at: usize);
    fn get(buf: &[u8], at: usize) -> Self;
}

macro_rules! le_number {
    ($($number:ty),*) => {$(
        impl LeField for $number {
            fn put(self, buf: &mut [u8], at: usize) {
                buf[at..at + size_of::<$number>()].copy_from_slice(&self.to_le_bytes());
            }

            fn get(buf: &[u8], at: usize) -> Self {
                let mut bytes = [0; size_of::<$number>()];
                bytes.copy_from_slice(&buf[at..at + size_of::<$number>()]);
                <$number>::from_le_bytes(bytes)
            }
        }
    )*};
}

le_number!(u8, u16, u32, u64, i32, f32);

impl<const N: usize> LeField for [u8; N] {
    fn put(self, buf: &mut [u8], at: usize) {
        buf[at..at + N].copy_from_slice(&self);
    }

    fn get(buf: &[u8], at: usize) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&buf[at..at + N]);
        bytes
    }
}

impl<const N: usize> LeField for [u64; N] {
    fn put(self, buf: &mut [u8], at: usize) {
        for (i, word) in self.into_iter().enumerate() {
            word.put(buf, at + 8 * i);
        }
    }

    fn get(buf: &[u8], at: usize) -> Self {
        core::array::from_fn(|i| u64::get(buf, at + 8 * i))
    }
}

/// Implements `encode`, `decode` and `LeField` for a `#[repr(C)]` record. Every field must be listed.
macro_rules! record_codec {
    ($record:ident, $bytes:expr, { $($field:ident),* $(,)? }) => {
        const _: () = assert!(size_of::<$record>() == $bytes);

        impl $record {
            /// The record's little-endian bytes, as they lie in the ring.
            pub fn encode(&self) -> [u8; $bytes] {
                let mut buf = [0; $bytes];
                $crate::codec::LeField::put(*self, &mut buf, 0);
                buf
            }

            /// The record those bytes spell. Every bit pattern is some record; validate before use.
            pub fn decode(bytes: &[u8; $bytes]) -> Self {
                <Self as $crate::codec::LeField>::get(bytes, 0)
            }
        }

        impl $crate::codec::LeField for $record {
            fn put(self, buf: &mut [u8], at: usize) {
                $($crate::codec::LeField::put(self.$field, buf, at + core::mem::offset_of!($record, $field));)*
            }

            fn get(buf: &[u8], at: usize) -> Self {
                Self {
                    $($field: $crate::codec::LeField::get(buf, at + core::mem::offset_of!($record, $field)),)*
                }
            }
        }
    };
}

pub(crate) use record_codec;
