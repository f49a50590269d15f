// moe_gather and moe_combine: rows into the order of their experts, and back.
//   moe_gather   sorted[r] = x[sources[r]] for the first counts[1] rows; bf16, row stride x_stride, sorted dense
//   moe_combine  y[t] += sum over k of shares[t, k] * outputs[slots[t, k]], k in order, f32 inside, one rounding; with
//                norm also normed[t] = the RMS norm of y[t]; tokens from *tokens_here on are left as they are
// moe_gather: grid (rows, ceil(width / 2048)), 256 threads of 8 elements. It lets the next kernel start only once the
// routing before it has finished: expert_projection reads the groups without waiting.
// moe_combine: grid num_tokens, 256 threads of up to 4 times 8 elements, width <= 8192. All but outputs is read before the
// previous kernel has finished, which must not be what writes it.
// Both require width % 8 == 0 and 16-byte aligned rows.
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
  const __nv_bfloat16* norm;  // [width], or null
  __nv_bfloat16* normed;      // [num_tokens, width], dense
  uint32_t num_tokens;
  uint32_t top_k;
  uint32_t width;
  uint32_t y_stride;
  float epsilon;
  uint32_t reserved;
};
static_assert(sizeof(IzarMoeCombineArgs) == 80);

namespace {

namespace ptx = izar::ptx;

constexpr uint32_t kThreads = 256;
constexpr uint32_t kVectors = 4;  // of 8 elements, a thread of moe_combine
constexpr uint32_t kMaxTopK = 32;

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

__device__ __forceinline__ float sum_of_block(float value) {
  __shared__ float warp_sums[kThreads / 32];
  for (uint32_t offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (float warp_sum : warp_sums) sum += warp_sum;
  return sum;
}

// sums += the weighted rows, in order; so many are in flight at a time.
__device__ __forceinline__ void add_outputs(float2 (&sums)[4], const IzarMoeCombineArgs& a, const float* shares,
                                            const uint32_t* slots, uint32_t at) {
  constexpr uint32_t kInFlight = 8;
  for (uint32_t first = 0; first < a.top_k; first += kInFlight) {
    Vector outputs[kInFlight];
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      if (first + k >= a.top_k) break;
      outputs[k].words = reinterpret_cast<const uint4*>(a.outputs + size_t{slots[first + k]} * a.width)[at];
    }
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      if (first + k >= a.top_k) break;
      const float share = shares[first + k];
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const float2 pair = __bfloat1622float2(outputs[k].pairs[j]);
        sums[j].x += share * pair.x;
        sums[j].y += share * pair.y;
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) combine_kernel(const IzarMoeCombineArgs a) {
  __shared__ float shares[kMaxTopK];
  __shared__ uint32_t slots[kMaxTopK];
  ptx::launch_dependents();
  const uint32_t token = blockIdx.x;
  const bool is_here = token < *a.tokens_here;
  if (threadIdx.x < a.top_k) {
    shares[threadIdx.x] = a.shares[token * a.top_k + threadIdx.x];
    slots[threadIdx.x] = a.slots[token * a.top_k + threadIdx.x];
  }
  uint4* row = reinterpret_cast<uint4*>(a.y + size_t{token} * a.y_stride);
  Vector y[kVectors];
  Vector norm[kVectors];
#pragma unroll
  for (uint32_t i = 0; i < kVectors; ++i) {
    const uint32_t at = i * kThreads + threadIdx.x;
    const bool is_inside = at < a.width / 8;
    y[i].words = is_inside ? row[at] : uint4{};
    norm[i].words = is_inside && a.norm != nullptr ? reinterpret_cast<const uint4*>(a.norm)[at] : uint4{};
  }
  __syncthreads();
  ptx::wait_for_previous_kernel();
  if (!is_here) return;
  float squares = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kVectors; ++i) {
    const uint32_t at = i * kThreads + threadIdx.x;
    if (at >= a.width / 8) break;
    float2 sums[4] = {};
    add_outputs(sums, a, shares, slots, at);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const float2 skip = __bfloat1622float2(y[i].pairs[j]);
      y[i].pairs[j] = __floats2bfloat162_rn(skip.x + sums[j].x, skip.y + sums[j].y);
      const float2 sum = __bfloat1622float2(y[i].pairs[j]);
      squares += sum.x * sum.x + sum.y * sum.y;
    }
    row[at] = y[i].words;
  }
  if (a.norm == nullptr) return;
  const float inverse = rsqrtf(sum_of_block(squares) / a.width + a.epsilon);
  uint4* normed = reinterpret_cast<uint4*>(a.normed + size_t{token} * a.width);
#pragma unroll
  for (uint32_t i = 0; i < kVectors; ++i) {
    const uint32_t at = i * kThreads + threadIdx.x;
    if (at >= a.width / 8) break;
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const float2 pair = __bfloat1622float2(y[i].pairs[j]);
      const float2 weight = __bfloat1622float2(norm[i].pairs[j]);
      y[i].pairs[j] = __floats2bfloat162_rn(pair.x * inverse * weight.x, pair.y * inverse * weight.y);
    }
    normed[at] = y[i].words;
  }
}

}  // namespace

extern "C" int32_t izar_moe_gather(const IzarMoeGatherArgs* args, cudaStream_t stream) {
  const dim3 grid(args->max_rows, (args->width / 8 + kThreads - 1) / kThreads);
  return izar::launch_overlapped(gather_kernel, grid, kThreads, 0, stream, *args);
}

extern "C" int32_t izar_moe_combine(const IzarMoeCombineArgs* args, cudaStream_t stream) {
  return izar::launch_overlapped(combine_kernel, dim3(args->num_tokens), kThreads, 0, stream, *args);
}
