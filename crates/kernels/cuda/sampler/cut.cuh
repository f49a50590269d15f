// Where to cut: the smallest key such that all keys up to it weigh enough. No sorting: weights are summed in bins, the
// bin in which the sum reaches the target is looked into again, until it holds one key.
//
// A key is a token's place in the order: the lower, the likelier. Keys lie in the slices, or in the list of a block that is
// alone with it. Sums are integers, so every split and order of them finds the same cut.
#pragma once
#include "block.cuh"

namespace izar::sampler {

// Keys `low` to `low + width - 1` in bins.
struct Binning {
  uint32_t low;
  uint32_t width;
  float scale;     // above 0: bin = magnitude * scale - first, for keys that are magnitudes
  uint32_t first;
  uint32_t shift;  // else: bin = (key - low) >> shift

  __device__ __forceinline__ uint32_t bin(uint32_t key) const {
    return scale > 0.0f ? __float2uint_rz(__fmul_rn(__uint_as_float(key), scale)) - first : (key - low) >> shift;
  }
  __device__ __forceinline__ uint32_t start(uint32_t bin) const {
    return scale > 0.0f ? __float_as_uint(__fdiv_rn(__uint2float_rn(bin + first), scale)) : low + (bin << shift);
  }
};

__device__ __forceinline__ Binning even_bins(uint32_t low, uint32_t width) {
  const uint32_t bits = width > 1 ? 32 - __clz(width - 1) : 0;  // of the largest offset
  return {low, width, 0.0f, 0, bits > 9 ? bits - 9 : 0};
}
static_assert(kBins == 1 << 9);

// Scaled logits of -8 to 0 and of -24 to -8 in bins of equal size, then all the rest.
__device__ __forceinline__ Binning bins_of_scaled(uint32_t stage, uint32_t max_key) {
  constexpr uint32_t kEight = 0x41000000;
  constexpr uint32_t kTwentyFour = 0x41C00000;
  if (stage == 0) return {0, min(kEight, max_key + 1), 64.0f, 0, 0};
  const uint32_t low = stage == 1 ? kEight : kTwentyFour;
  const uint32_t width = max_key >= low ? max_key - low + 1 : 0;
  if (stage == 1) return {low, min(kTwentyFour - kEight, width), 32.0f, 256, 0};
  return even_bins(low, width);
}

struct Counts {
  static constexpr bool kAreWide = false;
  __device__ static uint32_t of(uint32_t) { return 1; }
};

struct Masses {
  static constexpr bool kAreWide = true;
  __device__ static uint32_t of(uint32_t key) { return mass(-__uint_as_float(key)); }
};

// Adds the weights of the keys that `binning` covers to the bins.
template <typename Weight>
__device__ inline void fill(Block& block, const Binning& binning) {
  uint32_t* low = block.shared.bins[block.bins_turn][0];
  uint32_t* high = block.shared.bins[block.bins_turn][1];
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const uint4 four = block.keys()[vector];
    const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (const uint32_t key : keys) {
      if (key - binning.low >= binning.width) continue;
      const uint32_t weight = Weight::of(key);
      if (weight == 0) continue;
      const uint32_t bin = binning.bin(key);
      // Halves, so that no sum of a slice overflows.
      atomicAdd(&low[bin], weight & 0xFFFF);
      if (Weight::kAreWide) atomicAdd(&high[bin], weight >> 16);
    }
  }
}

// The thread's part of the mass of all keys up to `max_key`.
__device__ inline uint64_t mass_up_to(const Block& block, uint32_t max_key) {
  uint64_t total = 0;
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const uint4 four = block.keys()[vector];
    const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (const uint32_t key : keys) {
      if (key <= max_key) total += Masses::of(key);
    }
  }
  return total;
}

// What the team's blocks have in the thread's own bin.
template <typename Team>
__device__ __forceinline__ uint64_t gather_bin(const uint32_t (&bins)[kBins]) {
  if constexpr (Team::kSize == 1) {
    return bins[threadIdx.x];
  } else {
    uint32_t parts[Team::kSize];
#pragma unroll
    for (uint32_t rank = 0; rank < Team::kSize; ++rank) {
      parts[rank] = ptx::ld_shared_cluster(ptx::map_shared(&bins[threadIdx.x], rank));
    }
    uint64_t sum = 0;
#pragma unroll
    for (const uint32_t part : parts) sum += part;
    return sum;
  }
}

// The bins of the whole team summed up to the first that reaches `target`, `before` being the weight before them.
// Returns the bin, or kBins; `before` becomes the weight before the bin, or with all bins; `after` that with the bin.
// Call after a barrier of the team that follows the filling.
template <typename Team, typename Weight>
__device__ inline uint32_t reach(Block& block, uint64_t& before, uint64_t& after, double target) {
  Shared& shared = block.shared;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t(&bins)[2][kBins] = shared.bins[block.bins_turn];
  uint64_t own = gather_bin<Team>(bins[0]);
  if (Weight::kAreWide) own += gather_bin<Team>(bins[1]) << 16;
  // Every block has read the other turn's bins before the barrier that this call follows.
  block.bins_turn ^= 1;
  shared.bins[block.bins_turn][0][threadIdx.x] = 0;
  shared.bins[block.bins_turn][1][threadIdx.x] = 0;
  if (threadIdx.x == 0) shared.bin = kBins;
  uint64_t sum = own;
#pragma unroll
  for (uint32_t offset = 1; offset < 32; offset *= 2) {
    const uint64_t other = __shfl_up_sync(kWholeWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == 31) shared.of_warps[warp].a = sum;
  __syncthreads();
  uint64_t total = before;
  for (uint32_t i = 0; i < kWarps; ++i) {
    if (i == warp) sum += total;
    total += shared.of_warps[i].a;
  }
  if (__ull2double_rn(sum) >= target && __ull2double_rn(sum - own) < target) {
    shared.bin = threadIdx.x;
    shared.before = sum - own;
    shared.after = sum;
  }
  __syncthreads();
  const uint32_t bin = shared.bin;
  before = bin < kBins ? shared.before : total;
  after = bin < kBins ? shared.after : total;
  return bin;
}

struct Cut {
  uint32_t key;      // keys up to this one
  uint64_t before;   // weight of smaller keys
  uint64_t through;  // weight with this key; more keys may be in it than one
};

// Narrows keys `low` to `low + width - 1`, among which the target is reached, to one; or to several if these together
// weigh exactly the target.
template <typename Team, typename Weight>
__device__ inline Cut narrow(Block& block, uint32_t low, uint32_t width, uint64_t before, uint64_t through, double target) {
  while (width > 1 && __ull2double_rn(through) != target) {
    const Binning binning = even_bins(low, width);
    fill<Weight>(block, binning);
    sync<Team>();
    const uint32_t bin = reach<Team, Weight>(block, before, through, target);
    const uint32_t start = binning.start(bin);
    width = min(1u << binning.shift, low + width - start);
    low = start;
  }
  return {low + width - 1, before, through};
}

// Where the target is reached: among keys `low` to `low + width - 1`. Of width 0: nowhere.
struct Found {
  uint32_t low;
  uint32_t width;
  uint64_t before;
  uint64_t through;
};

// Looks at keys up to `max_key`, which are the magnitudes of scaled logits, bin by bin.
template <typename Team, typename Weight>
__device__ inline Found find_scaled(Block& block, uint32_t max_key, double target) {
  uint64_t before = 0, through = 0;
  for (uint32_t stage = 0; stage < 3; ++stage) {
    const Binning binning = bins_of_scaled(stage, max_key);
    if (binning.width == 0) break;
    fill<Weight>(block, binning);
    sync<Team>();
    const uint32_t bin = reach<Team, Weight>(block, before, through, target);
    if (bin == kBins) continue;
    const uint32_t start = binning.start(bin);
    const uint32_t end = bin + 1 < kBins ? min(binning.start(bin + 1), binning.low + binning.width)
                                         : binning.low + binning.width;
    return {start, end - start, before, through};
  }
  return {0, 0, 0, 0};
}

// The smallest key with which keys up to it weigh `target`; `max_key` if keys up to that weigh less.
template <typename Team, typename Weight>
__device__ inline uint32_t cut_scaled(Block& block, uint32_t max_key, double target) {
  const Found found = find_scaled<Team, Weight>(block, max_key, target);
  if (found.width == 0) return max_key;
  return narrow<Team, Weight>(block, found.low, found.width, found.before, found.through, target).key;
}

}  // namespace izar::sampler
