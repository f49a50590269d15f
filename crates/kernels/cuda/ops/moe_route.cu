// moe_route: which experts a token goes to, and where its rows stand when rows are sorted by expert, for any number of
// tokens. moe_select does it together with the projection for few.
//   logits       [num_tokens, num_experts] f32, dense: the router's output
//   tokens_here  u32 in device memory: tokens of this step; later rows are padding and go nowhere
//   shares       [num_tokens, top_k]  f32: softmax over all experts, of the chosen ones; with normalise they sum to 1
//   slots        [num_tokens, top_k]  u32: the sorted row of each choice, most likely expert first
//   sources      [num_tokens * top_k] u32: the token of each sorted row
//   groups       [max_groups] uint4: expert, first sorted row, rows (at most tile_tokens), 0
//   counts       u32: groups, sorted rows, experts with a token, 0
//   experts, places [num_tokens, top_k] u32: scratch
// Equal logits: the lower expert wins. A NaN among a token's logits makes all its shares NaN and touches no other token.
// The order of rows inside an expert is not fixed; no result depends on it.
// A warp a token chooses, then one block of 1024 threads sorts.
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/block_scan.cuh"
#include "../common/launch.h"
#include "../ptx/grid.cuh"
#include "moe_choose.cuh"

// Mirrored by moe::RouteArgs.
struct IzarMoeRouteArgs {
  const float* logits;
  const uint32_t* tokens_here;
  float* shares;
  uint32_t* slots;
  uint32_t* sources;
  uint4* groups;
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
static_assert(sizeof(IzarMoeRouteArgs) == 96);

namespace {

namespace ptx = izar::ptx;
using Args = IzarMoeRouteArgs;
using izar::moe::kMaxExperts;
using izar::moe::kMaxPerLane;

constexpr uint32_t kSortThreads = 1024;
constexpr uint32_t kChooseThreads = 256;

__device__ __forceinline__ uint32_t tokens_of(const Args& a) { return min(*a.tokens_here, a.num_tokens); }

__global__ void __launch_bounds__(kChooseThreads) choose_kernel(const Args a) {
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const uint32_t token = blockIdx.x * (kChooseThreads / 32) + threadIdx.x / 32;
  if (token >= tokens_of(a)) return;
  const uint32_t lane = threadIdx.x % 32;
  float logits[kMaxPerLane];
#pragma unroll
  for (uint32_t i = 0; i < kMaxPerLane; ++i) {
    const uint32_t expert = i * 32 + lane;
    logits[i] = expert < a.num_experts ? a.logits[size_t{token} * a.num_experts + expert] : 0.0f;
  }
  const izar::moe::Choice choice = izar::moe::choose(logits, a.num_experts, a.top_k, a.normalise);
  if (lane < a.top_k) {
    const size_t at = size_t{token} * a.top_k + lane;
    a.shares[at] = choice.share;
    a.experts[at] = choice.expert;
  }
}

__global__ void __launch_bounds__(kSortThreads) sort_kernel(const Args a) {
  __shared__ uint32_t rows[kMaxExperts];
  __shared__ uint32_t first_row[kMaxExperts + 1];
  __shared__ uint32_t first_group[kMaxExperts + 1];
  ptx::launch_dependents();
  for (uint32_t e = threadIdx.x; e < a.num_experts; e += kSortThreads) rows[e] = 0;
  __syncthreads();
  ptx::wait_for_previous_kernel();
  const uint32_t num_choices = tokens_of(a) * a.top_k;
  for (uint32_t i = threadIdx.x; i < num_choices; i += kSortThreads) a.places[i] = atomicAdd(&rows[a.experts[i]], 1);
  __syncthreads();
  izar::exclusive_sums<kSortThreads>(a.num_experts, first_row, [&](uint32_t e) { return rows[e]; });
  izar::exclusive_sums<kSortThreads>(a.num_experts, first_group,
                                     [&](uint32_t e) { return (rows[e] + a.tile_tokens - 1) / a.tile_tokens; });
  for (uint32_t e = threadIdx.x; e < a.num_experts; e += kSortThreads) {
    for (uint32_t group = first_group[e]; group < first_group[e + 1]; ++group) {
      const uint32_t before = (group - first_group[e]) * a.tile_tokens;
      a.groups[group] = {e, first_row[e] + before, min(rows[e] - before, a.tile_tokens), 0};
    }
  }
  for (uint32_t i = threadIdx.x; i < num_choices; i += kSortThreads) {
    const uint32_t row = first_row[a.experts[i]] + a.places[i];
    a.slots[i] = row;
    a.sources[row] = i / a.top_k;
  }
  const uint32_t distinct = __syncthreads_count(threadIdx.x < a.num_experts && rows[threadIdx.x % kMaxExperts] != 0);
  if (threadIdx.x == 0) {
    a.counts[0] = first_group[a.num_experts];
    a.counts[1] = num_choices;
    a.counts[2] = distinct;
    a.counts[3] = 0;
  }
}

}  // namespace

extern "C" int32_t izar_moe_route(const IzarMoeRouteArgs* args, cudaStream_t stream) {
  constexpr uint32_t kPerBlock = kChooseThreads / 32;
  const dim3 grid((args->num_tokens + kPerBlock - 1) / kPerBlock);
  const cudaError_t error = izar::launch_overlapped(choose_kernel, grid, kChooseThreads, 0, stream, *args);
  if (error != cudaSuccess) return error;
  return izar::launch_overlapped(sort_kernel, dim3(1), kSortThreads, 0, stream, *args);
}
