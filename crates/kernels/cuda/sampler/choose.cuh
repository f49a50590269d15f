// From a slice of logits in shared memory to the row's token.
//
// Where min-p, top-k or top-p leave few tokens, as they do unless the model has no opinion, those are listed in one look at
// the slices and block 0 does the rest alone. Otherwise the blocks find the cut together.
#pragma once
#include "cut.cuh"
#include "edit.cuh"
#include "list.cuh"
#include "race.cuh"

namespace izar::sampler {

struct Sampled {
  uint32_t token;
  uint32_t status;  // kToken, or why there is none
};

// What must be known of a row to sample it.
struct Request {
  const Row& row;  // this block's copy
  Lists lists;
  const uint32_t* mask;     // of the slice, of all the row's tokens; null: none
  const uint32_t* grammar;  // of the slice, of this token; null: none
  uint32_t vocab_size;
  bool is_deferred;  // this token's mask is not there

  __device__ bool has_mask() const { return mask != nullptr || grammar != nullptr; }
};

// Scaled logits of at least -8 are worth listing.
constexpr uint32_t kListedKey = 0x41000000;

// Lists the tokens whose keys are at most `max_listed`. Returns the thread's part of the mass of all keys up to `max_key`,
// if that is wanted, and of the listed ones.
template <bool kWantsMass>
__device__ inline Pair list_likely(Block& block, const Scaling& scaling, uint32_t max_listed, uint32_t max_key) {
  Pair mass = {0, 0};
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const float4 x = block.vectors()[vector];
    const bool has_listed = scaling.key(fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w))) <= max_listed;
    if (!kWantsMass && !has_listed) continue;
    const uint4 four = scaling.keys(x);
    const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
    if (kWantsMass) {
#pragma unroll
      for (const uint32_t key : keys) {
        const uint32_t own = Masses::of(key);
        mass.a += key <= max_key ? own : 0;
        mass.b += key <= max_listed ? own : 0;
      }
    }
    if (!has_listed) continue;
#pragma unroll
    for (uint32_t lane = 0; lane < 4; ++lane) {
      if (keys[lane] <= max_listed) list(block, keys[lane], block.begin + 4 * vector + lane);
    }
  }
  return mass;
}

__device__ __forceinline__ double nucleus(const Row& row, uint64_t total) {
  return __dmul_rn(static_cast<double>(row.top_p), __ull2double_rn(total));
}

// Up to so many tokens are compared with each other.
constexpr uint32_t kFew = 256;

// What weighs more than a token.
struct Above {
  uint32_t count;
  uint64_t mass;
};

// What of the list is likelier than the thread's token: thread i and thread i + 256 look at half of the list each for token
// i. Uses the bins' room.
__device__ inline Above compare(Block& alone, uint32_t own_key, uint32_t own_mass) {
  Shared& shared = alone.shared;
  const uint32_t half = threadIdx.x / kFew, i = threadIdx.x % kFew, middle = alone.num_tokens / 2;
  uint32_t* masses = shared.bins[0][0];
  Pair* sums = reinterpret_cast<Pair*>(shared.bins[1][0]);
  static_assert(sizeof(shared.bins[1]) >= kFew * sizeof(Pair));
  if (half == 0 && i < alone.num_tokens) masses[i] = own_mass;
  __syncthreads();
  Above above = {0, 0};
  if (i < alone.num_tokens) {
    const uint32_t end = half == 0 ? middle : alone.num_tokens;
#pragma unroll 4
    for (uint32_t j = half == 0 ? 0 : middle; j < end; ++j) {
      const bool is_likelier = shared.list_keys[j] < own_key;
      above.count += is_likelier;
      above.mass += is_likelier ? masses[j] : 0;
    }
    if (half == 1) sums[i] = {above.count, above.mass};
  }
  __syncthreads();
  if (half == 0 && i < alone.num_tokens) {
    above.count += static_cast<uint32_t>(sums[i].a);
    above.mass += sums[i].b;
  }
  return above;
}

// The token, by block 0 and its list of at most kFew, which has all tokens that are kept. `total` is as in `sample_listed`.
__device__ inline uint32_t sample_few(Block& alone, const Row& row, bool has_top_k, uint64_t total) {
  const uint32_t i = threadIdx.x % kFew;
  const uint32_t key = i < alone.num_tokens ? alone.shared.list_keys[i] : kNoToken;
  const uint32_t own_mass = Masses::of(key);
  bool is_kept = threadIdx.x < alone.num_tokens && key <= row.max_key;
  if (has_top_k || row.top_p < 1.0f) {
    const Above above = compare(alone, key, own_mass);
    is_kept &= !has_top_k || above.count < row.top_k;
    if (row.top_p < 1.0f) {
      if (has_top_k) total = all_reduce<Alone>(alone, is_kept ? own_mass : 0, Sum{});
      is_kept &= __ull2double_rn(above.mass) < nucleus(row, total);
    }
  }
  Leader leader;
  if (is_kept) {
    const uint32_t token = alone.shared.list_tokens[i];
    leader.challenge(__fadd_rn(-__uint_as_float(key), gumbel(Draws(row).word(token))), token);
  }
  return ~static_cast<uint32_t>(all_reduce<Alone>(alone, leader.packed(), Larger{}));
}

// The token, by block 0 and its list, which has all tokens that are kept. `total` is the mass that top-p is a part of if
// there is no top-k.
__device__ inline uint32_t sample_listed(Block& alone, const Row& row, bool has_top_k, uint64_t total) {
  if (alone.num_tokens <= kFew) return sample_few(alone, row, has_top_k, total);
  uint32_t max_key = row.max_key;
  if (has_top_k) max_key = cut_scaled<Alone, Counts>(alone, max_key, row.top_k);
  if (row.top_p < 1.0f) {
    if (has_top_k) total = all_reduce<Alone>(alone, mass_up_to(alone, max_key), Sum{});
    max_key = cut_scaled<Alone, Masses>(alone, max_key, nucleus(row, total));
  }
  return race_listed(alone, row, max_key);
}

// The token by the lists of all blocks, which have all tokens that are kept, `count` together; block 0 knows it.
__device__ inline uint32_t sample_joined(Block& block, const Row& row, uint32_t count, bool has_top_k, uint64_t total) {
  if (row.num_top_logprobs < 0) request_next(block);
  if (block.rank != 0) return kNoToken;
  Block alone = join(block, count);
  return sample_listed(alone, row, has_top_k, total);
}

// The token, by all blocks together; the lists did not hold what matters.
__device__ inline uint32_t sample_together(Block& block, const Row& row, const Scaling& scaling, bool has_top_k, uint64_t total,
                                    uint32_t likely) {
  scale(block, scaling);
  uint32_t max_key = row.max_key;
  if (has_top_k) {
    const Found found = find_scaled<Cluster, Counts>(block, max_key, row.top_k);
    if (found.width > 0 && found.through <= kMaxListed) {
      clear_list(block);
      list_below(block, found.low + found.width);
      sync<Cluster>();
      return sample_joined(block, row, count_listed(block), has_top_k, total);
    }
    if (found.width > 0) {
      max_key = narrow<Cluster, Counts>(block, found.low, found.width, found.before, found.through, row.top_k).key;
    }
  }
  if (row.top_p < 1.0f) {
    if (has_top_k) total = all_reduce<Cluster>(block, mass_up_to(block, max_key), Sum{});
    max_key = cut_scaled<Cluster, Masses>(block, max_key, nucleus(row, total));
  }
  return race(block, row, max_key, likely, [&block](uint32_t vector) { return block.keys()[vector]; });
}

// The token of a row that is not greedy; only block 0 knows it. `max` is the largest logit, `likely` the first that has it.
__device__ inline uint32_t sample_scaled(Block& block, const Request& request, float max, uint32_t likely) {
  const Row& row = request.row;
  const Scaling scaling = {max, row.scale};
  const bool has_top_k = row.top_k > 0 && row.top_k < request.vocab_size, has_top_p = row.top_p < 1.0f;
  if (!has_top_k && !has_top_p && row.max_key > kListedKey) {
    return race(block, row, row.max_key, likely,
                [&](uint32_t vector) { return scaling.keys(block.vectors()[vector]); });
  }
  clear_list(block);
  const uint32_t max_listed = min(row.max_key, kListedKey);
  Pair mass = {0, 0};
  if (has_top_p && !has_top_k) {
    mass = list_likely<true>(block, scaling, max_listed, row.max_key);
    mass = all_reduce<Cluster>(block, mass, Sum{}, Sum{});
  } else {
    list_likely<false>(block, scaling, max_listed, row.max_key);
    sync<Cluster>();
  }
  const uint32_t count = count_listed(block);
  bool is_enough = row.max_key <= kListedKey;
  if (has_top_k) {
    is_enough |= count >= row.top_k;
  } else if (has_top_p) {
    is_enough |= __ull2double_rn(mass.b) >= nucleus(row, mass.a);
  }
  if (count == kNoToken || !is_enough) return sample_together(block, row, scaling, has_top_k, mass.a, likely);
  return sample_joined(block, row, count, has_top_k, mass.a);
}

// Why no token is left: the model's logits, if they had none either or that was not looked at.
__device__ inline uint32_t nothing_left(Block& block, const Request& request, const Best& raw) {
  const Row& row = request.row;
  const uint64_t raw_max = all_reduce<Cluster>(block, rising_key(raw.max), Larger{});
  const bool was_seen = row.num_top_logprobs >= 0 || request.has_mask() || row.num_bad_words > 0 ||
                        masks_stop_ids(row, request.lists);
  return was_seen && raw_max > rising_key(-INFINITY) ? kNothingAllowed : kNonFinite;
}

// Waits for the row, and changes single logits. What it returns is of the logits as they came, and as they are.
__device__ inline void prepare(Block& block, const Request& request, Best& raw, Best& best) {
  const Row& row = request.row;
  prefetch_history(block, row, request.lists);
  uint32_t* mask = nullptr;
  if (request.has_mask()) {
    // To shared memory while the slice is under way: the bins are not yet needed.
    mask = &block.shared.bins[0][0][0];
    for (uint32_t i = threadIdx.x; i < (block.num_tokens + 31) / 32; i += kThreads) {
      const uint32_t own = request.mask != nullptr ? request.mask[i] : ~0u;
      mask[i] = own & (request.grammar != nullptr ? request.grammar[i] : ~0u);
    }
    __syncthreads();
  }
  block.is_raw = mask == nullptr;
  raw = load(block, mask);
  best = raw;
  if (mask != nullptr) __syncthreads();
  clear_bins(block);
  const bool has_sparse = has_sparse_edits(row, request.lists);
  if (has_sparse) apply_sparse_edits(block, row, request.lists);
  if (!has_sparse && mask == nullptr) return;
  best = look(block);
  best.max_or_nan = larger_or_nan(best.max_or_nan, raw.max_or_nan);
}
static_assert(sizeof(Shared::bins) * 8 >= kMaxChunks * kChunk);

// The row's token, or why there is none; block 0 knows it, the others the status.
__device__ inline Sampled choose(Block& block, const Request& request) {
  const Row& row = request.row;
  Best raw, best;
  prepare(block, request, raw, best);
  if (row.flags & kBroken) return {0, kRowBroken};
  if (request.is_deferred) return {0, kDeferred};
  const uint64_t own = best.packed(block);
  if ((row.flags & kGreedy) && row.num_top_logprobs < 0) {
    __syncthreads();
    request_next(block);
  }
  const uint64_t first = all_reduce<Cluster>(block, own, Larger{});
  const uint32_t key = static_cast<uint32_t>(first >> 32);
  const uint32_t likely = ~static_cast<uint32_t>(first);
  if (key == kNanKey) return {0, kNonFinite};
  if (key == rising_key(-INFINITY)) return {0, nothing_left(block, request, raw)};
  if (row.flags & kGreedy) return {likely, kToken};
  float max = value_of_rising_key(key);
  if (max == INFINITY) {
    level_infinite(block);
    max = 0;
  }
  return {sample_scaled(block, request, max, likely), kToken};
}

}  // namespace izar::sampler
