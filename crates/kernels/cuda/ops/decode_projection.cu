// decode_projection: y = x * weight^T for up to 64 tokens, with the epilogues of a decoder layer.
//   weight    [num_rows, depth]       bf16, rows contiguous
//   x         [num_tokens, depth]     bf16, row stride x_stride
//   bias      [num_rows]              bf16, or null; added in f32
//   residual  [num_tokens, num_rows]  bf16, row stride residual_stride, or null; added to the bf16 product; may be y
//   y         [num_tokens, num_rows]  bf16, or f32 without residual (logits); row stride y_stride
//   with swiglu: weight is [gate; up], y [num_tokens, num_rows / 2] = silu(gate) * up, no bias, no residual
//   parts     [num_blocks, 64 * 64]   f32, filled with 0xFF bytes once, left so by every launch
// Grid num_blocks, 192 threads, at most 113 KB of shared memory. Requires depth % 8 == 0, x_stride % 8 == 0, 16-byte
// aligned weight and x, y and residual aligned to two of their elements; with swiglu num_rows % 16 == 0. Accumulates in f32 in an order that
// depends on num_rows, depth and num_blocks alone, so a token's result does not depend on its batch.
// Launched with programmatic serialisation: reads weight before the previous kernel of the stream has finished.
// Bound: HBM bytes = 2 * num_rows * depth.  Measured: docs/perf/h200-kernels.md
#include "decode_projection.cuh"

#include <algorithm>

#include "../common/tensor_map.h"

// Mirrored by ffi::DecodeProjectionArgs.
struct IzarDecodeProjectionArgs {
  const void* weight;
  const void* x;
  const void* bias;
  const void* residual;
  void* y;
  void* parts;
  uint32_t* error;
  uint32_t num_rows;
  uint32_t depth;
  uint32_t num_tokens;
  uint32_t x_stride;
  uint32_t y_stride;
  uint32_t residual_stride;
  uint32_t num_blocks;
  uint32_t swiglu;
  uint32_t is_f32;
  uint32_t reserved;
};
static_assert(sizeof(IzarDecodeProjectionArgs) == 96);

namespace izar::decode_projection {

namespace {

using Args = IzarDecodeProjectionArgs;

cudaError_t encode_weights(CUtensorMap* map, const Args& a) {
  const uint64_t depth = a.depth;
  if (!a.swiglu) {
    return encode_tensor_map(map, a.weight, {2, {depth, a.num_rows}, {depth}, {kUnitDepth, kTileRows}});
  }
  // 8 gate rows, their 8 up rows, the next 8 gate rows, ...: a warp's 16 rows hold pairs.
  const uint64_t half = a.num_rows / 2;
  return encode_tensor_map(map, a.weight,
                           {4, {depth, 8, 2, half / 8}, {depth, half * depth, 8 * depth}, {kUnitDepth, 8, 2, 4}});
}

template <class C>
cudaError_t launch(const Args& a, cudaStream_t stream) {
  CUtensorMap weight_map;
  CUtensorMap x_map;
  cudaError_t error = encode_weights(&weight_map, a);
  if (error != cudaSuccess) return error;
  error = encode_tensor_map(&x_map, a.x, {2, {a.depth, a.num_tokens}, {a.x_stride}, {kUnitDepth, C::kTokens}});
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  if (error != cudaSuccess) return error;

  Params p = {};
  p.y = a.is_f32 ? nullptr : static_cast<__nv_bfloat16*>(a.y);
  p.y_f32 = a.is_f32 ? static_cast<float*>(a.y) : nullptr;
  p.bias = static_cast<const __nv_bfloat16*>(a.bias);
  p.residual = static_cast<const __nv_bfloat16*>(a.residual);
  p.parts = static_cast<float*>(a.parts);
  p.error = a.error;
  p.num_tokens = a.num_tokens;
  p.num_outputs = C::kSwiglu ? a.num_rows / 2 : a.num_rows;
  p.y_stride = a.y_stride;
  p.residual_stride = a.residual_stride;
  p.units_per_tile = (a.depth + kUnitDepth - 1) / kUnitDepth;
  p.num_units = (p.num_outputs + C::kTileOutputs - 1) / C::kTileOutputs * p.units_per_tile;

  cudaLaunchAttribute serialisation;
  serialisation.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  serialisation.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = std::min(a.num_blocks, p.num_units);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = C::kSharedBytes;
  config.stream = stream;
  config.attrs = &serialisation;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel<C>, weight_map, x_map, p);
}

// Ring depths fill half an SM's shared memory; they trade weights in flight for activations in flight.
template <bool kSwiglu>
cudaError_t launch_for_tokens(const Args& a, cudaStream_t stream) {
  if (a.num_tokens <= 8) return launch<Config<8, 11, 11, kSwiglu>>(a, stream);
  if (a.num_tokens <= 16) return launch<Config<16, 11, 10, kSwiglu>>(a, stream);
  if (a.num_tokens <= 24) return launch<Config<24, 10, 8, kSwiglu>>(a, stream);
  if (a.num_tokens <= 32) return launch<Config<32, 10, 6, kSwiglu>>(a, stream);
  if (a.num_tokens <= 48) return launch<Config<48, 9, 6, kSwiglu>>(a, stream);
  return launch<Config<64, 8, 5, kSwiglu>>(a, stream);
}

}  // namespace

}  // namespace izar::decode_projection

extern "C" int32_t izar_decode_projection(const IzarDecodeProjectionArgs* args, cudaStream_t stream) {
  using namespace izar::decode_projection;
  return args->swiglu ? launch_for_tokens<true>(*args, stream) : launch_for_tokens<false>(*args, stream);
}
