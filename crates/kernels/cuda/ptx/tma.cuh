// Bulk tensor copies (TMA), one instruction per function. Coordinates start with the contiguous dimension.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "mbarrier.cuh"

namespace izar::ptx {

// L2 eviction policies, as createpolicy encodes them for a whole access.
constexpr uint64_t kEvictFirst = 0x12F0000000000000;  // read once: weights
constexpr uint64_t kEvictLast = 0x14F0000000000000;   // read by every block: activations
constexpr uint64_t kEvictNormal = 0x1000000000000000;

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tma_load_2d(void* shared, const CUtensorMap* map, uint64_t* barrier, uint64_t policy,
                                            int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_3d(void* shared, const CUtensorMap* map, uint64_t* barrier, uint64_t policy,
                                            int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_4d(void* shared, const CUtensorMap* map, uint64_t* barrier, uint64_t policy,
                                            int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}

}  // namespace izar::ptx
