// rms_norm: y = x / rms(x) * weight, optionally of x + residual, which is kept.
//   x        [num_tokens, hidden]  bf16, row stride x_stride
//   residual [num_tokens, hidden]  bf16, dense, or null; becomes bf16(x + residual), which is what is normed
//   weight   [hidden]              bf16
//   y        [num_tokens, hidden]  bf16, dense; may be x when that is dense
// Grid num_tokens, 256 threads, one pass: a row lives in registers. Requires hidden % 8 == 0, hidden <= 8192, 16-byte
// aligned rows. f32 inside, one rounding of y.
// Bound: HBM bytes = 4 * num_tokens * hidden (8 with a residual); at decode sizes the latency of one row.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/launch.h"
#include "../ptx/grid.cuh"

// Mirrored by ffi::RmsNormArgs.
struct IzarRmsNormArgs {
  const __nv_bfloat16* x;
  __nv_bfloat16* residual;
  const __nv_bfloat16* weight;
  __nv_bfloat16* y;
  uint32_t num_tokens;
  uint32_t hidden;
  uint32_t x_stride;
  float epsilon;
};
static_assert(sizeof(IzarRmsNormArgs) == 48);

namespace {

namespace ptx = izar::ptx;

constexpr uint32_t kThreads = 256;

union Vector {
  uint4 words;
  __nv_bfloat162 pairs[4];
};

__device__ float sum_of_block(float value) {
  __shared__ float warp_sums[kThreads / 32];
  for (uint32_t offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (float warp_sum : warp_sums) sum += warp_sum;
  return sum;
}

// kVectors of 8 elements a thread: no more than the row needs, because a block that waits holds its registers beside the
// blocks of the kernels before and after it.
template <uint32_t kVectors>
__global__ void __launch_bounds__(kThreads) kernel(const IzarRmsNormArgs a) {
  const uint32_t num_vectors = a.hidden / 8;
  const uint4* x = reinterpret_cast<const uint4*>(a.x + size_t{blockIdx.x} * a.x_stride);
  uint4* residual = reinterpret_cast<uint4*>(a.residual + size_t{blockIdx.x} * a.hidden);
  uint4* y = reinterpret_cast<uint4*>(a.y + size_t{blockIdx.x} * a.hidden);
  Vector weight[kVectors];
  Vector row[kVectors];

  ptx::launch_dependents();
#pragma unroll
  for (uint32_t i = 0; i < kVectors; ++i) {
    const uint32_t at = i * kThreads + threadIdx.x;
    weight[i].words = at < num_vectors ? reinterpret_cast<const uint4*>(a.weight)[at] : uint4{};
  }
  ptx::wait_for_previous_kernel();
#pragma unroll
  for (uint32_t i = 0; i < kVectors; ++i) {
    const uint32_t at = i * kThreads + threadIdx.x;
    row[i].words = at < num_vectors ? x[at] : uint4{};
  }
  if (a.residual != nullptr) {
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      const uint32_t at = i * kThreads + threadIdx.x;
      if (at >= num_vectors) continue;
      Vector skip;
      skip.words = residual[at];
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const float2 p = __bfloat1622float2(row[i].pairs[j]);
        const float2 q = __bfloat1622float2(skip.pairs[j]);
        row[i].pairs[j] = __floats2bfloat162_rn(p.x + q.x, p.y + q.y);
      }
      residual[at] = row[i].words;
    }
  }
  float squares = 0;
#pragma unroll
  for (uint32_t i = 0; i < kVectors; ++i) {
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const float2 p = __bfloat1622float2(row[i].pairs[j]);
      squares += p.x * p.x + p.y * p.y;
    }
  }
  const float inverse = rsqrtf(sum_of_block(squares) / a.hidden + a.epsilon);
#pragma unroll
  for (uint32_t i = 0; i < kVectors; ++i) {
    const uint32_t at = i * kThreads + threadIdx.x;
    if (at >= num_vectors) continue;
    Vector out;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const float2 p = __bfloat1622float2(row[i].pairs[j]);
      const float2 w = __bfloat1622float2(weight[i].pairs[j]);
      out.pairs[j] = __floats2bfloat162_rn(p.x * inverse * w.x, p.y * inverse * w.y);
    }
    y[at] = out.words;
  }
}

}  // namespace

extern "C" int32_t izar_rms_norm(const IzarRmsNormArgs* args, cudaStream_t stream) {
  const uint32_t vectors = (args->hidden / 8 + kThreads - 1) / kThreads;
  auto* const of_size = vectors <= 1 ? kernel<1> : vectors == 2 ? kernel<2> : vectors == 3 ? kernel<3> : kernel<4>;
  return izar::launch_overlapped(of_size, args->num_tokens, kThreads, 0, stream, *args);
}
