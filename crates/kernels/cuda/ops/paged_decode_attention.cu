// paged_decode_attention: one decode step, GQA, paged KV, split along the context.
//   q           [num_seqs, num_heads, head_dim]                bf16, row stride q_stride
//   k_cache     [num_blocks, 16, num_kv_heads, head_dim]       bf16; v_cache likewise
//   block_table [num_seqs, max_blocks_per_seq]                 u32; only entries below a sequence's length are read
//   seq_lens    [num_seqs]                                     u32, tokens in the cache, this step's included; 0: row skipped
//   out         [num_seqs, num_heads, head_dim]                bf16, row stride out_stride
//   partials    [num_seqs * 32, num_heads, head_dim + 4]       f32
//   finished    [8 * SMs]                                      u32, zero before the first launch, then the kernel's own
// Grid: one block an SM, 256 threads, 106 KB of shared memory; blocks wait for each other at the end, so all must be
// resident. Lengths come from memory, so a captured launch serves any. A sequence's result does not depend on its batch.
// With reads_early seq_lens, block_table and all positions of the cache but each sequence's last are read before the
// previous kernel of the stream has finished.
// Requires head_dim 64, 96 or 128, num_heads / num_kv_heads <= 16, 1024 sequences, 16-byte aligned q, out and caches,
// strides % 8 == 0.
// Bound: HBM bytes = 4 * num_kv_heads * head_dim * sum(seq_lens).  Measured: docs/perf/h200-kernels.md
#include "paged_decode_attention.cuh"

#include "../common/launch.h"
#include "../common/tensor_map.h"

// Mirrored by ffi::PagedDecodeAttentionArgs.
struct IzarPagedDecodeAttentionArgs {
  const __nv_bfloat16* q;
  const __nv_bfloat16* k_cache;
  const __nv_bfloat16* v_cache;
  const uint32_t* block_table;
  const uint32_t* seq_lens;
  __nv_bfloat16* out;
  float* partials;
  uint32_t* finished;
  uint32_t* error;
  uint32_t num_seqs;
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t num_blocks;
  uint32_t max_blocks_per_seq;
  uint32_t q_stride;
  uint32_t out_stride;
  uint32_t window;  // a token sees this many positions back, itself included; 0: all
  float scale;
  uint32_t num_sms;
  uint32_t reads_early;
};
static_assert(sizeof(IzarPagedDecodeAttentionArgs) == 120);

namespace izar::paged_decode_attention {

namespace {

using Args = IzarPagedDecodeAttentionArgs;

// A copy takes all panels of 64 dims of one head of a KV block: [kv heads, panels, positions, 64 dims]. Where
// the last panel is not whole it takes one at a time, and past the head reads as zero.
template <class C>
cudaError_t encode_cache(CUtensorMap* map, const void* cache, const Args& a) {
  const uint64_t positions = uint64_t{a.num_blocks} * kBlockSize;
  const uint64_t token = uint64_t{a.num_kv_heads} * C::kHeadDim;
  if (C::kWholePanels) {
    return encode_tensor_map(map, cache,
                             {4,
                              {kPanelDims, positions, C::kPanels, a.num_kv_heads},
                              {token, kPanelDims, C::kHeadDim},
                              {kPanelDims, kBlockSize, C::kPanels, 1}});
  }
  return encode_tensor_map(
      map, cache,
      {3, {C::kHeadDim, a.num_kv_heads, positions}, {C::kHeadDim, token}, {kPanelDims, 1, kBlockSize}});
}

template <class C>
cudaError_t launch(const Args& a, cudaStream_t stream) {
  Params p = {};
  p.q = a.q;
  p.block_table = a.block_table;
  p.seq_lens = a.seq_lens;
  p.out = a.out;
  p.partials = a.partials;
  p.finished = a.finished;
  p.error = a.error;
  p.num_seqs = a.num_seqs;
  p.num_heads = a.num_heads;
  p.num_kv_heads = a.num_kv_heads;
  p.group = a.num_heads / a.num_kv_heads;
  p.max_blocks_per_seq = a.max_blocks_per_seq;
  p.q_stride = a.q_stride;
  p.out_stride = a.out_stride;
  p.window = a.window;
  p.scale_log2 = a.scale * 1.4426950408889634f;
  p.reads_early = a.reads_early;

  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error = encode_cache<C>(&k_map, a.k_cache, a);
  if (error != cudaSuccess) return error;
  error = encode_cache<C>(&v_map, a.v_cache, a);
  if (error != cudaSuccess) return error;
  constexpr uint32_t kSharedBytes = kRingBytes + kSwizzleBytes;
  error = cudaFuncSetAttribute(kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return launch_overlapped(kernel<C>, a.num_sms, kThreads, kSharedBytes, stream, k_map, v_map, p);
}

template <uint32_t kHeadDim>
cudaError_t launch_for_heads(const Args& a, cudaStream_t stream) {
  return a.num_heads / a.num_kv_heads <= 8 ? launch<Config<kHeadDim, 1>>(a, stream)
                                           : launch<Config<kHeadDim, 2>>(a, stream);
}

}  // namespace

}  // namespace izar::paged_decode_attention

extern "C" int32_t izar_paged_decode_attention(const IzarPagedDecodeAttentionArgs* args, cudaStream_t stream) {
  using namespace izar::paged_decode_attention;
  switch (args->head_dim) {
    case 64: return launch_for_heads<64>(*args, stream);
    case 96: return launch_for_heads<96>(*args, stream);
    case 128: return launch_for_heads<128>(*args, stream);
    default: return cudaErrorInvalidValue;
  }
}
