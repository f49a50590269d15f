// expert_projection: each sorted row times its expert's weight, at the memory's speed for few rows an expert.
//   weight  [num_experts * num_rows, depth]  bf16, dense: by expert
//   x       [num_x_rows, depth]              bf16, dense: sorted rows; with columns, the tokens themselves
//   groups, columns, counts                  as moe_route writes them, for tile_tokens
//   y       [sorted rows, num_rows]          bf16, dense; with swiglu an expert's weight is [gate; up], y has num_rows / 2
//                                            columns, silu(gate) * up
//   parts   [num_blocks, 64 * 64]            f32, filled with 0xFF bytes once, left so by every launch
// Grid num_blocks (at most two an SM), 192 threads, at most 113 KB of shared memory. Requires depth % 8 == 0, num_rows % 8
// == 0 (16 with swiglu), 16-byte aligned weight and x. A row's result depends on the row and the weight alone.
// Launched with programmatic serialisation. Groups are read before the previous kernel has finished unless
// waits_for_groups: then that kernel may be the one that writes them. Weights must have been written long before.
// Bound: HBM bytes = 2 * num_rows * depth * distinct experts.  Measured: docs/perf/h200-kernels.md
#include "expert_projection.cuh"

#include "../common/launch.h"
#include "../common/tensor_map.h"

// Mirrored by moe::ExpertProjectionArgs.
struct IzarExpertProjectionArgs {
  const void* weight;
  const void* x;
  void* y;
  const uint4* groups;
  const uint32_t* columns;
  const uint32_t* counts;
  float* parts;
  uint32_t* error;
  uint32_t num_experts;
  uint32_t num_rows;
  uint32_t depth;
  uint32_t num_x_rows;
  uint32_t tile_tokens;
  uint32_t num_blocks;
  uint32_t swiglu;
  uint32_t waits_for_groups;
};
static_assert(sizeof(IzarExpertProjectionArgs) == 96);

namespace izar::expert_projection {

namespace {

using Args = IzarExpertProjectionArgs;

cudaError_t encode_weights(CUtensorMap* map, const Args& a) {
  const uint64_t depth = a.depth;
  const uint64_t all_rows = uint64_t{a.num_experts} * a.num_rows;
  if (!a.swiglu) return encode_tensor_map(map, a.weight, {2, {depth, all_rows}, {depth}, {kUnitDepth, kTileRows}});
  // 8 gate rows, their 8 up rows, the next 8 gate rows, ...: a warp's 16 rows hold pairs. The last expert's ups end the
  // tensor, so the blocks of 8 rows that a gate may be in end half an expert earlier.
  const uint64_t half = a.num_rows / 2;
  return encode_tensor_map(
      map, a.weight,
      {4, {depth, 8, 2, (all_rows - half) / 8}, {depth, half * depth, 8 * depth}, {kUnitDepth, 8, 2, 4}});
}

// Smaller pieces share the work more evenly, but the tensor cores drain at the end of each.
uint32_t pieces_for(uint32_t units_per_tile) { return units_per_tile >= 24 ? kMaxPieces : 1; }

template <class C>
cudaError_t launch(const Args& a, cudaStream_t stream) {
  CUtensorMap weight_map;
  CUtensorMap x_map;
  cudaError_t error = encode_weights(&weight_map, a);
  if (error != cudaSuccess) return error;
  error = encode_tensor_map(&x_map, a.x, {2, {a.depth, a.num_x_rows}, {a.depth}, {kUnitDepth, C::kTokens}});
  if (error != cudaSuccess) return error;
  error = cudaFuncSetAttribute(kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  if (error != cudaSuccess) return error;

  Params p = {};
  p.y = static_cast<__nv_bfloat16*>(a.y);
  p.groups = a.groups;
  p.columns = a.columns;
  p.counts = a.counts;
  p.parts = a.parts;
  p.error = a.error;
  p.num_outputs = C::kSwiglu ? a.num_rows / 2 : a.num_rows;
  p.tiles_per_group = (p.num_outputs + C::kTileOutputs - 1) / C::kTileOutputs;
  p.units_per_tile = (a.depth + kUnitDepth - 1) / kUnitDepth;
  p.pieces_per_tile = pieces_for(p.units_per_tile);
  p.units_per_piece = (p.units_per_tile + p.pieces_per_tile - 1) / p.pieces_per_tile;
  p.rows_per_expert = C::kSwiglu ? a.num_rows / 8 : a.num_rows;
  p.waits_for_groups = a.waits_for_groups;
  return launch_overlapped(kernel<C>, dim3(a.num_blocks), kThreads, C::kSharedBytes, stream, weight_map, x_map, p);
}

// Ring depths fill half an SM's shared memory.
template <bool kSwiglu>
cudaError_t launch_for_tokens(const Args& a, cudaStream_t stream) {
  if (a.tile_tokens == 8) return launch<Config<8, 11, 11, kSwiglu>>(a, stream);
  if (a.tile_tokens == 16) return launch<Config<16, 11, 11, kSwiglu>>(a, stream);
  if (a.tile_tokens == 32) return launch<Config<32, 10, 6, kSwiglu>>(a, stream);
  if (a.tile_tokens == 64) return launch<Config<64, 8, 5, kSwiglu>>(a, stream);
  return cudaErrorInvalidValue;
}

}  // namespace

}  // namespace izar::expert_projection

extern "C" int32_t izar_expert_projection(const IzarExpertProjectionArgs* args, cudaStream_t stream) {
  using namespace izar::expert_projection;
  return args->swiglu ? launch_for_tokens<true>(*args, stream) : launch_for_tokens<false>(*args, stream);
}
