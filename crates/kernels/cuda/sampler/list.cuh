// The few tokens that matter, in one block: each block lists those of its slice, block 0 takes all lists together. Then
// block 0 is alone with them, and the others are free for the next row.
#pragma once
#include "block.cuh"

namespace izar::sampler {

// Before listing, after a barrier of the cluster that follows the last use of a list.
__device__ inline void clear_list(Block& block) {
  if (threadIdx.x == 0) block.shared.num_listed = 0;
  __syncthreads();
}

__device__ __forceinline__ void list(Block& block, uint32_t key, uint32_t token) {
  const uint32_t at = atomicAdd(&block.shared.num_listed, 1u);
  if (at >= kMaxListed) return;
  block.shared.list_keys[at] = key;
  block.shared.list_tokens[at] = token;
}

// Tokens that the blocks have listed together, after a barrier of the cluster; kNoToken if a list may not hold them.
__device__ inline uint32_t count_listed(Block& block) {
  uint32_t counts[kBlocks];
#pragma unroll
  for (uint32_t rank = 0; rank < kBlocks; ++rank) {
    counts[rank] = ptx::ld_shared_cluster(ptx::map_shared(&block.shared.num_listed, rank));
  }
  uint32_t total = 0;
#pragma unroll
  for (uint32_t rank = 0; rank < kBlocks; ++rank) total += counts[rank];
  return total <= kMaxListed ? total : kNoToken;
}

// Lists the tokens whose keys, in the slice, are below `end`.
__device__ inline void list_below(Block& block, uint32_t end) {
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const uint4 four = block.keys()[vector];
    const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
    if (min(min(four.x, four.y), min(four.z, four.w)) >= end) continue;
#pragma unroll
    for (uint32_t lane = 0; lane < 4; ++lane) {
      if (keys[lane] < end) list(block, keys[lane], block.begin + 4 * vector + lane);
    }
  }
}

// Takes the lists of all blocks together, `total` tokens. Block 0 only; what it returns works on the list.
__device__ inline Block join(Block& block, uint32_t total) {
  Shared& shared = block.shared;
  uint32_t ends[kBlocks];
#pragma unroll
  for (uint32_t rank = 0; rank < kBlocks; ++rank) {
    ends[rank] = ptx::ld_shared_cluster(ptx::map_shared(&shared.num_listed, rank));
  }
#pragma unroll
  for (uint32_t rank = 1; rank < kBlocks; ++rank) ends[rank] += ends[rank - 1];
  // The block's own list stays where it is.
  for (uint32_t i = ends[0] + threadIdx.x; i < total; i += kThreads) {
    uint32_t rank = 0, start = 0;
#pragma unroll
    for (uint32_t r = 0; r < kBlocks - 1; ++r) {
      const bool is_beyond = i >= ends[r];
      rank += is_beyond;
      start = is_beyond ? ends[r] : start;
    }
    const uint32_t key = ptx::ld_shared_cluster(ptx::map_shared(shared.list_keys, rank) + 4 * (i - start));
    shared.list_tokens[i] = ptx::ld_shared_cluster(ptx::map_shared(shared.list_tokens, rank) + 4 * (i - start));
    shared.list_keys[i] = key;
  }
  // What the last vector lacks.
  if (threadIdx.x < 4 && total + threadIdx.x < kMaxListed) shared.list_keys[total + threadIdx.x] = kNoToken;
  __syncthreads();
  Block alone = block;
  alone.slice = reinterpret_cast<float*>(shared.list_keys);
  alone.num_vectors = (total + 3) / 4;
  alone.num_tokens = total;
  return alone;
}

}  // namespace izar::sampler
