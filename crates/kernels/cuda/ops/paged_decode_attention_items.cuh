// The work of paged_decode_attention: which positions a sequence's token sees, their cut into chunks, and
// which warp takes which chunk. paged_decode_attention.cuh says what is done with them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/block_scan.cuh"
#include "../ptx/memory.cuh"

namespace izar::paged_decode_attention {

constexpr uint32_t kBlockSize = 16;
constexpr uint32_t kWarps = 8;
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kMinChunkShift = 3;  // log2 of KV blocks
constexpr uint32_t kMaxChunks = 32;  // a lane each when they are joined
constexpr uint32_t kMaxSeqs = 1024;
constexpr uint32_t kPanelDims = 64;  // one 128-byte swizzled row
constexpr uint32_t kPanelBytes = kBlockSize * kPanelDims * 2;
constexpr uint32_t kRingBytes = 96 * 1024;  // of a block; with the lists half of an SM's shared memory
constexpr uint32_t kSwizzleBytes = 1024;

// A part that does not come within this many polls (seconds) is an error, not a hang.
constexpr uint32_t kMaxPolls = 1u << 22;
constexpr uint32_t kErrorPartAbsent = 1;

struct Params {
  const __nv_bfloat16* q;
  const uint32_t* block_table;
  const uint32_t* seq_lens;
  __nv_bfloat16* out;
  float* partials;    // [chunk of the list, head, head_dim + 4]: products, then maximum and sum
  uint32_t* finished;  // [warp of the grid]: launches that it has finished, all equal between launches
  uint32_t* error;     // receives kErrorPartAbsent
  uint32_t num_seqs;
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t group;  // query heads a kv head
  uint32_t max_blocks_per_seq;
  uint32_t q_stride;
  uint32_t out_stride;
  uint32_t window;  // 0: none
  float scale_log2;
  uint32_t reads_early;  // whether lengths, tables and all but the last position are there before this kernel
};

// kRowHalves: 8 or 16 rows of the matrix products hold query heads.
template <uint32_t kHeadDim_, uint32_t kRowHalves_>
struct Config {
  static constexpr uint32_t kHeadDim = kHeadDim_;
  static constexpr uint32_t kRowHalves = kRowHalves_;
  static constexpr uint32_t kPanels = (kHeadDim + kPanelDims - 1) / kPanelDims;
  static constexpr bool kWholePanels = kHeadDim % kPanelDims == 0;  // one copy brings them all
  static constexpr uint32_t kUnitBytes = kPanels * kPanelBytes;  // keys or values of a KV block
  static constexpr uint32_t kUnits = kRingBytes / kUnitBytes;
  static constexpr uint32_t kPartFloats = kHeadDim + 4;
  // Beside 160 a thread any block of decode_projection fits an SM: it starts while this kernel still runs.
  static constexpr uint32_t kMaxRegisters = kRowHalves == 1 ? 160 : 224;
};

// The positions that a sequence's token attends to, in KV blocks, and their cut into chunks.
struct Extent {
  uint32_t begin;  // first position seen
  uint32_t end;
  uint32_t chunk_shift;  // log2 of a chunk's KV blocks

  __device__ __forceinline__ static Extent of(const Params& p, uint32_t seq_len) {
    Extent e;
    e.end = seq_len;
    e.begin = p.window != 0 && e.end > p.window ? e.end - p.window : 0;
    const uint32_t most = e.num_blocks() + kMaxChunks - 1;
    e.chunk_shift = kMinChunkShift;
    // The smallest power of two of which kMaxChunks cover all.
    if (most / kMaxChunks > 1) e.chunk_shift = max(kMinChunkShift, 32 - __clz(most / kMaxChunks - 1));
    return e;
  }

  __device__ __forceinline__ uint32_t first_block() const { return begin / kBlockSize; }
  __device__ __forceinline__ uint32_t end_block() const { return (end + kBlockSize - 1) / kBlockSize; }
  __device__ __forceinline__ uint32_t num_blocks() const { return end_block() - first_block(); }
  __device__ __forceinline__ uint32_t num_chunks() const {
    return (num_blocks() + (1u << chunk_shift) - 1) >> chunk_shift;
  }
};

// All sequences' chunks one after the other, in shared memory.
struct List {
  uint32_t first_chunk[kMaxSeqs + 1];
  uint32_t seq_len[kMaxSeqs];

  __device__ void build(const Params& p) {
    for (uint32_t seq = threadIdx.x; seq < p.num_seqs; seq += kThreads) {
      seq_len[seq] = min(ptx::ld_relaxed_gpu(p.seq_lens + seq), p.max_blocks_per_seq * kBlockSize);
    }
    __syncthreads();
    exclusive_sums<kThreads>(p.num_seqs, first_chunk,
                             [&](uint32_t seq) { return Extent::of(p, seq_len[seq]).num_chunks(); });
  }

  __device__ uint32_t num_items(const Params& p) const { return first_chunk[p.num_seqs] * p.num_kv_heads; }
};

struct Item {
  uint32_t seq;
  uint32_t kv_head;
  uint32_t chunk;  // in the list
  uint32_t num_chunks;
  uint32_t seen_from;  // the sequence's first position seen
  uint32_t seen_to;
  uint32_t begin;  // KV blocks
  uint32_t end;

  __device__ __forceinline__ static Item at(const Params& p, const List& list, uint32_t index) {
    Item item;
    item.chunk = index / p.num_kv_heads;
    item.kv_head = index - item.chunk * p.num_kv_heads;
    item.seq = owner_of(list.first_chunk, p.num_seqs, item.chunk);
    const Extent extent = Extent::of(p, list.seq_len[item.seq]);
    item.num_chunks = extent.num_chunks();
    item.seen_from = extent.begin;
    item.seen_to = extent.end;
    item.begin = extent.first_block() + ((item.chunk - list.first_chunk[item.seq]) << extent.chunk_shift);
    item.end = min(item.begin + (1u << extent.chunk_shift), extent.end_block());
    return item;
  }

  __device__ __forceinline__ const __nv_bfloat16* queries(const Params& p, uint32_t head_dim) const {
    return p.q + size_t{seq} * p.q_stride + kv_head * p.group * head_dim;
  }
};

// Which items a warp takes. Warps of one block take items far apart: few items spread over all SMs,
// and the warps that have none leave their share of the ring to the others.
struct Share {
  uint32_t num_items;
  uint32_t num_warps;  // of a block that have items

  __device__ static Share of(const Params& p, const List& list) {
    Share s;
    s.num_items = list.num_items(p);
    s.num_warps = min(max((s.num_items + gridDim.x - 1) / gridDim.x, 1u), kWarps);
    return s;
  }

  __device__ __forceinline__ uint32_t first(uint32_t warp) const {
    return warp < num_warps ? blockIdx.x + warp * gridDim.x : num_items;
  }
  __device__ __forceinline__ uint32_t stride() const { return num_warps * gridDim.x; }
  // The warp of the grid that takes an item, as Params::finished counts them.
  __device__ __forceinline__ uint32_t owner(uint32_t index) const { return index % stride(); }
};

}  // namespace izar::paged_decode_attention
