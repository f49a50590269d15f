// Thread block clusters and the shared memory of their blocks, one instruction per function.
#pragma once
#include <cstdint>

#include "mbarrier.cuh"

namespace izar::ptx {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

// Scope is the cluster: what a thread wrote before it arrives is visible to those that have waited.
__device__ __forceinline__ void cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait_acquire() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address in the cluster's window of what lies at `pointer` in the shared memory of block `rank`.
__device__ __forceinline__ uint32_t map_shared(const void* pointer, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(pointer)), "r"(rank));
  return address;
}

__device__ __forceinline__ uint32_t ld_shared_cluster(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ void st_shared_cluster(uint32_t address, uint32_t value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void st_shared_cluster_v2(uint32_t address, uint64_t a, uint64_t b) {
  asm volatile("st.shared::cluster.v2.u64 [%0], {%1, %2};" ::"r"(address), "l"(a), "l"(b) : "memory");
}

__device__ __forceinline__ uint32_t atom_add_shared_cluster(uint32_t address, uint32_t value) {
  uint32_t before;
  asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(address), "r"(value)
               : "memory");
  return before;
}

}  // namespace izar::ptx
