// moe_gather and moe_combine: rows into the order of their experts, and back.
//   moe_gather   sorted[r] = x[sources[r]] for the first counts[1] rows; bf16, row stride x_stride, sorted dense
//   moe_combine  y[t] += sum over k of shares[t, k] * outputs[slots[t, k]], k in order, f32 inside, one rounding; tokens
//                from *tokens_here on are left as they are
// Grids (rows, ceil(width / 2048)), 256 threads of 8 elements. Requires width % 8 == 0 and 16-byte aligned rows.
// moe_gather lets the next kernel start only once the routing before it has finished: expert_projection reads the groups
// without waiting.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/launch.h"
#include "../ptx/grid.cuh"

// Mirrored by moe::GatherArgs.
struct IzarMoeGatherArgs {
  const __nv_bfloat16* x;
  __nv_bfloat16* sorted;
  const uint32_t* sources;
  const uint32_t* counts;
  uint32_t max_rows;
  uint32_t width;
  uint32_t x_stride;
  uint32_t reserved;
};
static_assert(sizeof(IzarMoeGatherArgs) == 48);

// Mirrored by moe::CombineArgs.
struct IzarMoeCombineArgs {
  const __nv_bfloat16* outputs;
  __nv_bfloat16* y;
  const float* shares;
  const uint32_t* slots;
  const uint32_t* tokens_here;
  uint32_t num_tokens;
  uint32_t top_k;
  uint32_t width;
  uint32_t y_stride;
};
static_assert(sizeof(IzarMoeCombineArgs) == 56);

namespace {

namespace ptx = izar::ptx;

constexpr uint32_t kThreads = 256;

union Vector {
  uint4 words;
  __nv_bfloat162 pairs[4];
};

__global__ void __launch_bounds__(kThreads) gather_kernel(const IzarMoeGatherArgs a) {
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  const uint32_t at = blockIdx.y * kThreads + threadIdx.x;
  const uint32_t row = blockIdx.x;
  if (row >= a.counts[1] || at >= a.width / 8) return;
  const uint4* from = reinterpret_cast<const uint4*>(a.x + size_t{a.sources[row]} * a.x_stride);
  reinterpret_cast<uint4*>(a.sorted + size_t{row} * a.width)[at] = from[at];
}

__global__ void __launch_bounds__(kThreads) combine_kernel(const IzarMoeCombineArgs a) {
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const uint32_t at = blockIdx.y * kThreads + threadIdx.x;
  const uint32_t token = blockIdx.x;
  if (token >= *a.tokens_here || at >= a.width / 8) return;
  float2 sums[4] = {};
  for (uint32_t k = 0; k < a.top_k; ++k) {
    const float share = a.shares[token * a.top_k + k];
    const uint32_t slot = a.slots[token * a.top_k + k];
    Vector output;
    output.words = reinterpret_cast<const uint4*>(a.outputs + size_t{slot} * a.width)[at];
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const float2 pair = __bfloat1622float2(output.pairs[j]);
      sums[j].x += share * pair.x;
      sums[j].y += share * pair.y;
    }
  }
  uint4* to = reinterpret_cast<uint4*>(a.y + size_t{token} * a.y_stride) + at;
  Vector y;
  y.words = *to;
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
    const float2 skip = __bfloat1622float2(y.pairs[j]);
    y.pairs[j] = __floats2bfloat162_rn(skip.x + sums[j].x, skip.y + sums[j].y);
  }
  *to = y.words;
}

dim3 grid_of(uint32_t rows, uint32_t width) { return dim3(rows, (width / 8 + kThreads - 1) / kThreads); }

}  // namespace

extern "C" int32_t izar_moe_gather(const IzarMoeGatherArgs* args, cudaStream_t stream) {
  return izar::launch_overlapped(gather_kernel, grid_of(args->max_rows, args->width), kThreads, 0, stream, *args);
}

extern "C" int32_t izar_moe_combine(const IzarMoeCombineArgs* args, cudaStream_t stream) {
  return izar::launch_overlapped(combine_kernel, grid_of(args->num_tokens, args->width), kThreads, 0, stream, *args);
}
