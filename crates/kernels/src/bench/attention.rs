//! Attention of decodes and of prefills.

use half::bf16;

use super::chain::Chain;
use super::{BenchError, Cost, ModelShape, Row};
use crate::device_word::DeviceWord;
use crate::error::CudaError;
use crate::matrix::Matrix;
use crate::memory::DeviceBuffer;
use crate::paged_decode_attention::{
    AttentionWorkspace, KvCache, PagedDecodeAttention, paged_decode_attention,
};
use crate::paged_prefill_attention::{PagedPrefillAttention, paged_prefill_attention};

const BLOCK_SIZE: u32 = 16;
const LAUNCHES: usize = 16;
/// Sequences and context of a decode.
const DECODES: [(u32, u32); 7] = [
    (1, 1024),
    (8, 1024),
    (16, 1024),
    (32, 1024),
    (64, 1024),
    (8, 8192),
    (64, 4096),
];
/// Tokens of a chunk, and tokens in the cache after it.
const CHUNKS: [(u32, u32); 4] = [(512, 512), (2048, 2048), (2048, 8192), (8192, 8192)];

/// Caches of sequences of one length, their blocks scattered.
struct Caches {
    copies: Vec<(DeviceBuffer<bf16>, DeviceBuffer<bf16>)>,
    tables: DeviceBuffer<u32>,
    blocks_per_seq: u32,
}

impl Caches {
    fn new(
        chain: &Chain<'_>,
        shape: &ModelShape,
        seqs: u32,
        context: u32,
    ) -> Result<Self, CudaError> {
        let blocks_per_seq = context.div_ceil(BLOCK_SIZE);
        let num_blocks = seqs * blocks_per_seq;
        let block = (BLOCK_SIZE * shape.num_kv_heads * shape.head_dim) as usize;
        let len = num_blocks as usize * block;
        let keys = chain.uncached(len, 4.0)?;
        let copies = keys
            .into_iter()
            .map(|k| Ok((k, chain.random(len, 2.0)?)))
            .collect::<Result<_, CudaError>>()?;
        // Multiplying by an odd number walks all of a power of two.
        let range = num_blocks.next_power_of_two();
        let order = (0..range).map(|i| i.wrapping_mul(77) % range);
        let order: Vec<u32> = order.filter(|&block| block < num_blocks).collect();
        Ok(Self {
            copies,
            tables: DeviceBuffer::from_slice(chain.stream, &order)?,
            blocks_per_seq,
        })
    }

    fn of(&self, shape: &ModelShape, launch: usize) -> KvCache<'_> {
        let (k, v) = &self.copies[launch % self.copies.len()];
        KvCache {
            k,
            v,
            num_kv_heads: shape.num_kv_heads,
            head_dim: shape.head_dim,
        }
    }
}

pub(super) fn decode(
    chain: &Chain<'_>,
    shape: &ModelShape,
    note: &mut dyn FnMut(Row),
) -> Result<(), BenchError> {
    let columns = shape.num_heads * shape.head_dim;
    for (seqs, context) in DECODES {
        let caches = Caches::new(chain, shape, seqs, context)?;
        let q = chain.random((seqs * columns) as usize, 2.0)?;
        let out = chain.random((seqs * columns) as usize, 2.0)?;
        let lens = DeviceBuffer::from_slice(chain.stream, &vec![context; seqs as usize])?;
        let device = chain.stream.device();
        let workspace = AttentionWorkspace::new(device, seqs, shape.num_heads, shape.head_dim)?;
        let (q, out) = (
            Matrix::dense(&q, seqs, columns)?,
            Matrix::dense(&out, seqs, columns)?,
        );
        let us = chain.time(LAUNCHES, |stream, launch| {
            let step = PagedDecodeAttention {
                q,
                cache: caches.of(shape, launch),
                block_table: &caches.tables,
                max_blocks_per_seq: caches.blocks_per_seq,
                seq_lens: &lens,
                out,
                window: None,
                scale: 1.0 / (shape.head_dim as f32).sqrt(),
                reads_early: true,
            };
            Ok(paged_decode_attention(stream, &step, &workspace)?)
        })?;
        let slot = f64::from(shape.num_kv_heads * shape.head_dim);
        let cost = Cost {
            bytes: 4.0 * f64::from(seqs) * f64::from(context) * slot,
            flops: 0.0,
        };
        let name = format!("context {context}");
        note(Row::new("paged_decode_attention", name, seqs, us, cost));
    }
    Ok(())
}

pub(super) fn prefill(
    chain: &Chain<'_>,
    shape: &ModelShape,
    note: &mut dyn FnMut(Row),
) -> Result<(), BenchError> {
    let columns = shape.num_heads * shape.head_dim;
    for (chunk, context) in CHUNKS {
        let caches = Caches::new(chain, shape, 1, context)?;
        let q = chain.random((chunk * columns) as usize, 2.0)?;
        let out = chain.random((chunk * columns) as usize, 2.0)?;
        let words = |word: u32| DeviceBuffer::from_slice(chain.stream, &[word]);
        let (zero, one) = (words(0)?, words(1)?);
        let (query_lens, seq_lens) = (words(chunk)?, words(context)?);
        let (q, out) = (
            Matrix::dense(&q, chunk, columns)?,
            Matrix::dense(&out, chunk, columns)?,
        );
        let us = chain.time(LAUNCHES, |stream, launch| {
            let step = PagedPrefillAttention {
                q,
                cache: caches.of(shape, launch),
                block_tables: &caches.tables,
                max_blocks_per_seq: caches.blocks_per_seq,
                query_starts: &zero,
                query_lens: &query_lens,
                seq_lens: &seq_lens,
                first_entry: DeviceWord::new(&zero, 0),
                end_entry: DeviceWord::new(&one, 0),
                max_entries: 1,
                out,
                window: None,
                scale: 1.0 / (shape.head_dim as f32).sqrt(),
            };
            Ok(paged_prefill_attention(stream, &step)?)
        })?;
        let [chunk_tokens, context_tokens, width] = [chunk, context, columns].map(f64::from);
        // Query i of the chunk sees all but the chunk's later tokens.
        let pairs = chunk_tokens * context_tokens - chunk_tokens * (chunk_tokens - 1.0) / 2.0;
        let slot = f64::from(shape.num_kv_heads * shape.head_dim);
        let cost = Cost {
            bytes: 4.0 * (context_tokens * slot + chunk_tokens * width),
            flops: 4.0 * pairs * width,
        };
        let name = format!("context {context}");
        note(Row::new("paged_prefill_attention", name, chunk, us, cost));
    }
    Ok(())
}
