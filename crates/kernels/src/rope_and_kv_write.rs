//! `rope_and_kv_write`: between the qkv projection and attention: head norms, rotation, and the paged cache.

use std::ffi::c_void;

use crate::error::{CudaError, check};
use crate::ffi;
use crate::launch_error::{Checks, LaunchError};
use crate::matrix::Matrix;
use crate::memory::DeviceBuffer;
use crate::paged_decode_attention::KvCache;
use crate::stream::Stream;

/// Tokens of a KV block.
const BLOCK_SIZE: usize = 16;
/// Widest head the kernel has lanes for.
const MAX_HEAD_DIM: u32 = 128;

/// Mirrors `IzarRopeAndKvWriteArgs`.
#[repr(C)]
pub(crate) struct Args {
    qkv: *mut c_void,
    q_norm: *const c_void,
    k_norm: *const c_void,
    cosines: *const c_void,
    sines: *const c_void,
    positions: *const c_void,
    kv_slots: *const c_void,
    k_cache: *mut c_void,
    v_cache: *mut c_void,
    num_tokens: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    rotary_dim: u32,
    interleaved: u32,
    max_len: u32,
    num_slots: u32,
    qkv_stride: u32,
    epsilon: f32,
}

const _: () = assert!(size_of::<Args>() == 112);

/// Cosines and sines of every position, `[max_len, rotary_dim / 2]` f32 each.
#[derive(Debug)]
pub struct RopeTable {
    cosines: DeviceBuffer<f32>,
    sines: DeviceBuffer<f32>,
    max_len: u32,
    rotary_dim: u32,
}

impl RopeTable {
    /// Computes the table on the device: pair `i` at position `p` turns by `p * inv_freq[i]` radians, and cosines and
    /// sines are multiplied by `factor`.
    ///
    /// # Errors
    /// Those of the CUDA calls.
    ///
    /// # Panics
    /// If `inv_freq` or `max_len` is zero or too long for 32 bits.
    pub fn new(
        stream: &Stream,
        inv_freq: &[f32],
        factor: f32,
        max_len: usize,
    ) -> Result<Self, CudaError> {
        assert!(!inv_freq.is_empty() && max_len > 0, "an empty table");
        let (half, positions) = (inv_freq.len(), max_len);
        let device = stream.device();
        let frequencies = DeviceBuffer::from_slice(stream, inv_freq)?;
        let table = Self {
            cosines: DeviceBuffer::new(device, positions * half)?,
            sines: DeviceBuffer::new(device, positions * half)?,
            max_len: u32::try_from(max_len).expect("positions have 32 bits"),
            rotary_dim: u32::try_from(2 * half).expect("a head has few features"),
        };
        let raw = stream.for_launch()?;
        // SAFETY: both tables hold max_len * half elements, the frequencies half; all outlive the kernel (freeing a buffer
        // waits for the device).
        let code = unsafe {
            ffi::izar_rope_table(
                frequencies.address_of(0),
                table.cosines.address_of(0),
                table.sines.address_of(0),
                table.max_len,
                table.rotary_dim / 2,
                factor,
                raw,
            )
        };
        check("rope_table", code)?;
        Ok(table)
    }

    /// Bytes on the device.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        (self.cosines.len() + self.sines.len()) * size_of::<f32>()
    }
}

/// RMS norm of query and key heads before rotation.
#[derive(Debug, Clone, Copy)]
pub struct HeadNorms<'a> {
    /// `[1, head_dim]` for queries. Must not be written by the kernel just before in the stream.
    pub q: Matrix<'a>,
    /// `[1, head_dim]` for keys. As `q`.
    pub k: Matrix<'a>,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// One layer's heads of one step.
#[derive(Debug, Clone, Copy)]
pub struct RopeAndKvWrite<'a> {
    /// `[tokens, (num_heads + 2 * num_kv_heads) * head_dim]`: queries, keys, values. Queries are overwritten; keys and
    /// values stay as they are.
    pub qkv: Matrix<'a>,
    /// Where keys and values go; tells `num_kv_heads` and `head_dim`.
    pub cache: KvCache<'a>,
    /// Norms of query and key heads, for models that have them.
    pub norms: Option<HeadNorms<'a>>,
    /// Angles of the model.
    pub table: &'a RopeTable,
    /// Whether pairs are neighbours `(2 i, 2 i + 1)` instead of `(i, i + rotary_dim / 2)`.
    pub interleaved: bool,
    /// Position of each token. One past the table makes the token's heads NaN.
    pub positions: &'a DeviceBuffer<u32>,
    /// `block * 16 + offset` of each token; one outside the cache (`u32::MAX`: padding) writes nothing.
    pub kv_slots: &'a DeviceBuffer<u32>,
}

/// Launches one layer's heads into `stream`.
///
/// # Errors
/// [`LaunchError`]; nothing is launched then.
pub fn rope_and_kv_write(stream: &Stream, heads: &RopeAndKvWrite<'_>) -> Result<(), LaunchError> {
    let num_heads = heads.check()?;
    let RopeAndKvWrite {
        qkv,
        cache,
        norms,
        table,
        interleaved,
        ..
    } = *heads;
    let slot = (cache.num_kv_heads * cache.head_dim) as usize;
    let address = |norm: Option<Matrix<'_>>| norm.map_or(std::ptr::null_mut(), |n| n.address());
    let args = Args {
        qkv: qkv.address(),
        q_norm: address(norms.map(|norms| norms.q)),
        k_norm: address(norms.map(|norms| norms.k)),
        cosines: table.cosines.address_of(0),
        sines: table.sines.address_of(0),
        positions: heads.positions.address_of(0),
        kv_slots: heads.kv_slots.address_of(0),
        k_cache: cache.k.address_of(0),
        v_cache: cache.v.address_of(0),
        num_tokens: qkv.rows(),
        num_heads,
        num_kv_heads: cache.num_kv_heads,
        head_dim: cache.head_dim,
        rotary_dim: table.rotary_dim,
        interleaved: interleaved.into(),
        max_len: table.max_len,
        // More slots than 32 bits count cannot be named.
        num_slots: u32::try_from(cache.k.len() / slot).unwrap_or(u32::MAX),
        qkv_stride: qkv.stride(),
        epsilon: norms.map_or(0.0, |norms| norms.epsilon),
    };
    let raw = stream.for_launch()?;
    // SAFETY: the views lie in their buffers and have the shapes the kernel expects; positions and slots are clipped to table
    // and cache; buffers outlive work on them.
    check("rope_and_kv_write", unsafe {
        ffi::izar_rope_and_kv_write(&args, raw)
    })?;
    Ok(())
}

impl RopeAndKvWrite<'_> {
    /// Checks every argument; returns the number of query heads.
    fn check(&self) -> Result<u32, LaunchError> {
        let checks = Checks("rope_and_kv_write");
        let KvCache {
            k,
            v,
            num_kv_heads,
            head_dim,
        } = self.cache;
        let (tokens, rotary_dim) = (self.qkv.rows() as usize, self.table.rotary_dim);
        checks.require(
            (16..=MAX_HEAD_DIM).contains(&head_dim) && head_dim.is_multiple_of(16),
            "head_dim",
            "a multiple of 16, at most 128",
            head_dim,
        )?;
        checks.require(
            rotary_dim.is_multiple_of(16) && rotary_dim <= head_dim,
            "rotary_dim",
            "a multiple of 16, at most head_dim",
            rotary_dim,
        )?;
        let heads = self.qkv.cols() / head_dim;
        checks.require(
            num_kv_heads > 0
                && self.qkv.cols().is_multiple_of(head_dim)
                && heads > 2 * num_kv_heads,
            "the width of qkv",
            "(num_heads + 2 * num_kv_heads) * head_dim",
            self.qkv.cols(),
        )?;
        let block = BLOCK_SIZE * (num_kv_heads * head_dim) as usize;
        checks.require(
            k.len().is_multiple_of(block) && k.len() == v.len() && !k.is_empty(),
            "the KV cache",
            "whole blocks, as many of k as of v",
            k.len(),
        )?;
        checks.require(
            self.positions.len() >= tokens,
            "positions",
            "one for each token or more",
            self.positions.len(),
        )?;
        checks.require(
            self.kv_slots.len() >= tokens,
            "kv_slots",
            "one for each token or more",
            self.kv_slots.len(),
        )?;
        checks.require(
            self.qkv.is_aligned(16),
            "rows of qkv",
            "16-byte aligned",
            self.qkv.stride(),
        )?;
        for norm in self.norms.into_iter().flat_map(|norms| [norms.q, norms.k]) {
            let fits = norm.rows() == 1 && norm.cols() == head_dim && norm.is_aligned(16);
            checks.require(
                fits,
                "a head norm",
                "[1, head_dim], 16-byte aligned",
                norm.cols(),
            )?;
        }
        Ok(heads - 2 * num_kv_heads)
    }
}
