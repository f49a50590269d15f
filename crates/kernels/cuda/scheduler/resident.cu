// resident: the scheduler kernel, and the kernel that makes its state. See resident.cuh.
//   One block of 256 threads, for as long as the engine runs. Bound: latency.
#include <cuda_runtime.h>

#include <cstdint>

#include "../ptx/memory.cuh"

#define IZAR_DEVICE __device__
#define IZAR_DEVICE_FUNCTION __device__
#include "resident.cuh"

extern "C" __device__ uint32_t izar_resident_init(void* core, const void* addresses);

namespace {

namespace ptx = izar::ptx;

// The block, its device and its ring, as one instruction a function.
struct Block {
  static constexpr uint32_t kThreads = 256;

  static __device__ __forceinline__ uint32_t thread() { return threadIdx.x; }
  static __device__ __forceinline__ void sync_block() { __syncthreads(); }
  static __device__ __forceinline__ void sync_warp() { __syncwarp(); }
  static __device__ __forceinline__ bool any_in_block(bool value) { return __syncthreads_or(value) != 0; }
  static __device__ __forceinline__ uint32_t ballot(bool value) { return __ballot_sync(0xFFFFFFFF, value); }
  static __device__ __forceinline__ uint32_t count_bits(uint32_t bits) { return __popc(bits); }
  static __device__ __forceinline__ uint32_t lowest_bit(uint32_t bits) { return __ffs(bits) - 1; }
  static __device__ __forceinline__ void max_shared(uint32_t* to, uint32_t value) { atomicMax(to, value); }
  static __device__ __forceinline__ void or_global(uint32_t* to, uint32_t value) { atomicOr(to, value); }
  static __device__ __forceinline__ void add_global(uint32_t* to, uint32_t value) { atomicAdd(to, value); }
  static __device__ __forceinline__ uint64_t load_acquire_sys(const uint64_t* at) { return ptx::ld_acquire_sys_u64(at); }
  static __device__ __forceinline__ uint64_t load_relaxed_sys(const uint64_t* at) { return ptx::ld_relaxed_sys_u64(at); }
  static __device__ __forceinline__ uint64_t load_acquire_gpu(const uint64_t* at) { return ptx::ld_acquire_gpu_u64(at); }
  static __device__ __forceinline__ void store_release_gpu(uint64_t* at, uint64_t value) {
    // What other threads of the block wrote before the barrier is made visible, too.
    __threadfence();
    ptx::st_release_gpu_u64(at, value);
  }
  static __device__ __forceinline__ void store_release_sys(uint64_t* at, uint64_t value) { ptx::st_release_sys_u64(at, value); }
  static __device__ __forceinline__ void store_relaxed_sys(uint64_t* at, uint64_t value) { ptx::st_relaxed_sys_u64(at, value); }
  static __device__ __forceinline__ uint64_t clock_ns() { return ptx::global_timer_ns(); }
  static __device__ __forceinline__ void pause() {}
  static __device__ __forceinline__ void nap(uint32_t ns) { __nanosleep(ns); }
  static __device__ int launch(const void* exec) {
    return cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(const_cast<void*>(exec)), cudaStreamGraphFireAndForget);
  }
  static __device__ int relaunch() { return cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch); }
};

__global__ void __launch_bounds__(Block::kThreads) kernel(const IzarResidentArgs a) {
  __shared__ izar::resident::Shared<Block::kThreads> shared;
  izar::resident::Scheduler<Block> scheduler{a, shared};
  scheduler.run();
}

__global__ void init_kernel(void* core, const void* addresses, uint32_t* made) { *made = izar_resident_init(core, addresses); }

}  // namespace

extern "C" int32_t izar_resident(const IzarResidentArgs* args, cudaStream_t stream) {
  kernel<<<1, Block::kThreads, 0, stream>>>(*args);
  return cudaGetLastError();
}

extern "C" int32_t izar_resident_make(void* core, const void* addresses, uint32_t* made, cudaStream_t stream) {
  init_kernel<<<1, 1, 0, stream>>>(core, addresses, made);
  return cudaGetLastError();
}
