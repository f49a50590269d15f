// Who is sampled: every token that was kept runs with its scaled logit plus its own Gumbel variate, the highest score
// wins, of equal ones the lowest token.
#pragma once
#include "block.cuh"

namespace izar::sampler {

// Turns the slice into keys: magnitudes, as bits, of the scaled logits, which are at most 0.
__device__ void scale(Block& block, float max, float factor) {
  const auto key = [max, factor](float x) {
    return __float_as_uint(__fmul_rn(__fsub_rn(x, max), factor)) & 0x7FFFFFFF;
  };
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const float4 x = block.vectors()[vector];
    block.keys()[vector] = {key(x.x), key(x.y), key(x.z), key(x.w)};
  }
}

struct Leader {
  float score = -INFINITY;
  uint32_t token = kNoToken;

  __device__ void challenge(float other, uint32_t by) {
    if (other > score || (other == score && by < token)) {
      score = other;
      token = by;
    }
  }
};

// The winner among the keys up to `max_key`. `likely` is a token whose key is 0. No lane draws numbers for a vector in
// which even the largest variate could not win; few get as far as computing a variate.
__device__ uint32_t race(Block& block, const Row& row, uint32_t max_key, uint32_t likely) {
  uint32_t words[4];
  philox(likely / 4, row.num_generated, row.philox_key[0], row.philox_key[1], words);
  const uint32_t word = likely % 4 < 2 ? (likely % 4 == 0 ? words[0] : words[1])
                                       : (likely % 4 == 2 ? words[2] : words[3]);
  float to_beat = gumbel(word);
  Leader leader;
  for (uint32_t start = threadIdx.x & ~31u; start < block.num_vectors; start += kThreads) {
    const uint32_t vector = start + threadIdx.x % 32;
    const uint4 four = vector < block.num_vectors ? block.keys()[vector]
                                                  : uint4{kNoToken, kNoToken, kNoToken, kNoToken};
    const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
    const uint32_t least = min(min(keys[0], keys[1]), min(keys[2], keys[3]));
    const bool may_win = least <= max_key && __fadd_rn(-__uint_as_float(least), kMaxGumbel) >= to_beat;
    if (!__any_sync(kWholeWarp, may_win)) continue;
    const uint32_t first = block.begin + 4 * vector;
    philox(first / 4, row.num_generated, row.philox_key[0], row.philox_key[1], words);
#pragma unroll
    for (uint32_t lane = 0; lane < 4; ++lane) {
      const float z = -__uint_as_float(keys[lane]);
      const bool contends = keys[lane] <= max_key && __fadd_rn(z, gumbel_upper_bound(words[lane])) >= to_beat;
      if (!__any_sync(kWholeWarp, contends)) continue;
      if (contends) leader.challenge(__fadd_rn(z, gumbel(words[lane])), first + lane);
      const uint32_t best = __reduce_max_sync(kWholeWarp, rising_key(leader.score));
      const float score = value_of_rising_key(best);
      to_beat = score > to_beat ? score : to_beat;
    }
  }
  const uint64_t own = uint64_t{rising_key(leader.score)} << 32 | (~leader.token);
  return ~static_cast<uint32_t>(all_reduce(block, own, Larger{}));
}

}  // namespace izar::sampler
