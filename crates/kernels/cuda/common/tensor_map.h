// Tensor maps for bulk copies. The encoder lives in the driver, which is asked for at run time:
// nothing here links libcuda.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace izar {

// A dense bf16 tensor of up to 4 dimensions, contiguous dimension first. strides[i] is the distance in
// elements along dimension i + 1; box is what one copy moves, its rows of 64 elements swizzled by
// 128 bytes. What lies outside reads as zero.
struct TensorMapShape {
  uint32_t rank;
  uint64_t sizes[4];
  uint64_t strides[3];
  uint32_t box[4];
};

cudaError_t encode_tensor_map(CUtensorMap* map, const void* base, const TensorMapShape& shape);

}  // namespace izar
