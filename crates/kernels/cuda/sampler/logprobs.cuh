// Log-probabilities of the raw logits: of the sampled token, and of the most likely ones.
#pragma once
#include "cut.cuh"

namespace izar::sampler {

constexpr float kMinLogprob = -9999.0f;  // stands for minus infinity

struct Normaliser {
  float max;
  float log_sum;

  __device__ float logprob(float logit) const {
    const float distance = logit == max ? 0.0f : __fsub_rn(logit, max);
    return fmaxf(__fsub_rn(distance, log_sum), kMinLogprob);
  }
};

// Brings the raw slice back and returns the row's largest logit, above -inf.
__device__ float reload(Block& block) {
  Best best;
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const float4 x = fetch(block, vector);
    block.vectors()[vector] = x;
    best.look(x, vector);
  }
  return value_of_rising_key(all_reduce(block, best.packed(block), Larger{}) >> 32);
}

// The normaliser and the rank of `logit`: how many logits are at least that. Turns the slice into keys that fall as the
// logit rises.
__device__ Normaliser normalise(Block& block, float max, float logit, uint32_t& rank) {
  double sum = 0;
  uint64_t at_least = 0;
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const float4 four = block.vectors()[vector];
    const float x[4] = {four.x, four.y, four.z, four.w};
    uint32_t keys[4];
    float part = 0;
#pragma unroll
    for (uint32_t lane = 0; lane < 4; ++lane) {
      // Infinite logits share all the probability.
      part += max == INFINITY ? (x[lane] == max ? 1.0f : 0.0f) : exp_nonpositive(x[lane] - max);
      at_least += x[lane] >= logit && 4 * vector + lane < block.num_tokens;
      keys[lane] = 4 * vector + lane < block.num_tokens ? ~rising_key(x[lane]) : kNanKey;
    }
    sum += part;
    block.keys()[vector] = {keys[0], keys[1], keys[2], keys[3]};
  }
  const Pair own = {static_cast<uint64_t>(__double_as_longlong(sum)), at_least};
  const Pair total = all_reduce(block, own, SumOfDoubles{}, Sum{});
  rank = static_cast<uint32_t>(total.b);
  return {max, static_cast<float>(log(__longlong_as_double(total.a)))};
}

// The key up to which there are `num_top` of them or, where more are equal, just more.
__device__ Cut cut_raw(Block& block, float max, uint32_t num_top) {
  const uint32_t end = ~rising_key(-INFINITY) + 1;
  const uint32_t bounds[4] = {~rising_key(max), ~rising_key(max - 4), ~rising_key(max - 12), end};
  uint64_t before = 0, through = 0;
  for (uint32_t stage = 0; stage < 3; ++stage) {
    const Binning binning = even_bins(bounds[stage], bounds[stage + 1] - bounds[stage]);
    if (binning.width == 0) continue;
    fill<Counts, false>(block, binning, end - 1);
    ptx::cluster_arrive_release();
    ptx::cluster_wait_acquire();
    const uint32_t bin = reach<Counts>(block, before, through, num_top);
    if (bin == kBins) continue;
    const uint32_t start = binning.start(bin);
    const uint32_t width = min(1u << binning.shift, binning.low + binning.width - start);
    return narrow<Counts>(block, start, width, before, through, num_top);
  }
  return {end - 1, before, through};
}

// Replaces keys by what orders the tokens of key `tied` by their number; the others get the last place.
__device__ void number(Block& block, uint32_t tied) {
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const uint4 keys = block.keys()[vector];
    const uint32_t token = block.begin + 4 * vector;
    block.keys()[vector] = {keys.x == tied ? token : kNanKey, keys.y == tied ? token + 1 : kNanKey,
                            keys.z == tied ? token + 2 : kNanKey, keys.w == tied ? token + 3 : kNanKey};
  }
}

// Lists, in block 0, the tokens whose keys are below `end`. The caller has made sure that kMaxTop hold them.
__device__ void list(Block& block, uint32_t end) {
  const uint32_t counter = ptx::map_shared(&block.shared.num_listed, 0);
  const uint32_t list = ptx::map_shared(block.shared.listed, 0);
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const uint4 four = block.keys()[vector];
    const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (uint32_t lane = 0; lane < 4; ++lane) {
      if (keys[lane] >= end) continue;
      const uint32_t at = ptx::atom_add_shared_cluster(counter, 1);
      ptx::st_shared_cluster(list + 4 * at, block.begin + 4 * vector + lane);
    }
  }
}

// Lists the `num_top` likeliest tokens in block 0: equal ones by rising number. Ends with a barrier of the cluster.
__device__ void list_top(Block& block, float max, uint32_t num_top, uint32_t vocab_size) {
  if (block.rank == 0 && threadIdx.x == 0) block.shared.num_listed = 0;
  const Cut cut = cut_raw(block, max, num_top);
  if (cut.through <= num_top) {
    list(block, cut.key + 1);
  } else {
    list(block, cut.key);
    number(block, cut.key);
    const Cut last = narrow<Counts>(block, 0, vocab_size, 0, cut.through - cut.before, num_top - cut.before);
    list(block, last.key + 1);
  }
  ptx::cluster_arrive_release();
  ptx::cluster_wait_acquire();
}

// Writes the listed tokens in falling order of their logits. All threads of block 0 call it.
__device__ void write_top(Block& block, const float* row_logits, uint32_t num_top, const Normaliser& normaliser,
                          Logprob* out) {
  Shared& shared = block.shared;
  const bool has_token = threadIdx.x < num_top;
  const uint32_t token = has_token ? shared.listed[threadIdx.x] : 0;
  const float logit = row_logits[token];
  // Here, other than in cuts, the negative zero comes after the positive one.
  const uint32_t bits = __float_as_uint(logit);
  const uint32_t key = bits >> 31 ? bits : 0x7FFFFFFF - bits;
  if (has_token) shared.ordered[threadIdx.x] = key;
  __syncthreads();
  if (!has_token) return;
  uint32_t place = 0;
  for (uint32_t i = 0; i < num_top; ++i) {
    const uint32_t other = shared.ordered[i];
    place += other < key || (other == key && shared.listed[i] < token);
  }
  out[place] = {token, normaliser.logprob(logit)};
}

}  // namespace izar::sampler
