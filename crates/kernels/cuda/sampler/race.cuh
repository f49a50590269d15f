// Who is sampled: every token that was kept runs with its scaled logit plus its own Gumbel variate, the highest score
// wins, of equal ones the lowest token.
#pragma once
#include "block.cuh"

namespace izar::sampler {

// Makes keys of logits: magnitudes, as bits, of the scaled logits, which are at most 0.
struct Scaling {
  float max;
  float factor;

  __device__ __forceinline__ uint32_t key(float x) const {
    return __float_as_uint(__fmul_rn(__fsub_rn(x, max), factor)) & 0x7FFFFFFF;
  }
  __device__ __forceinline__ uint4 keys(float4 x) const { return {key(x.x), key(x.y), key(x.z), key(x.w)}; }
};

// Turns the slice into keys.
__device__ inline void scale(Block& block, const Scaling& scaling) {
  block.is_raw = false;
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    block.keys()[vector] = scaling.keys(block.vectors()[vector]);
  }
}

struct Draws {
  uint32_t position;
  uint32_t key0;
  uint32_t key1;

  __device__ explicit Draws(const Row& row)
      : position(row.num_generated), key0(row.philox_key[0]), key1(row.philox_key[1]) {}

  __device__ __forceinline__ void block_of(uint32_t token, uint32_t (&words)[4]) const {
    philox(token / 4, position, key0, key1, words);
  }
  __device__ uint32_t word(uint32_t token) const {
    uint32_t words[4];
    block_of(token, words);
    const uint32_t low = token & 1 ? words[1] : words[0];
    const uint32_t high = token & 1 ? words[3] : words[2];
    return token & 2 ? high : low;
  }
};

struct Leader {
  float score = -INFINITY;
  uint32_t token = kNoToken;

  __device__ void challenge(float other, uint32_t by) {
    if (other > score || (other == score && by < token)) {
      score = other;
      token = by;
    }
  }
  __device__ uint64_t packed() const { return uint64_t{rising_key(score)} << 32 | (~token); }
};

// Below this no word lets a token with scaled logit z reach a score: gumbel <= -ln(word / 2^32), so a larger word than
// 2^32 e^(z - score) falls short; the slack covers the roundings of both sides.
__device__ __forceinline__ float word_to_beat(float z, float score) {
  return ptx::ex2(__fmul_rn(__fsub_rn(z, score), 1.4426950f) + 32.002f);
}

// The winner among the tokens of all slices whose keys are at most `max_key`. `likely` is a token whose key is 0. No warp
// draws numbers for vectors in which even the largest variate could not win; few lanes get as far as computing one.
template <typename Keys>
__device__ inline uint32_t race(Block& block, const Row& row, uint32_t max_key, uint32_t likely, const Keys& keys_of) {
  const Draws draws(row);
  float to_beat = gumbel(draws.word(likely));
  Leader leader;
  for (uint32_t start = threadIdx.x & ~31u; start < block.num_vectors; start += kThreads) {
    const uint32_t vector = start + threadIdx.x % 32;
    const uint4 four = vector < block.num_vectors ? keys_of(vector) : uint4{kNoToken, kNoToken, kNoToken, kNoToken};
    const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
    const uint32_t least = min(min(keys[0], keys[1]), min(keys[2], keys[3]));
    const bool is_kept = least <= max_key;
    const float best_z = -__uint_as_float(least);
    if (!__any_sync(kWholeWarp, is_kept && __fadd_rn(best_z, kMaxGumbel) >= to_beat)) continue;
    const uint32_t first = block.begin + 4 * vector;
    uint32_t words[4];
    draws.block_of(first, words);
    const uint32_t smallest = min(min(words[0], words[1]), min(words[2], words[3]));
    const bool may_win = is_kept && __uint2float_rd(smallest) <= word_to_beat(best_z, to_beat);
    if (!__any_sync(kWholeWarp, may_win)) continue;
#pragma unroll
    for (uint32_t lane = 0; lane < 4; ++lane) {
      const float z = -__uint_as_float(keys[lane]);
      const bool contends =
          may_win && keys[lane] <= max_key && __fadd_rn(z, gumbel_upper_bound(words[lane])) >= to_beat;
      if (!__any_sync(kWholeWarp, contends)) continue;
      if (contends) leader.challenge(__fadd_rn(z, gumbel(words[lane])), first + lane);
      const float score = value_of_rising_key(__reduce_max_sync(kWholeWarp, rising_key(leader.score)));
      to_beat = score > to_beat ? score : to_beat;
    }
  }
  return ~static_cast<uint32_t>(all_reduce<Cluster>(block, leader.packed(), Larger{}));
}

// The winner among the listed tokens whose keys are at most `max_key`.
__device__ inline uint32_t race_listed(Block& alone, const Row& row, uint32_t max_key) {
  const Draws draws(row);
  Leader leader;
  for (uint32_t i = threadIdx.x; i < alone.num_tokens; i += kThreads) {
    const uint32_t key = alone.shared.list_keys[i];
    if (key > max_key) continue;
    const uint32_t token = alone.shared.list_tokens[i];
    leader.challenge(__fadd_rn(-__uint_as_float(key), gumbel(draws.word(token))), token);
  }
  return ~static_cast<uint32_t>(all_reduce<Alone>(alone, leader.packed(), Larger{}));
}

}  // namespace izar::sampler
