// Sums over a short list, by all threads of a block.
#pragma once
#include <cstdint>

namespace izar {

// sums[i] = count(0) + ... + count(i - 1) for i in 0 ..= length, in shared memory. Every thread calls it.
template <uint32_t kThreads, class Count>
__device__ __forceinline__ void exclusive_sums(uint32_t length, uint32_t* sums, Count count) {
  constexpr uint32_t kWarps = kThreads / 32;
  __shared__ uint32_t warp_sums[kWarps];
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  uint32_t carry = 0;
  for (uint32_t base = 0; base < length; base += kThreads) {
    const uint32_t i = base + threadIdx.x;
    const uint32_t own = i < length ? count(i) : 0;
    uint32_t sum = own;
    for (uint32_t offset = 1; offset < 32; offset *= 2) {
      const uint32_t below = __shfl_up_sync(0xFFFFFFFF, sum, offset);
      if (lane >= offset) sum += below;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    uint32_t before = carry;
    for (uint32_t w = 0; w < kWarps; ++w) {
      if (w < warp) before += warp_sums[w];
      carry += warp_sums[w];
    }
    if (i < length) sums[i] = before + sum - own;
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[length] = carry;
  __syncthreads();
}

// The last i with sums[i] <= value, where sums[0] is 0 and length > 0.
__device__ __forceinline__ uint32_t owner_of(const uint32_t* sums, uint32_t length, uint32_t value) {
  uint32_t low = 0;
  uint32_t high = length;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (sums[middle] <= value) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace izar
