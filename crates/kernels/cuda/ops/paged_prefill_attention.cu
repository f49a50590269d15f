// paged_prefill_attention: chunks of prompts against their paged KV, causal, GQA, ragged.
//   q             [num_tokens, num_heads, head_dim]           bf16, row stride q_stride
//   k_cache       [num_blocks, 16, num_kv_heads, head_dim]    bf16; v_cache likewise; the chunks' own tokens are in it
//   block_tables  [max_entries, max_blocks_per_seq]           u32; only entries below a sequence's length are read
//   query_starts  [max_entries]                               u32, first row of q of an entry
//   query_lens    [max_entries]                               u32, its rows; 0: skipped
//   seq_lens      [max_entries]                               u32, its tokens in the cache, this chunk's included
//   first_entry, end_entry                                    u32, one word each: entries [first, end) are taken
//   out           [num_tokens, num_heads, head_dim]           bf16, row stride out_stride; only entries' rows are written
// Grid min(SMs, tiles that num_tokens and max_entries allow), 384 threads, 161 KB of shared memory: counts come from
// memory, so a captured launch serves any chunks. A token's result does not depend on its chunk or its batch.
// Requires head_dim 64, 96 or 128, num_heads / num_kv_heads <= 16, 1024 entries, 16-byte aligned q, out and caches,
// strides % 8 == 0.
// Bound: tensor cores, 4 * head_dim * num_heads * (positions seen by all tokens) operations.
// Measured: docs/perf/h200-kernels.md
#include "paged_prefill_attention.cuh"

#include <algorithm>

#include "../common/launch.h"
#include "../common/tensor_map.h"

// Mirrored by ffi::PagedPrefillAttentionArgs.
struct IzarPagedPrefillAttentionArgs {
  const void* q;
  const void* k_cache;
  const void* v_cache;
  const uint32_t* block_tables;
  const uint32_t* query_starts;
  const uint32_t* query_lens;
  const uint32_t* seq_lens;
  const uint32_t* first_entry;
  const uint32_t* end_entry;
  void* out;
  uint32_t num_tokens;
  uint32_t max_entries;
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
};
static_assert(sizeof(IzarPagedPrefillAttentionArgs) == 128);

namespace izar::paged_prefill_attention {

namespace {

using Args = IzarPagedPrefillAttentionArgs;

// Tiles of any step of num_tokens rows: each entry may leave one tile partly filled.
uint32_t most_tiles(const Params& p) {
  const uint32_t partial = std::min(p.max_entries, p.num_tokens);
  return (p.num_tokens / p.tokens_per_tile + partial) * p.num_kv_heads;
}

// [positions, kv heads, head_dim]: a copy takes 64 dims of one head of a KV block.
cudaError_t encode_cache(CUtensorMap* map, const void* cache, const Args& a) {
  const uint64_t token = uint64_t{a.num_kv_heads} * a.head_dim;
  return encode_tensor_map(map, cache,
                           {3,
                            {a.head_dim, a.num_kv_heads, uint64_t{a.num_blocks} * kBlockSize},
                            {a.head_dim, token},
                            {kPanelDims, 1, kBlockSize}});
}

template <class C>
cudaError_t launch(const Args& a, cudaStream_t stream) {
  Params p = {};
  p.block_tables = a.block_tables;
  p.query_starts = a.query_starts;
  p.query_lens = a.query_lens;
  p.seq_lens = a.seq_lens;
  p.first_entry = a.first_entry;
  p.end_entry = a.end_entry;
  p.out = static_cast<__nv_bfloat16*>(a.out);
  p.num_tokens = a.num_tokens;
  p.max_entries = a.max_entries;
  p.num_kv_heads = a.num_kv_heads;
  p.group = a.num_heads / a.num_kv_heads;
  p.tokens_per_tile = kRows / p.group;
  p.max_blocks_per_seq = a.max_blocks_per_seq;
  p.cache_tokens = a.num_blocks * kBlockSize;
  p.out_stride = a.out_stride;
  p.window = a.window;
  p.scale_log2 = a.scale * 1.4426950408889634f;

  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error = encode_tensor_map(
      &q_map, a.q,
      {3, {a.head_dim, a.num_heads, a.num_tokens}, {a.head_dim, a.q_stride}, {kPanelDims, p.group, p.tokens_per_tile}});
  if (error != cudaSuccess) return error;
  error = encode_cache(&k_map, a.k_cache, a);
  if (error != cudaSuccess) return error;
  error = encode_cache(&v_map, a.v_cache, a);
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  if (error != cudaSuccess) return error;

  const uint32_t num_blocks = std::min(a.num_sms, most_tiles(p));
  return launch_overlapped(kernel<C>, num_blocks, kThreads, C::kSharedBytes, stream, q_map, k_map, v_map, p);
}

}  // namespace

}  // namespace izar::paged_prefill_attention

extern "C" int32_t izar_paged_prefill_attention(const IzarPagedPrefillAttentionArgs* args, cudaStream_t stream) {
  using namespace izar::paged_prefill_attention;
  switch (args->head_dim) {
    case 64: return launch<Config<64>>(*args, stream);
    case 96: return launch<Config<96>>(*args, stream);
    case 128: return launch<Config<128>>(*args, stream);
    default: return cudaErrorInvalidValue;
  }
}
