// expert_gemm: each sorted row times its expert's weight, at the tensor cores' speed for many rows an expert.
//   weight  [num_experts * num_rows, depth]  bf16, dense: by expert
//   x       [num_x_rows, depth]              bf16, dense: sorted rows
//   groups, counts                           as moe_route writes them, for kMaxColumns rows a group
//   y       [sorted rows, num_rows]          bf16, dense; with swiglu an expert's weight is [gate; up], y has num_rows / 2
//                                            columns, silu(gate) * up
// Grid num_blocks, one an SM. Requires depth % 8 == 0, num_rows % 8 == 0 (16 with swiglu), 16-byte aligned weight and x. A
// row's result depends on the row and the weight alone.
// Bound: 2 * num_rows * depth * rows operations.  Measured: docs/perf/h200-kernels.md
#include "expert_gemm.cuh"

#include "../common/launch.h"
#include "../common/tensor_map.h"

// Mirrored by moe::ExpertGemmArgs.
struct IzarExpertGemmArgs {
  const void* weight;
  const void* x;
  void* y;
  const uint4* groups;
  const uint32_t* counts;
  uint32_t num_experts;
  uint32_t num_rows;
  uint32_t depth;
  uint32_t num_x_rows;
  uint32_t num_blocks;
  uint32_t swiglu;
};
static_assert(sizeof(IzarExpertGemmArgs) == 64);

namespace izar::expert_gemm {

namespace {

using Args = IzarExpertGemmArgs;

template <class C>
cudaError_t encode_weights(CUtensorMap* map, const Args& a) {
  const uint64_t depth = a.depth;
  const uint64_t all_rows = uint64_t{a.num_experts} * a.num_rows;
  if (!C::kSwiglu) return encode_tensor_map(map, a.weight, {2, {depth, all_rows}, {depth}, {kUnitDepth, C::kRows}});
  // As in expert_projection: 8 gate rows, their 8 up rows, the next 8 gate rows, ...
  const uint64_t half = a.num_rows / 2;
  return encode_tensor_map(
      map, a.weight,
      {4, {depth, 8, 2, (all_rows - half) / 8}, {depth, half * depth, 8 * depth}, {kUnitDepth, 8, 2, C::kRows / 16}});
}

template <class C>
cudaError_t launch(const Args& a, cudaStream_t stream) {
  CUtensorMap weight_map;
  CUtensorMap x_map;
  cudaError_t error = encode_weights<C>(&weight_map, a);
  if (error != cudaSuccess) return error;
  error = encode_tensor_map(&x_map, a.x, {2, {a.depth, a.num_x_rows}, {a.depth}, {kUnitDepth, kColumns}});
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  if (error != cudaSuccess) return error;
  Params p = {};
  p.y = static_cast<__nv_bfloat16*>(a.y);
  p.groups = a.groups;
  p.counts = a.counts;
  p.num_outputs = C::kSwiglu ? a.num_rows / 2 : a.num_rows;
  p.tiles_per_group = (p.num_outputs + C::kOutputs - 1) / C::kOutputs;
  p.num_units = (a.depth + kUnitDepth - 1) / kUnitDepth;
  p.rows_per_expert = C::kSwiglu ? a.num_rows / 8 : a.num_rows;
  return launch_overlapped(kernel<C>, dim3(a.num_blocks), C::kThreads, C::kSharedBytes, stream, weight_map, x_map, p);
}

}  // namespace

}  // namespace izar::expert_gemm

extern "C" int32_t izar_expert_gemm(const IzarExpertGemmArgs* args, cudaStream_t stream) {
  using namespace izar::expert_gemm;
  return args->swiglu ? launch<Config<true>>(*args, stream) : launch<Config<false>>(*args, stream);
}
