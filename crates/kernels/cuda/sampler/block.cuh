// One block of the cluster that samples a row: its slice of the row in shared memory, and how the blocks agree.
//
// The row is cut into equal slices, one a block. Everything that blocks tell each other is a maximum or an integer sum
// (or, for logprobs only, a sum in a fixed order), so the cut changes nothing. A cluster samples row after row; the copy
// of the next row is asked for as soon as the slice is no longer needed.
#pragma once
#include <cstdint>

#include "../ptx/bulk.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/warpgroup.cuh"
#include "elementary.cuh"
#include "state.cuh"

namespace izar::sampler {

constexpr uint32_t kThreads = 512;
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint32_t kBlocks = 7;            // of a cluster
constexpr uint32_t kChunk = 4 * kThreads;  // logits that one copy brings and one look of all threads covers
constexpr uint32_t kMaxChunks = 28;
constexpr uint32_t kBins = kThreads;  // a thread owns one
constexpr uint32_t kMaxListed = 1024;
constexpr uint32_t kMaxTop = 128;
constexpr uint32_t kWholeWarp = 0xFFFFFFFF;
constexpr uint32_t kNoToken = 0xFFFFFFFF;

// Who works together: the blocks of the cluster on their slices, or one block on a list.
struct Cluster {
  static constexpr uint32_t kSize = kBlocks;
};
struct Alone {
  static constexpr uint32_t kSize = 1;
};

// Two numbers that are combined together.
struct Pair {
  uint64_t a;
  uint64_t b;
};

struct Shared {
  uint32_t bins[2][2][kBins];  // in turn; low and high halves of weights; read by all blocks of the cluster
  Pair exchange[2][kBlocks * kWarps];  // in turn; written by all warps of the cluster
  Pair of_warps[kWarps];
  uint32_t list_keys[kMaxListed];  // read by all blocks of the cluster, as are the next two
  uint32_t list_tokens[kMaxListed];
  uint32_t num_listed;  // may be more than there is room for
  uint32_t bin;
  uint64_t before;
  uint64_t after;
  uint64_t copies[kMaxChunks];  // barriers
  Row row;
  uint32_t mask_state;  // of the row
};

struct Block {
  Shared& shared;
  float* slice;         // logits, or keys of scaled logits; or the keys of a list
  const float* logits;  // of the slice, in device memory
  const float* next_logits;  // those of the cluster's next row, null if there is none or they are asked for
  uint32_t rank;
  uint32_t begin;        // first token of the slice
  uint32_t num_tokens;
  uint32_t num_vectors;  // groups of four; what the last one lacks is -inf
  bool is_aligned;       // rows start at multiples of 16 bytes
  uint32_t copy_parity;
  uint32_t exchange_turn;
  uint32_t bins_turn;
  bool is_raw;  // the slice holds the logits as they came

  __device__ float4* vectors() const { return reinterpret_cast<float4*>(slice); }
  __device__ uint4* keys() const { return reinterpret_cast<uint4*>(slice); }
};

template <typename Team>
__device__ __forceinline__ void sync() {
  if (Team::kSize == 1) {
    __syncthreads();
  } else {
    __syncwarp();
    ptx::cluster_arrive_release();
    ptx::cluster_wait_acquire();
  }
}

// How numbers are combined: two of them, or those of a warp.
template <typename Combine>
__device__ __forceinline__ uint64_t shuffle_up(uint64_t x, Combine combine) {
#pragma unroll
  for (uint32_t offset = 16; offset > 0; offset /= 2) x = combine(x, __shfl_xor_sync(kWholeWarp, x, offset));
  return x;
}

struct Larger {
  __device__ __forceinline__ uint64_t operator()(uint64_t x, uint64_t y) const { return x > y ? x : y; }
  __device__ __forceinline__ uint64_t of_warp(uint64_t x) const {
    const uint32_t high = __reduce_max_sync(kWholeWarp, static_cast<uint32_t>(x >> 32));
    const uint32_t low = __reduce_max_sync(kWholeWarp, high == x >> 32 ? static_cast<uint32_t>(x) : 0);
    return uint64_t{high} << 32 | low;
  }
};
struct Sum {
  __device__ __forceinline__ uint64_t operator()(uint64_t x, uint64_t y) const { return x + y; }
  __device__ __forceinline__ uint64_t of_warp(uint64_t x) const { return shuffle_up(x, *this); }
};
struct SumOfDoubles {
  __device__ __forceinline__ uint64_t operator()(uint64_t x, uint64_t y) const {
    return __double_as_longlong(__dadd_rn(__longlong_as_double(x), __longlong_as_double(y)));
  }
  __device__ __forceinline__ uint64_t of_warp(uint64_t x) const { return shuffle_up(x, *this); }
};
// For a half of a pair that is not used.
struct Nothing {
  __device__ __forceinline__ uint64_t operator()(uint64_t, uint64_t) const { return 0; }
  __device__ __forceinline__ uint64_t of_warp(uint64_t) const { return 0; }
};

// Combines a pair of every thread of the team; all get the result. Orders shared memory like a barrier of the team.
template <typename Team, typename A, typename B>
__device__ inline Pair all_reduce(Block& block, Pair value, A combine_a, B combine_b) {
  constexpr uint32_t kParts = Team::kSize * kWarps;
  Shared& shared = block.shared;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  value = {combine_a.of_warp(value.a), combine_b.of_warp(value.b)};
  Pair* parts = Team::kSize == 1 ? shared.of_warps : shared.exchange[block.exchange_turn];
  if constexpr (Team::kSize == 1) {
    if (lane == 0) parts[warp] = value;
  } else {
    // Every warp tells every block.
    if (lane < Team::kSize) {
      ptx::st_shared_cluster_v2(ptx::map_shared(&parts[block.rank * kWarps + warp], lane), value.a, value.b);
    }
    // The parts of this turn are written again after the barrier of the next one only.
    block.exchange_turn ^= 1;
  }
  sync<Team>();
  Pair total = parts[lane % kParts];
#pragma unroll
  for (uint32_t i = 32; i < kParts; i += 32) {
    if (i + lane >= kParts) continue;
    total.a = combine_a(total.a, parts[i + lane].a);
    total.b = combine_b(total.b, parts[i + lane].b);
  }
  if (kParts < 32 && lane >= kParts) total = {0, 0};
  total = {combine_a.of_warp(total.a), combine_b.of_warp(total.b)};
  if (Team::kSize == 1) __syncthreads();  // before the parts are written again
  return total;
}

template <typename Team, typename A>
__device__ inline uint64_t all_reduce(Block& block, uint64_t value, A combine) {
  return all_reduce<Team>(block, Pair{value, 0}, combine, Nothing{}).a;
}

// Before a row, and before logprobs: no block reads bins between the barriers around.
__device__ inline void clear_bins(Block& block) {
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) (&block.shared.bins[0][0][0])[i * kThreads + threadIdx.x] = 0;
  block.bins_turn = 0;
}

// Copies a slice to shared memory, a lane of the first warp a chunk. Rows that do not start at multiples of 16 bytes are read
// by `load` instead.
__device__ inline void copy_slice(Block& block, const float* logits) {
  const uint32_t whole = block.num_tokens / 4 * 4;
  const uint32_t at = kChunk * threadIdx.x;
  if (threadIdx.x >= kMaxChunks || at >= whole || !block.is_aligned) return;
  uint64_t* barrier = &block.shared.copies[threadIdx.x];
  const uint32_t bytes = min(kChunk, whole - at) * 4;
  ptx::mbarrier_arrive_expect_tx(barrier, bytes);
  ptx::bulk_load(block.slice + at, logits + at, bytes, barrier);
}

// Each by the thread that copies the chunk.
__device__ inline void init_copies(Block& block) {
  if (threadIdx.x >= kMaxChunks) return;
  ptx::mbarrier_init(&block.shared.copies[threadIdx.x], 1);
  ptx::fence_mbarrier_init();
}

// Asks for the slice of another row, or the present one again. Call when no thread of the block needs what is in the slice,
// after a barrier.
__device__ inline void request(Block& block, const float* logits) {
  if (threadIdx.x < kMaxChunks) ptx::fence_proxy_async();
  copy_slice(block, logits);
}

// Asks for the slice of the next row, unless there is none or that is done.
__device__ inline void request_next(Block& block) {
  if (block.next_logits != nullptr) request(block, block.next_logits);
  block.next_logits = nullptr;
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

// Waits for the slice, and masks it by `mask` (the slice's words, in shared memory) if there is one. What it returns is of
// the logits as they came.
__device__ inline Best load(Block& block, const uint32_t* mask) {
  Best best;
  for (uint32_t chunk = 0, vector = threadIdx.x; vector < block.num_vectors; ++chunk, vector += kThreads) {
    float4 x;
    if (block.is_aligned && 4 * vector + 4 <= block.num_tokens) {
      ptx::mbarrier_wait(&block.shared.copies[chunk], block.copy_parity);
      x = block.vectors()[vector];
    } else {
      x = fetch(block, vector);
      block.vectors()[vector] = x;
    }
    best.look(x, vector);
    if (mask != nullptr) block.vectors()[vector] = masked(x, mask[vector / 8] >> vector % 8 * 4);
  }
  block.copy_parity ^= 1;
  return best;
}

// Looks at the slice as it is now.
__device__ inline Best look(const Block& block) {
  Best best;
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    best.look(block.vectors()[vector], vector);
  }
  return best;
}

}  // namespace izar::sampler
