// How clusters go over rows of logits: what a block's slice is, and how kernels of such blocks are launched.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "block.cuh"

namespace izar::sampler {

constexpr uint32_t kSharedBytes = (sizeof(Shared) + 127) / 128 * 128;
constexpr uint32_t kMaxSlice = 51200;
static_assert(kSharedBytes + 4 * kMaxSlice <= 227 * 1024 && kMaxSlice <= kMaxChunks * kChunk);

struct Logits {
  const float* logits;  // of row 0
  uint32_t stride;
  uint32_t vocab_size;
  uint32_t slice_len;  // tokens of a block, a multiple of 128
};

// The block on the first row of its cluster, which is that of its place in the grid.
__device__ inline Block block_of(const Logits& rows, unsigned char* memory) {
  const uint32_t rank = ptx::cluster_rank();
  const uint32_t begin = min(rank * rows.slice_len, rows.vocab_size);
  const uint32_t num_tokens = min(rows.slice_len, rows.vocab_size - begin);
  return {*reinterpret_cast<Shared*>(memory),
          reinterpret_cast<float*>(memory + kSharedBytes),
          rows.logits + size_t{blockIdx.y} * rows.stride + begin,
          nullptr,
          rank,
          begin,
          num_tokens,
          (num_tokens + 3) / 4,
          rows.stride % 4 == 0,
          0,
          0,
          0,
          true};
}

// Clusters of the kernel that are resident at once; allows it the shared memory it takes.
template <typename Args>
cudaError_t resident_clusters(void (*kernel)(Args), uint32_t slice_len, uint32_t* count) {
  const uint32_t bytes = kSharedBytes + 4 * slice_len;
  cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (code != cudaSuccess) return code;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = kBlocks;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  code = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  *count = clusters;
  return code;
}

// Launches `num_clusters` clusters, overlapped with the kernel before, which they wait for.
template <typename Args>
cudaError_t launch_clusters(void (*kernel)(Args), uint32_t slice_len, uint32_t num_clusters, cudaStream_t stream,
                            const Args& args) {
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kBlocks, num_clusters);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kSharedBytes + 4 * slice_len;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace izar::sampler
