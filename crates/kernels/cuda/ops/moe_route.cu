// moe_route: which experts a token goes to, and where its rows stand when rows are sorted by expert.
//   logits       [num_tokens, num_experts] f32, dense: the router's output
//   tokens_here  u32 in device memory: tokens of this step; later rows are padding and go nowhere
//   shares       [num_tokens, top_k]  f32: softmax over all experts, of the chosen ones; with normalise they sum to 1
//   slots        [num_tokens, top_k]  u32: the sorted row of each choice, most likely expert first
//   sources      [num_tokens * top_k] u32: the token of each sorted row
//   groups       [max_groups] uint4: expert, first sorted row, rows (at most tile_tokens), 0
//   columns      [max_groups, tile_tokens] u32 or null: the sorted row of token t in the group, or ~0; then a group holds
//                all rows of its expert, and num_tokens <= tile_tokens
//   counts       u32: groups, sorted rows, experts with a token, 0
//   experts, places [num_tokens, top_k] u32: scratch
// Equal logits: the lower expert wins. A NaN among a token's logits makes all its shares NaN and touches no other token.
// The order of rows inside an expert is not fixed; no result depends on it.
// Up to 64 tokens one block of 1024 threads does everything; beyond, a warp a token chooses and one block sorts.
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/block_scan.cuh"
#include "../common/launch.h"
#include "../ptx/grid.cuh"

// Mirrored by moe::RouteArgs.
struct IzarMoeRouteArgs {
  const float* logits;
  const uint32_t* tokens_here;
  float* shares;
  uint32_t* slots;
  uint32_t* sources;
  uint4* groups;
  uint32_t* columns;
  uint32_t* counts;
  uint32_t* experts;
  uint32_t* places;
  uint32_t num_tokens;
  uint32_t num_experts;
  uint32_t top_k;
  uint32_t tile_tokens;
  uint32_t normalise;
  uint32_t reserved;
};
static_assert(sizeof(IzarMoeRouteArgs) == 104);

namespace {

namespace ptx = izar::ptx;
using Args = IzarMoeRouteArgs;

constexpr uint32_t kMaxExperts = 512;
constexpr uint32_t kLogitsPerLane = kMaxExperts / 32;
constexpr uint32_t kSortThreads = 1024;
constexpr uint32_t kTokensOfOneBlock = 64;
constexpr uint32_t kChooseThreads = 256;
constexpr uint32_t kAll = 0xFFFFFFFF;
constexpr float kInfinity = __builtin_huge_valf();

__device__ __forceinline__ float warp_max(float value) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) value = fmaxf(value, __shfl_xor_sync(kAll, value, mask));
  return value;
}

__device__ __forceinline__ float warp_sum(float value) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(kAll, value, mask);
  return value;
}

// Takes the largest logit that is left, of equal ones the lowest expert; every lane learns it.
__device__ __forceinline__ uint32_t take_largest(float (&left)[kLogitsPerLane], uint32_t& taken, uint32_t num_experts,
                                                 float& largest) {
  float best = -kInfinity;
  uint32_t expert = kAll;
#pragma unroll
  for (uint32_t i = 0; i < kLogitsPerLane; ++i) {
    const uint32_t candidate = i * 32 + threadIdx.x % 32;
    const bool is_left = candidate < num_experts && (taken >> i & 1) == 0;
    if (is_left && (expert == kAll || left[i] > best)) {
      best = left[i];
      expert = candidate;
    }
  }
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const float other = __shfl_xor_sync(kAll, best, mask);
    const uint32_t other_expert = __shfl_xor_sync(kAll, expert, mask);
    if (other_expert != kAll && (expert == kAll || other > best || (other == best && other_expert < expert))) {
      best = other;
      expert = other_expert;
    }
  }
  if (expert % 32 == threadIdx.x % 32) taken |= 1u << (expert / 32);
  largest = best;
  return expert;
}

// One warp chooses for one token.
__device__ __forceinline__ void choose(const Args& a, uint32_t token) {
  const uint32_t lane = threadIdx.x % 32;
  const float* row = a.logits + size_t{token} * a.num_experts;
  float left[kLogitsPerLane];
  float max = -kInfinity;
  bool is_nan = false;
#pragma unroll
  for (uint32_t i = 0; i < kLogitsPerLane; ++i) {
    const uint32_t expert = i * 32 + lane;
    float logit = expert < a.num_experts ? row[expert] : -kInfinity;
    if (logit != logit) {
      is_nan = true;
      logit = -kInfinity;
    }
    left[i] = logit;
    max = fmaxf(max, logit);
  }
  max = warp_max(max);
  float sum = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kLogitsPerLane; ++i) {
    if (i * 32 + lane < a.num_experts) sum += __expf(left[i] - max);
  }
  sum = warp_sum(sum);
  if (__any_sync(kAll, is_nan)) sum = __int_as_float(0x7FC00000);
  uint32_t taken = 0;
  float chosen_sum = 0.0f;
  float share = 0.0f;
  uint32_t mine = 0;
  for (uint32_t k = 0; k < a.top_k; ++k) {
    float logit;
    const uint32_t expert = take_largest(left, taken, a.num_experts, logit);
    const float probability = __expf(logit - max) / sum;
    chosen_sum += probability;
    if (k == lane) {
      share = probability;
      mine = expert;
    }
  }
  if (lane < a.top_k) {
    const size_t at = size_t{token} * a.top_k + lane;
    a.shares[at] = a.normalise ? share / chosen_sum : share;
    a.experts[at] = mine;
  }
}

// One block sorts all choices by expert.
__device__ __forceinline__ void sort(const Args& a, uint32_t num_tokens) {
  __shared__ uint32_t rows[kMaxExperts];
  __shared__ uint32_t first_row[kMaxExperts + 1];
  __shared__ uint32_t first_group[kMaxExperts + 1];
  const uint32_t num_choices = num_tokens * a.top_k;
  for (uint32_t e = threadIdx.x; e < a.num_experts; e += kSortThreads) rows[e] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < num_choices; i += kSortThreads) a.places[i] = atomicAdd(&rows[a.experts[i]], 1);
  __syncthreads();
  izar::exclusive_sums<kSortThreads>(a.num_experts, first_row, [&](uint32_t e) { return rows[e]; });
  izar::exclusive_sums<kSortThreads>(a.num_experts, first_group,
                                     [&](uint32_t e) { return (rows[e] + a.tile_tokens - 1) / a.tile_tokens; });
  const uint32_t num_groups = first_group[a.num_experts];
  for (uint32_t e = threadIdx.x; e < a.num_experts; e += kSortThreads) {
    for (uint32_t group = first_group[e]; group < first_group[e + 1]; ++group) {
      const uint32_t before = (group - first_group[e]) * a.tile_tokens;
      a.groups[group] = {e, first_row[e] + before, min(rows[e] - before, a.tile_tokens), 0};
    }
  }
  if (a.columns != nullptr) {
    for (uint32_t i = threadIdx.x; i < num_groups * a.tile_tokens; i += kSortThreads) a.columns[i] = kAll;
    __syncthreads();
  }
  for (uint32_t i = threadIdx.x; i < num_choices; i += kSortThreads) {
    const uint32_t expert = a.experts[i];
    const uint32_t token = i / a.top_k;
    const uint32_t row = first_row[expert] + a.places[i];
    a.slots[i] = row;
    a.sources[row] = token;
    if (a.columns != nullptr) a.columns[first_group[expert] * a.tile_tokens + token] = row;
  }
  const uint32_t distinct = __syncthreads_count(threadIdx.x < a.num_experts && rows[threadIdx.x % kMaxExperts] != 0);
  if (threadIdx.x == 0) {
    a.counts[0] = num_groups;
    a.counts[1] = num_choices;
    a.counts[2] = distinct;
    a.counts[3] = 0;
  }
}

__device__ __forceinline__ uint32_t tokens_of(const Args& a) { return min(*a.tokens_here, a.num_tokens); }

__global__ void __launch_bounds__(kSortThreads) choose_and_sort_kernel(const Args a) {
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const uint32_t num_tokens = tokens_of(a);
  for (uint32_t token = threadIdx.x / 32; token < num_tokens; token += kSortThreads / 32) choose(a, token);
  __syncthreads();
  sort(a, num_tokens);
}

__global__ void __launch_bounds__(kChooseThreads) choose_kernel(const Args a) {
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const uint32_t token = blockIdx.x * (kChooseThreads / 32) + threadIdx.x / 32;
  if (token < tokens_of(a)) choose(a, token);
}

__global__ void __launch_bounds__(kSortThreads) sort_kernel(const Args a) {
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  sort(a, tokens_of(a));
}

}  // namespace

extern "C" int32_t izar_moe_route(const IzarMoeRouteArgs* args, cudaStream_t stream) {
  if (args->num_tokens <= kTokensOfOneBlock) {
    return izar::launch_overlapped(choose_and_sort_kernel, dim3(1), kSortThreads, 0, stream, *args);
  }
  constexpr uint32_t kPerBlock = kChooseThreads / 32;
  const dim3 grid((args->num_tokens + kPerBlock - 1) / kPerBlock);
  const cudaError_t error = izar::launch_overlapped(choose_kernel, grid, kChooseThreads, 0, stream, *args);
  if (error != cudaSuccess) return error;
  return izar::launch_overlapped(sort_kernel, dim3(1), kSortThreads, 0, stream, *args);
}
