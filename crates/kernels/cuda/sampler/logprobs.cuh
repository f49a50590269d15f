// Log-probabilities of the raw logits: of the sampled token, and of the most likely ones.
#pragma once
#include "cut.cuh"
#include "list.cuh"

namespace izar::sampler {

constexpr float kMinLogprob = -9999.0f;  // stands for minus infinity
constexpr float kListedDistance = 8.0f;  // logits that are so much below the largest, or less, are worth listing

// Infinite logits share all the probability: their distance from the largest is 0, not NaN.
__device__ __forceinline__ float distance_of(float logit, float max) {
  return logit == max ? 0.0f : __fsub_rn(logit, max);
}

struct Normaliser {
  float max;
  float log_sum;

  __device__ float logprob(float logit) const {
    return fmaxf(__fsub_rn(distance_of(logit, max), log_sum), kMinLogprob);
  }
};

// The lower, the likelier.
__device__ __forceinline__ uint32_t falling_key(float x) { return ~rising_key(x); }

// Brings the raw slice back, if it is not there, and returns the row's largest logit, above -inf. Includes a barrier of the
// cluster.
__device__ inline float reload(Block& block) {
  Best best;
  if (block.is_raw) {
    best = look(block);
  } else {
    __syncthreads();
    request(block, block.logits);
    best = load(block, nullptr);
  }
  return value_of_rising_key(all_reduce<Cluster>(block, best.packed(block), Larger{}) >> 32);
}

// The normaliser; lists the likeliest tokens on the way. Includes a barrier of the cluster.
__device__ inline Normaliser normalise(Block& block, float max) {
  double sum = 0;
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const float4 four = block.vectors()[vector];
    const float x[4] = {four.x, four.y, four.z, four.w};
    float part = 0;
#pragma unroll
    for (uint32_t lane = 0; lane < 4; ++lane) part += ptx::ex2(distance_of(x[lane], max) * 1.4426950f);
    sum += part;
    if (distance_of(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), max) < -kListedDistance) continue;
#pragma unroll
    for (uint32_t lane = 0; lane < 4; ++lane) {
      if (distance_of(x[lane], max) < -kListedDistance) continue;
      list(block, falling_key(x[lane]), block.begin + 4 * vector + lane);
    }
  }
  const uint64_t own = static_cast<uint64_t>(__double_as_longlong(sum));
  const double total = __longlong_as_double(all_reduce<Cluster>(block, own, SumOfDoubles{}));
  return {max, static_cast<float>(log(total))};
}

// Replaces the slice by keys: of logits, or of the numbers of those tokens whose key is `tied`.
__device__ inline void key_by_logit(Block& block) {
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const float4 x = block.vectors()[vector];
    const uint32_t at = 4 * vector;
    const auto key = [&](float y, uint32_t i) { return at + i < block.num_tokens ? falling_key(y) : kNanKey; };
    block.keys()[vector] = {key(x.x, 0), key(x.y, 1), key(x.z, 2), key(x.w, 3)};
  }
}

__device__ inline void key_by_number(Block& block, uint32_t tied) {
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const uint4 keys = block.keys()[vector];
    const uint32_t token = block.begin + 4 * vector;
    block.keys()[vector] = {keys.x == tied ? token : kNanKey, keys.y == tied ? token + 1 : kNanKey,
                            keys.z == tied ? token + 2 : kNanKey, keys.w == tied ? token + 3 : kNanKey};
  }
}

// The key up to which there are `num_top` of them or, where more are equal, just more.
__device__ inline Cut cut_raw(Block& block, float max, uint32_t num_top) {
  const uint32_t end = falling_key(-INFINITY) + 1;
  const uint32_t bounds[4] = {falling_key(max), falling_key(max - 4), falling_key(max - 12), end};
  uint64_t before = 0, through = 0;
  for (uint32_t stage = 0; stage < 3; ++stage) {
    const Binning binning = even_bins(bounds[stage], bounds[stage + 1] - bounds[stage]);
    if (binning.width == 0) continue;
    fill<Counts>(block, binning);
    sync<Cluster>();
    const uint32_t bin = reach<Cluster, Counts>(block, before, through, num_top);
    if (bin == kBins) continue;
    const uint32_t start = binning.start(bin);
    const uint32_t width = min(1u << binning.shift, binning.low + binning.width - start);
    return narrow<Cluster, Counts>(block, start, width, before, through, num_top);
  }
  return {end - 1, before, through};
}

// Lists the tokens whose keys, their numbers, are below `end`, by the key that they share.
__device__ inline void list_tied(Block& block, uint32_t end, uint32_t shared_key) {
  for (uint32_t i = threadIdx.x; i < 4 * block.num_vectors; i += kThreads) {
    const uint32_t number = reinterpret_cast<const uint32_t*>(block.slice)[i];
    if (number < end) list(block, shared_key, number);
  }
}

// Lists the `num_top` likeliest tokens by all blocks together: of equal ones those of lower number.
__device__ inline void list_top(Block& block, float max, uint32_t num_top, uint32_t vocab_size) {
  sync<Cluster>();  // all have counted the lists
  clear_list(block);
  key_by_logit(block);
  const Cut cut = cut_raw(block, max, num_top);
  if (cut.through <= num_top) {
    list_below(block, cut.key + 1);
  } else {
    list_below(block, cut.key);
    key_by_number(block, cut.key);
    const Cut last =
        narrow<Cluster, Counts>(block, 0, vocab_size, 0, cut.through - cut.before, num_top - cut.before);
    list_tied(block, last.key + 1, cut.key);
  }
  sync<Cluster>();
}

// The part of the list that may be among the `num_top` likeliest.
struct Finalists {
  const uint32_t* keys;
  const uint32_t* tokens;
  uint32_t* places;
  uint32_t count;
};

// The whole list if it is short; else all up to the key of the last one, moved to the bins.
__device__ inline Finalists finalists_of(Block& alone, float max, uint32_t num_top) {
  Shared& shared = alone.shared;
  uint32_t* keys = &shared.bins[0][0][0];
  uint32_t* tokens = keys + kMaxListed;
  static_assert(sizeof(shared.bins) >= 2 * kMaxListed * sizeof(uint32_t));
  if (alone.num_tokens <= 2 * kMaxTop || alone.num_tokens == num_top) {
    return {shared.list_keys, shared.list_tokens, keys, alone.num_tokens};
  }
  const uint32_t low = falling_key(max);
  const uint32_t width = falling_key(-INFINITY) - low + 1;
  const uint32_t last = narrow<Alone, Counts>(alone, low, width, 0, alone.num_tokens, num_top).key;
  __syncthreads();
  if (threadIdx.x == 0) shared.bin = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < alone.num_tokens; i += kThreads) {
    if (shared.list_keys[i] > last) continue;
    const uint32_t at = atomicAdd(&shared.bin, 1u);
    keys[at] = shared.list_keys[i];
    tokens[at] = shared.list_tokens[i];
  }
  __syncthreads();
  // The list is read no more; its keys' room takes the places.
  return {keys, tokens, shared.list_keys, shared.bin};
}

// Writes the `num_top` likeliest of the list in falling order of their logits. Block 0 only.
__device__ inline void write_top(Block& alone, const float* row_logits, uint32_t num_top, const Normaliser& normaliser,
                          Logprob* out) {
  const Finalists all = finalists_of(alone, normaliser.max, num_top);
  for (uint32_t i = threadIdx.x; i < all.count; i += kThreads) {
    const uint64_t own = uint64_t{all.keys[i]} << 32 | all.tokens[i];
    uint32_t place = 0;
#pragma unroll 8
    for (uint32_t j = 0; j < all.count; ++j) place += (uint64_t{all.keys[j]} << 32 | all.tokens[j]) < own;
    all.places[i] = place;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < all.count; i += kThreads) {
    uint32_t place = all.places[i];
    if (place >= num_top) continue;
    const uint32_t token = all.tokens[i];
    const float logit = row_logits[token];
    if (logit == 0) {
      // Among those that got in, negative zeros come after the positive ones.
      const uint32_t own_sign = __float_as_uint(logit) >> 31;
      uint32_t ahead = 0, as_if_equal = 0;
      for (uint32_t j = 0; j < all.count; ++j) {
        if (all.keys[j] != all.keys[i] || all.places[j] >= num_top) continue;
        const uint32_t sign = __float_as_uint(row_logits[all.tokens[j]]) >> 31;
        as_if_equal += all.tokens[j] < token;
        ahead += sign < own_sign || (sign == own_sign && all.tokens[j] < token);
      }
      place = place - as_if_equal + ahead;
    }
    out[place] = {token, normaliser.logprob(logit)};
  }
}

// How many logits are at least `logit`, by block 0 alone: from the list if that holds them all, else from the row.
__device__ inline uint32_t rank_of(Block& alone, const float* row_logits, uint32_t vocab_size, float logit, bool is_listed) {
  uint64_t count = 0;
  if (is_listed) {
    const uint32_t key = falling_key(logit);
    for (uint32_t i = threadIdx.x; i < alone.num_tokens; i += kThreads) count += alone.shared.list_keys[i] <= key;
  } else {
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < vocab_size; i += kThreads) count += row_logits[i] >= logit;
  }
  return static_cast<uint32_t>(all_reduce<Alone>(alone, count, Sum{}));
}

struct LogprobRequest {
  uint32_t num_top;
  uint32_t vocab_size;
  Logprob* out;
};

// Writes the logprobs of `token`, which block 0 knows, and of the likeliest ones; returns the rank. All blocks call it;
// after it none needs its slice.
__device__ inline uint32_t write_logprobs(Block& block, const LogprobRequest& request, uint32_t token) {
  const uint32_t num_top = request.num_top;
  __syncthreads();  // block 0 may have used the bins
  clear_bins(block);
  const float max = reload(block);
  clear_list(block);
  const Normaliser normaliser = normalise(block, max);
  uint32_t count = count_listed(block);
  const bool has_listed = count != kNoToken;
  if (num_top > 0 && (!has_listed || count < num_top)) {
    list_top(block, max, num_top, request.vocab_size);
    count = num_top;
  }
  if (!has_listed) count = num_top;
  request_next(block);
  if (block.rank != 0) return 0;
  Block alone = join(block, count);
  const float* row_logits = block.logits - block.begin;
  const float logit = row_logits[token];
  const bool is_listed = has_listed && count > num_top && distance_of(logit, max) >= -kListedDistance;
  const uint32_t rank = rank_of(alone, row_logits, request.vocab_size, logit, is_listed);
  if (threadIdx.x == 0) request.out[0] = {token, normaliser.logprob(logit)};
  if (num_top > 0) write_top(alone, row_logits, num_top, normaliser, request.out + 1);
  __syncthreads();
  return rank;
}

}  // namespace izar::sampler
