// Bulk copies without a tensor map, one instruction per function.
#pragma once
#include <cstdint>

#include "mbarrier.cuh"

namespace izar::ptx {

// Both addresses and the size are multiples of 16 bytes. Completes on `barrier`, which must expect the bytes.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

}  // namespace izar::ptx
