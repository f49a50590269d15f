#include "tensor_map.h"

namespace izar {

namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

cudaError_t driver_encoder(Encode* out) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorSymbolNotFound;
  *out = reinterpret_cast<Encode>(function);
  return cudaSuccess;
}

}  // namespace

cudaError_t encode_tensor_map(CUtensorMap* map, const void* base, const TensorMapShape& shape) {
  Encode encode = nullptr;
  const cudaError_t error = driver_encoder(&encode);
  if (error != cudaSuccess) return error;
  cuuint64_t stride_bytes[3] = {};
  for (uint32_t i = 0; i + 1 < shape.rank; ++i) stride_bytes[i] = shape.strides[i] * 2;
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  // No promotion of L2 sectors: a box row is 128 bytes and is read once (measured: 256-byte
  // promotion costs 3 % of a chain of decode projections).
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, shape.rank, const_cast<void*>(base), shape.sizes, stride_bytes,
             shape.box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace izar
