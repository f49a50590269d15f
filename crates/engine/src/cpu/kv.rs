//! The paged KV cache.
//!
//! A token's place is `kv_slot = block_id * block_size + offset`. Inside, slots are grouped in *panels* of 16 (a block is one or more whole panels), so that 16
//! keys are one vector:
//!
//! ```text
//! keys    [layer][panel][kv head][head_dim][16 slots]
//! values  [layer][panel][kv head][16 slots][head_dim, padded to 16]
//! ```
//!
//! Elements are f16, or f32 in the exact mode. Memory starts zeroed, and is only committed when first written. A step writes a slot on the one
//! rank that projects its head, in the phase before attention reads it.

use super::memory::{Buffer, Shared};
use super::simd::{LANES, Simd};

/// How one element of the cache is stored.
pub(super) trait KvElement: bytemuck::Pod + Send + Sync {
    /// Sixteen elements.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn load<S: Simd>(p: *const Self) -> S::F;
    /// Sixteen elements, rounded to nearest.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F);
}

impl KvElement for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load(p) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut f32, v: S::F) {
        // SAFETY: the caller's contract.
        unsafe { S::store(p, v) }
    }
}

/// f16 bits.
impl KvElement for u16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u16) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(p) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u16, v: S::F) {
        // SAFETY: the caller's contract.
        unsafe { S::store_f16(p, v) }
    }
}

/// Sizes of a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvShape {
    pub(super) num_layers: usize,
    pub(super) num_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) num_blocks: usize,
    /// Tokens in a block, a multiple of 16.
    pub(super) block_size: usize,
}

impl KvShape {
    /// Head width padded to whole vectors.
    pub(super) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    pub(super) fn panels_per_block(&self) -> usize {
        self.block_size / LANES
    }

    fn num_panels(&self) -> usize {
        self.num_blocks * self.panels_per_block()
    }

    /// Elements of one panel of one head, keys and values.
    pub(super) fn head_elements(&self) -> (usize, usize) {
        (self.head_dim * LANES, self.padded_dim() * LANES)
    }

    /// Index of a panel's head in units of heads.
    fn head_index(&self, layer: usize, panel: usize, kv_head: usize) -> usize {
        debug_assert!(panel < self.num_panels());
        (layer * self.num_panels() + panel) * self.num_kv_heads + kv_head
    }
}

/// The cache, in one of its two precisions.
pub(super) enum KvCache {
    F32(KvShape, Buffer<f32>, Buffer<f32>),
    F16(KvShape, Buffer<u16>, Buffer<u16>),
}

impl KvCache {
    pub(super) fn new(shape: KvShape, exact: bool) -> std::io::Result<Self> {
        let heads = shape.num_layers * shape.num_panels() * shape.num_kv_heads;
        let (keys, values) = shape.head_elements();
        Ok(if exact {
            Self::F32(
                shape,
                Buffer::zeroed(heads * keys)?,
                Buffer::zeroed(heads * values)?,
            )
        } else {
            Self::F16(
                shape,
                Buffer::zeroed(heads * keys)?,
                Buffer::zeroed(heads * values)?,
            )
        })
    }

    /// Bytes the cache can grow to.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::F32(_, keys, values) => (keys.len() + values.len()) * 4,
            Self::F16(_, keys, values) => (keys.len() + values.len()) * 2,
        }
    }

    pub(super) fn view(&mut self) -> KvAny {
        match self {
            Self::F32(shape, keys, values) => KvAny::F32(KvView {
                shape: *shape,
                keys: keys.shared(),
                values: values.shared(),
            }),
            Self::F16(shape, keys, values) => KvAny::F16(KvView {
                shape: *shape,
                keys: keys.shared(),
                values: values.shared(),
            }),
        }
    }
}

/// A view of either precision.
#[derive(Clone, Copy)]
pub(super) enum KvAny {
    F32(KvView<f32>),
    F16(KvView<u16>),
}

/// The cache as the ranks see it during a step.
#[derive(Clone, Copy)]
pub(super) struct KvView<T> {
    pub(super) shape: KvShape,
    keys: Shared<T>,
    values: Shared<T>,
}

impl<T: KvElement> KvView<T> {
    /// Keys of a panel's head: `[head_dim][16]`.
    #[inline(always)]
    pub(super) fn keys(&self, layer: usize, panel: usize, kv_head: usize) -> *mut T {
        let len = self.shape.head_elements().0;
        self.keys
            .at(self.shape.head_index(layer, panel, kv_head) * len, len)
    }

    /// Values of a panel's head: `[16][padded head_dim]`.
    #[inline(always)]
    pub(super) fn values(&self, layer: usize, panel: usize, kv_head: usize) -> *mut T {
        let len = self.shape.head_elements().1;
        self.values
            .at(self.shape.head_index(layer, panel, kv_head) * len, len)
    }

    /// Writes a token's key.
    ///
    /// # Safety
    /// See [`Simd`]; no other rank touches this head of this slot in this phase. `key` is padded to whole vectors.
    #[inline(always)]
    pub(super) unsafe fn write_key<S: Simd>(
        &self,
        layer: usize,
        kv_slot: usize,
        kv_head: usize,
        key: &[f32],
    ) {
        assert!(key.len() >= self.shape.padded_dim());
        let out = self.keys(layer, kv_slot / LANES, kv_head);
        let mut rounded = [T::zeroed(); LANES];
        for start in (0..self.shape.head_dim).step_by(LANES) {
            // SAFETY: the key is long enough, asserted; the panel holds head_dim rows of 16.
            unsafe {
                T::store::<S>(rounded.as_mut_ptr(), S::load(key.as_ptr().add(start)));
                for (i, &x) in rounded[..LANES.min(self.shape.head_dim - start)]
                    .iter()
                    .enumerate()
                {
                    *out.add((start + i) * LANES + kv_slot % LANES) = x;
                }
            }
        }
    }

    /// Writes a token's value.
    ///
    /// # Safety
    /// As for [`KvView::write_key`].
    #[inline(always)]
    pub(super) unsafe fn write_value<S: Simd>(
        &self,
        layer: usize,
        kv_slot: usize,
        kv_head: usize,
        value: &[f32],
    ) {
        assert!(value.len() >= self.shape.padded_dim());
        let out = self.values(layer, kv_slot / LANES, kv_head);
        for start in (0..self.shape.padded_dim()).step_by(LANES) {
            // SAFETY: the value is long enough, asserted; the panel holds 16 rows of the padded width.
            unsafe {
                let out = out.add(kv_slot % LANES * self.shape.padded_dim() + start);
                T::store::<S>(out, S::load(value.as_ptr().add(start)));
            }
        }
    }
}
