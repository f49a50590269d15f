// One block of the cluster that samples a row: its slice of the row in shared memory, and how the blocks agree.
//
// The row is cut into equal slices, one a block. Everything that blocks tell each other is a maximum or an integer sum
// (or, for logprobs only, a sum in a fixed order), so the cut changes nothing.
#pragma once
#include <cstdint>

#include "../ptx/bulk.cuh"
#include "../ptx/cluster.cuh"
#include "elementary.cuh"
#include "state.cuh"

namespace izar::sampler {

constexpr uint32_t kThreads = 512;
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint32_t kMaxBlocks = 8;          // of a cluster
constexpr uint32_t kChunk = 4 * kThreads;   // logits that one copy brings and one look of all threads covers
constexpr uint32_t kMaxChunks = 28;
constexpr uint32_t kBins = kThreads;        // a thread owns one
constexpr uint32_t kMaxTop = 128;
constexpr uint32_t kWholeWarp = 0xFFFFFFFF;
constexpr uint32_t kNoToken = 0xFFFFFFFF;

// Two numbers that are combined together.
struct Pair {
  uint64_t a;
  uint64_t b;
};

struct Shared {
  uint32_t bins[2][2][kBins];  // in turn; low and high halves of weights; read by all blocks of the cluster
  Pair exchange[2][kMaxBlocks];  // in turn; written by all blocks of the cluster
  Pair of_warps[kWarps];
  uint64_t copies[kMaxChunks];  // barriers
  uint64_t before;
  uint64_t after;
  uint32_t bin;
  uint32_t num_listed;  // added to by all blocks of the cluster
  uint32_t listed[kMaxTop];
  uint32_t ordered[kMaxTop];
  Row row;
};

struct Block {
  Shared& shared;
  float* slice;         // logits, then keys of scaled logits
  const float* logits;  // of the slice, in device memory
  uint32_t rank;
  uint32_t size;
  uint32_t begin;        // first token of the slice
  uint32_t num_vectors;  // groups of four in the slice; what the last one lacks is -inf
  uint32_t num_tokens;
  bool is_aligned;  // rows start at multiples of 16 bytes
  uint32_t exchange_turn;
  uint32_t bins_turn;

  __device__ float4* vectors() const { return reinterpret_cast<float4*>(slice); }
  __device__ uint4* keys() const { return reinterpret_cast<uint4*>(slice); }
};

struct Larger {
  __device__ uint64_t operator()(uint64_t x, uint64_t y) const { return x > y ? x : y; }
};
struct Sum {
  __device__ uint64_t operator()(uint64_t x, uint64_t y) const { return x + y; }
};
struct SumOfDoubles {
  __device__ uint64_t operator()(uint64_t x, uint64_t y) const {
    return __double_as_longlong(__dadd_rn(__longlong_as_double(x), __longlong_as_double(y)));
  }
};

// Combines a pair of every thread of the cluster; all get the result. Orders shared memory like a barrier of the
// cluster.
template <typename A, typename B>
__device__ Pair all_reduce(Block& block, Pair value, A combine_a, B combine_b) {
  Shared& shared = block.shared;
#pragma unroll
  for (uint32_t offset = 16; offset > 0; offset /= 2) {
    value.a = combine_a(value.a, __shfl_xor_sync(kWholeWarp, value.a, offset));
    value.b = combine_b(value.b, __shfl_xor_sync(kWholeWarp, value.b, offset));
  }
  if (threadIdx.x % 32 == 0) shared.of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  Pair* slots = shared.exchange[block.exchange_turn];
  if (threadIdx.x < block.size) {
    Pair total = shared.of_warps[0];
    for (uint32_t warp = 1; warp < kWarps; ++warp) {
      total.a = combine_a(total.a, shared.of_warps[warp].a);
      total.b = combine_b(total.b, shared.of_warps[warp].b);
    }
    ptx::st_shared_cluster_v2(ptx::map_shared(&slots[block.rank], threadIdx.x), total.a, total.b);
  }
  ptx::cluster_arrive_release();
  ptx::cluster_wait_acquire();
  Pair total = slots[0];
  for (uint32_t rank = 1; rank < block.size; ++rank) {
    total.a = combine_a(total.a, slots[rank].a);
    total.b = combine_b(total.b, slots[rank].b);
  }
  // The slots of this turn are written again after the barrier of the next one only.
  block.exchange_turn ^= 1;
  return total;
}

template <typename A>
__device__ uint64_t all_reduce(Block& block, uint64_t value, A combine) {
  return all_reduce(block, Pair{value, 0}, combine, Larger{}).a;
}

__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// The largest of what a thread has looked at.
struct Best {
  float max = -INFINITY;
  float max_or_nan = -INFINITY;
  uint32_t vector = kNoToken;  // the first that has it

  __device__ __forceinline__ void look(float4 x, uint32_t at) {
    const float m = larger_or_nan(larger_or_nan(x.x, x.y), larger_or_nan(x.z, x.w));
    max_or_nan = larger_or_nan(max_or_nan, m);
    if (m > max) {
      max = m;
      vector = at;
    }
  }

  // Orders by the value, NaN first, then by the token, the lowest first.
  __device__ uint64_t packed(const Block& block) const {
    if (max_or_nan != max_or_nan) return uint64_t{kNanKey} << 32;
    if (vector == kNoToken) return uint64_t{rising_key(max)} << 32;
    const float4 x = block.vectors()[vector];
    const uint32_t lane = x.x == max ? 0 : x.y == max ? 1 : x.z == max ? 2 : 3;
    return uint64_t{rising_key(max)} << 32 | (~(block.begin + 4 * vector + lane));
  }
};

// Asks for the slice. Rows that do not start at multiples of 16 bytes are read by `load` instead.
__device__ void request(Block& block) {
  if (threadIdx.x != 0 || !block.is_aligned) return;
  const uint32_t whole = block.num_tokens / 4 * 4;
  const uint32_t num_chunks = (whole + kChunk - 1) / kChunk;
  for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) ptx::mbarrier_init(&block.shared.copies[chunk], 1);
  ptx::fence_mbarrier_init();
  for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) {
    const uint32_t at = chunk * kChunk;
    const uint32_t bytes = min(kChunk, whole - at) * 4;
    ptx::mbarrier_arrive_expect_tx(&block.shared.copies[chunk], bytes);
    ptx::bulk_load(block.slice + at, block.logits + at, bytes, &block.shared.copies[chunk]);
  }
}

// A vector from device memory.
__device__ __forceinline__ float4 fetch(const Block& block, uint32_t vector) {
  const uint32_t at = 4 * vector;
  if (block.is_aligned && at + 4 <= block.num_tokens) return reinterpret_cast<const float4*>(block.logits)[vector];
  const auto lane = [&block](uint32_t i) { return i < block.num_tokens ? block.logits[i] : -INFINITY; };
  return {lane(at), lane(at + 1), lane(at + 2), lane(at + 3)};
}

// Four bits of a mask: those of the tokens of a vector.
__device__ __forceinline__ float4 masked(float4 x, uint32_t bits) {
  return {bits & 1 ? x.x : -INFINITY, bits & 2 ? x.y : -INFINITY, bits & 4 ? x.z : -INFINITY,
          bits & 8 ? x.w : -INFINITY};
}

// Brings the slice to shared memory, masked by `mask` (the slice's words) if there is one. What it returns is of the
// logits as they came.
__device__ Best load(Block& block, const uint32_t* mask) {
  Best best;
  for (uint32_t chunk = 0, vector = threadIdx.x; vector < block.num_vectors; ++chunk, vector += kThreads) {
    float4 x;
    if (block.is_aligned && 4 * vector + 4 <= block.num_tokens) {
      ptx::mbarrier_wait(&block.shared.copies[chunk], 0);
      x = block.vectors()[vector];
    } else {
      x = fetch(block, vector);
      block.vectors()[vector] = x;
    }
    best.look(x, vector);
    if (mask != nullptr) block.vectors()[vector] = masked(x, mask[vector / 8] >> vector % 8 * 4);
  }
  return best;
}

// Looks at the slice as it is now.
__device__ Best look(const Block& block) {
  Best best;
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    best.look(block.vectors()[vector], vector);
  }
  return best;
}

}  // namespace izar::sampler
