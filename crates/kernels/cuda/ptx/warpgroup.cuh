// What warpgroups and warps share a multiprocessor by, one instruction per function.
#pragma once
#include <cstdint>

namespace izar::ptx {

// Every warp of a warpgroup gives back registers, or waits for them.
template <uint32_t kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <uint32_t kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Waits for so many threads at one of the block's barriers; 0 is __syncthreads's.
__device__ __forceinline__ void named_barrier(uint32_t barrier, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Makes this thread's writes of shared memory visible to the copy engine and the tensor cores.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// 2^x, to 2 ulp; 0 for -inf, exactly 1 for 0.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace izar::ptx
