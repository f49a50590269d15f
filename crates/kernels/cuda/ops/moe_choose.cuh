// Which experts a token goes to: one warp chooses for one token.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace izar::moe {

// Logits that a lane may hold: expert i * 32 + lane is its i-th.
constexpr uint32_t kMaxExperts = 512;
constexpr uint32_t kMaxPerLane = kMaxExperts / 32;

constexpr uint32_t kAllLanes = 0xFFFFFFFF;
constexpr uint32_t kNone = 0xFFFFFFFF;

__device__ __forceinline__ float sum_of_warp(float value) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(kAllLanes, value, mask);
  return value;
}

// Keys order as logits do; 0 is below all of them.
__device__ __forceinline__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // a negative zero equals a positive one
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

__device__ __forceinline__ float logit_of(uint32_t key) { return __uint_as_float(key >> 31 ? key ^ 0x80000000 : ~key); }

// The choice of lane k < top_k: the k-th likeliest expert and its share.
struct Choice {
  uint32_t expert;
  float share;
};

// Shares are a softmax over all experts; with normalise those of the chosen sum to 1. Equal logits: the lower expert wins.
// A NaN among the logits makes all shares NaN.
template <uint32_t kPerLane>
__device__ __forceinline__ Choice choose(const float (&logits)[kPerLane], uint32_t num_experts, uint32_t top_k,
                                         bool normalise) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t left[kPerLane];
  uint32_t best = 0;
  bool is_nan = false;
#pragma unroll
  for (uint32_t i = 0; i < kPerLane; ++i) {
    const bool is_number = logits[i] == logits[i];
    const bool is_expert = i * 32 + lane < num_experts;
    is_nan |= is_expert && !is_number;
    left[i] = is_expert ? key_of(is_number ? logits[i] : -__builtin_huge_valf()) : 0;
    best = max(best, left[i]);
  }
  const float largest = logit_of(__reduce_max_sync(kAllLanes, best));
  float sum = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kPerLane; ++i) {
    if (left[i] != 0) sum += __expf(logit_of(left[i]) - largest);
  }
  sum = sum_of_warp(sum);
  if (__any_sync(kAllLanes, is_nan)) sum = __int_as_float(0x7FC00000);

  Choice mine = {0, 0.0f};
  float chosen_sum = 0.0f;
  for (uint32_t k = 0; k < top_k; ++k) {
    best = 0;
    uint32_t candidate = kNone;
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; ++i) {
      if (left[i] > best) {
        best = left[i];
        candidate = i * 32 + lane;
      }
    }
    const uint32_t key = __reduce_max_sync(kAllLanes, best);
    const uint32_t expert = __reduce_min_sync(kAllLanes, best == key ? candidate : kNone);
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; ++i) {
      if (i * 32 + lane == expert) left[i] = 0;
    }
    const float probability = __expf(logit_of(key) - largest) / sum;
    chosen_sum += probability;
    if (k == lane) mine = {expert, probability};
  }
  if (normalise) mine.share /= chosen_sum;
  return mine;
}

}  // namespace izar::moe
