//! A paged KV cache for tests: sequences of given lengths, blocks in shuffled order, every other element NaN.

use half::bf16;
use izar_kernels::{DeviceBuffer, KvCache};

use crate::Gpu;

pub(crate) const BLOCK_SIZE: usize = 16;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) head_dim: u32,
    pub(crate) num_kv_heads: u32,
    pub(crate) group: u32,
}

impl Heads {
    pub(crate) fn columns(self) -> u32 {
        self.num_heads() * self.head_dim
    }

    pub(crate) fn num_heads(self) -> u32 {
        self.num_kv_heads * self.group
    }

    pub(crate) fn scale(self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }
}

pub(crate) struct PagedCache {
    pub(crate) heads: Heads,
    k: DeviceBuffer<bf16>,
    v: DeviceBuffer<bf16>,
    /// `[sequences, max_blocks]`; what lies past a sequence is no block.
    pub(crate) table: Vec<u32>,
    pub(crate) max_blocks: usize,
}

impl PagedCache {
    pub(crate) fn new(gpu: &mut Gpu, heads: Heads, lengths: &[u32]) -> Self {
        let blocks_of = |length: u32| (length as usize).div_ceil(BLOCK_SIZE);
        let num_blocks = lengths.iter().map(|&l| blocks_of(l)).sum::<usize>() + 3;
        let max_blocks = lengths.iter().map(|&l| blocks_of(l)).max().unwrap_or(0) + 1;
        let token = (heads.num_kv_heads * heads.head_dim) as usize;
        let (mut k, mut v) = (vec![bf16::NAN; num_blocks * BLOCK_SIZE * token], Vec::new());
        v.clone_from(&k);
        let random_k = gpu.random(k.len(), 4.0);
        let random_v = gpu.random(k.len(), 2.0);
        let (random_k, random_v) = (gpu.read(&random_k), gpu.read(&random_v));
        let mut table = vec![u32::MAX; lengths.len() * max_blocks];
        // An odd step walks all of a power of two: blocks of a sequence lie apart.
        let size = num_blocks.next_power_of_two();
        let order = (0..size).map(|i| (i * 77) % size);
        let mut free = order.filter(|&block| block < num_blocks);
        for (seq, &length) in lengths.iter().enumerate() {
            for i in 0..blocks_of(length) {
                let block = free.next().expect("one block for each");
                table[seq * max_blocks + i] = block as u32;
                let valid = (length as usize - i * BLOCK_SIZE).min(BLOCK_SIZE);
                let range = block * BLOCK_SIZE * token..(block * BLOCK_SIZE + valid) * token;
                k[range.clone()].copy_from_slice(&random_k[range.clone()]);
                v[range.clone()].copy_from_slice(&random_v[range]);
            }
        }
        Self {
            heads,
            k: DeviceBuffer::from_slice(&gpu.stream, &k).unwrap(),
            v: DeviceBuffer::from_slice(&gpu.stream, &v).unwrap(),
            table,
            max_blocks,
        }
    }

    pub(crate) fn view(&self) -> KvCache<'_> {
        KvCache {
            k: &self.k,
            v: &self.v,
            num_kv_heads: self.heads.num_kv_heads,
            head_dim: self.heads.head_dim,
        }
    }
}
