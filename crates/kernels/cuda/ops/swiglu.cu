// swiglu: y = silu(gate) * up of a [gate, up] row.
//   gate_up [num_tokens, 2 * width] bf16, row stride x_stride; gates first
//   y       [num_tokens, width]     bf16, row stride y_stride
// Grid (num_tokens, ceil(width / 2048)), 256 threads of 8 elements. Requires width % 8 == 0 and 16-byte aligned rows.
// f32 inside, one rounding.  Bound: HBM bytes = 6 * num_tokens * width.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/launch.h"
#include "../ptx/grid.cuh"

// Mirrored by swiglu::Args.
struct IzarSwigluArgs {
  const __nv_bfloat16* gate_up;
  __nv_bfloat16* y;
  uint32_t num_tokens;
  uint32_t width;
  uint32_t x_stride;
  uint32_t y_stride;
};
static_assert(sizeof(IzarSwigluArgs) == 32);

namespace {

namespace ptx = izar::ptx;

constexpr uint32_t kThreads = 256;

union Vector {
  uint4 words;
  __nv_bfloat162 pairs[4];
};

__device__ __forceinline__ float silu_times(float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; }

__global__ void __launch_bounds__(kThreads) kernel(const IzarSwigluArgs a) {
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const uint32_t at = blockIdx.y * kThreads + threadIdx.x;
  if (at >= a.width / 8) return;
  const __nv_bfloat16* row = a.gate_up + size_t{blockIdx.x} * a.x_stride;
  Vector gate;
  Vector up;
  gate.words = reinterpret_cast<const uint4*>(row)[at];
  up.words = reinterpret_cast<const uint4*>(row + a.width)[at];
  Vector out;
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
    const float2 g = __bfloat1622float2(gate.pairs[j]);
    const float2 u = __bfloat1622float2(up.pairs[j]);
    out.pairs[j] = __floats2bfloat162_rn(silu_times(g.x, u.x), silu_times(g.y, u.y));
  }
  reinterpret_cast<uint4*>(a.y + size_t{blockIdx.x} * a.y_stride)[at] = out.words;
}

}  // namespace

extern "C" int32_t izar_swiglu(const IzarSwigluArgs* args, cudaStream_t stream) {
  const dim3 grid(args->num_tokens, (args->width / 8 + kThreads - 1) / kThreads);
  return izar::launch_overlapped(kernel, grid, kThreads, 0, stream, *args);
}
