// moe_select: the beginning of a layer with experts, in one kernel for up to 64 tokens: RMS norm, the router's projection,
// which experts a token goes to, and where its rows stand when rows are sorted by expert.
//   x            [num_tokens, hidden]   bf16, row stride x_stride: the residual stream
//   norm         [hidden]               bf16
//   router       [num_experts, hidden]  bf16, dense
//   normed       [num_tokens, hidden]   bf16, dense: x normalised; not written past the step's tokens
//   tokens_here  u32 in device memory: tokens of this step; later rows are padding, are not used and go nowhere
//   shares, slots, sources, groups, counts  as moe_route's; rows of an expert in the order of their tokens
//   columns      [max_groups, tile_tokens]  u32 or null: the sorted row of token t in the group, or ~0; then a group holds
//                all rows of its expert, and num_tokens <= tile_tokens
//   logits       [num_tokens, num_experts]  f32, choices [num_tokens, top_k] u32: filled with 0xFF bytes once, left so by
//                every launch
// Grid (ceil(num_experts / 16), ceil(num_tokens / 8)), 256 threads: a block projects 8 tokens on 16 experts, each warp
// an eighth of the depth in registers. The first block of 8 tokens chooses for them, the first of all sorts.
// Requires hidden % 8 == 0, 16-byte aligned rows. A token's logits depend on the token alone: sums are cut by the shape.
// norm, router and tokens_here are read before the previous kernel has finished: it must not be what writes them.
// Bound: latency. HBM bytes = 2 * num_experts * hidden, asked for before the previous kernel has finished.
// Measured: docs/perf/h200-kernels.md
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/block_scan.cuh"
#include "../common/launch.h"
#include "../ptx/grid.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/mma.cuh"
#include "moe_choose.cuh"

// Mirrored by moe::SelectArgs.
struct IzarMoeSelectArgs {
  const __nv_bfloat16* x;
  const __nv_bfloat16* norm;
  const __nv_bfloat16* router;
  __nv_bfloat16* normed;
  const uint32_t* tokens_here;
  float* shares;
  uint32_t* slots;
  uint32_t* sources;
  uint4* groups;
  uint32_t* columns;
  uint32_t* counts;
  uint32_t* logits;
  uint32_t* choices;
  uint32_t* error;
  uint32_t num_tokens;
  uint32_t num_experts;
  uint32_t top_k;
  uint32_t tile_tokens;
  uint32_t hidden;
  uint32_t x_stride;
  uint32_t normalise;
  float epsilon;
};
static_assert(sizeof(IzarMoeSelectArgs) == 144);

namespace {

namespace ptx = izar::ptx;
using Args = IzarMoeSelectArgs;
using izar::moe::kMaxExperts;
using izar::moe::kMaxPerLane;

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint32_t kTokens = 8;    // of a block; one for each warp to choose for
constexpr uint32_t kExperts = 16;  // of a block
constexpr uint32_t kMaxTokens = 64;
constexpr uint32_t kMaxTopK = 32;
// A warp takes 32 elements in every kSpan, a lane 8 of them; it holds kChunks spans at a time.
constexpr uint32_t kSpan = 32 * kWarps;
constexpr uint32_t kChunks = 8;
// Rows of the parts, so that no two lanes write to one bank.
constexpr uint32_t kPartStride = kExperts + 4;

// How a word that has not arrived reads: no logit and no expert.
constexpr uint32_t kAbsent = 0xFFFFFFFF;
// A word that does not come within this many polls (seconds) is an error, not a hang.
constexpr uint32_t kMaxPolls = 1u << 22;
constexpr uint32_t kErrorWordAbsent = 2;

union Vector {
  uint4 words;
  __nv_bfloat162 pairs[4];
};

// Takes words that other blocks of this launch write, and leaves their places absent for the next launch. All are asked for
// before any is looked at; where is_there says no, the word is 0.
// SYNC moe-word: pairs with st_relaxed_gpu in project and choose. A word is data and flag in one, so relaxed accesses of
// gpu scope suffice: nothing else crosses. The next launch's writers come after this kernel has finished.
template <uint32_t kCount, class Place, class IsThere>
__device__ __forceinline__ void take_words(const Args& a, uint32_t (&words)[kCount], Place place, IsThere is_there) {
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) words[i] = 0;
  bool is_absent = true;
  for (uint32_t polls = 0; is_absent; ++polls) {
    if (polls == kMaxPolls) {
      ptx::st_relaxed_sys(a.error, kErrorWordAbsent);
      return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) ptx::ld_relaxed_gpu_if(is_there(i), words[i], place(i));
    is_absent = false;
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) is_absent |= words[i] == kAbsent;
  }
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    if (is_there(i)) ptx::st_relaxed_gpu(place(i), kAbsent);
  }
}

// What a lane multiplies: the same 8 elements of every span, of one token and of two experts.
class Lane {
 public:
  __device__ __forceinline__ explicit Lane(const Args& args) : a(args) {
    const uint32_t lane = threadIdx.x % 32;
    token = blockIdx.y * kTokens + lane / 4;
    expert = blockIdx.x * kExperts + lane / 4;
    element = threadIdx.x / 32 * 32 + lane % 4 * 8;
  }

  __device__ __forceinline__ void load_weights(uint32_t pass) {
#pragma unroll
    for (uint32_t i = 0; i < kChunks; ++i) {
      const uint32_t at = element_of(pass, i);
      const bool is_inside = at < a.hidden;
      const __nv_bfloat16* row = a.router + size_t{expert} * a.hidden + at;
      low[i] = is_inside && expert < a.num_experts ? ptx::ld_stream_v4(row) : uint4{};
      high[i] = is_inside && expert + 8 < a.num_experts ? ptx::ld_stream_v4(row + 8 * a.hidden) : uint4{};
      norm[i].words = is_inside ? *reinterpret_cast<const uint4*>(a.norm + at) : uint4{};
    }
  }

  __device__ __forceinline__ void load_x(uint32_t pass) {
#pragma unroll
    for (uint32_t i = 0; i < kChunks; ++i) {
      const uint32_t at = element_of(pass, i);
      const bool is_inside = at < a.hidden && token < a.num_tokens;
      x[i].words = is_inside ? *reinterpret_cast<const uint4*>(a.x + size_t{token} * a.x_stride + at) : uint4{};
    }
  }

  __device__ __forceinline__ float squares() const {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < kChunks; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const float2 pair = __bfloat1622float2(x[i].pairs[j]);
        sum += pair.x * pair.x + pair.y * pair.y;
      }
    }
    return sum;
  }

  // Normalises x in place.
  __device__ __forceinline__ void normalise(float inverse) {
#pragma unroll
    for (uint32_t i = 0; i < kChunks; ++i) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        const float2 pair = __bfloat1622float2(x[i].pairs[j]);
        const float2 weight = __bfloat1622float2(norm[i].pairs[j]);
        x[i].pairs[j] = __floats2bfloat162_rn(pair.x * inverse * weight.x, pair.y * inverse * weight.y);
      }
    }
  }

  __device__ __forceinline__ void store_normed(uint32_t pass) const {
#pragma unroll
    for (uint32_t i = 0; i < kChunks; ++i) {
      const uint32_t at = element_of(pass, i);
      if (at < a.hidden) *reinterpret_cast<uint4*>(a.normed + size_t{token} * a.hidden + at) = x[i].words;
    }
  }

  // Which elements meet in one product is up to us as long as weights and tokens agree: a lane's 8 are two products' 4.
  __device__ __forceinline__ void multiply(float (&sums)[4][4]) const {
#pragma unroll
    for (uint32_t i = 0; i < kChunks; ++i) {
      const uint4 b = x[i].words;
      ptx::mma_m16n8k16(sums[2 * i % 4], low[i].x, high[i].x, low[i].y, high[i].y, b.x, b.y);
      ptx::mma_m16n8k16(sums[2 * i % 4 + 1], low[i].z, high[i].z, low[i].w, high[i].w, b.z, b.w);
    }
  }

  uint32_t token;

 private:
  __device__ __forceinline__ uint32_t element_of(uint32_t pass, uint32_t chunk) const {
    return (pass * kChunks + chunk) * kSpan + element;
  }

  const Args& a;
  uint32_t expert;
  uint32_t element;
  uint4 low[kChunks];
  uint4 high[kChunks];
  Vector norm[kChunks];
  Vector x[kChunks];
};

// The block's 8 by 16 logits, each summed over the warps in order and handed to the block that chooses.
__device__ __forceinline__ void project(const Args& a, Lane& lane, uint32_t num_tokens) {
  __shared__ float squares[kWarps][kTokens];
  __shared__ float parts[kWarps][kTokens * kPartStride];
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t row = threadIdx.x % 32 / 4;
  const uint32_t column = threadIdx.x % 4 * 2;
  const uint32_t num_passes = (a.hidden + kChunks * kSpan - 1) / (kChunks * kSpan);

  // Backwards, so that the first pass is still there when it is multiplied.
  float sum = 0.0f;
  for (uint32_t pass = num_passes; pass-- > 0;) {
    lane.load_x(pass);
    sum += lane.squares();
  }
  sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
  sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
  if (threadIdx.x % 4 == 0) squares[warp][row] = sum;
  __syncthreads();
  sum = 0.0f;
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) sum += squares[w][row];
  const float inverse = rsqrtf(sum / a.hidden + a.epsilon);

  float sums[4][4] = {};
  for (uint32_t pass = 0; pass < num_passes; ++pass) {
    if (pass != 0) {
      lane.load_weights(pass);
      lane.load_x(pass);
    }
    lane.normalise(inverse);
    lane.multiply(sums);
    // Not by the block that has most to do.
    if (blockIdx.x == gridDim.x - 1 && lane.token < num_tokens) lane.store_normed(pass);
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const float total = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
    parts[warp][(column + i % 2) * kPartStride + row + i / 2 * 8] = total;
  }
  __syncthreads();
  const uint32_t token = blockIdx.y * kTokens + threadIdx.x / kExperts;
  const uint32_t expert = blockIdx.x * kExperts + threadIdx.x % kExperts;
  if (threadIdx.x >= kTokens * kExperts || token >= num_tokens || expert >= a.num_experts) return;
  float logit = 0.0f;
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) {
    logit += parts[w][threadIdx.x / kExperts * kPartStride + threadIdx.x % kExperts];
  }
  const uint32_t bits = __float_as_uint(logit);
  ptx::st_relaxed_gpu(a.logits + size_t{token} * a.num_experts + expert, bits == kAbsent ? 0x7FFFFFFF : bits);
}

// A warp chooses for its token of the block's, and lane k returns the k-th expert; what the sorting block chose stays in
// its shared memory.
template <uint32_t kPerLane>
__device__ __forceinline__ uint32_t choose(const Args& a, uint32_t num_tokens, uint32_t* chosen) {
  const uint32_t token = blockIdx.y * kTokens + threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  if (token >= num_tokens) return kAbsent;
  uint32_t words[kPerLane];
  take_words(
      a, words, [&](uint32_t i) { return a.logits + size_t{token} * a.num_experts + i * 32 + lane; },
      [&](uint32_t i) { return i * 32 + lane < a.num_experts; });
  float logits[kPerLane];
#pragma unroll
  for (uint32_t i = 0; i < kPerLane; ++i) logits[i] = __uint_as_float(words[i]);
  const izar::moe::Choice choice = izar::moe::choose(logits, a.num_experts, a.top_k, a.normalise);
  if (lane >= a.top_k) return kAbsent;
  const uint32_t at = token * a.top_k + lane;
  a.shares[at] = choice.share;
  if (blockIdx.y == 0) {
    chosen[at] = choice.expert;
  } else {
    ptx::st_relaxed_gpu(a.choices + at, choice.expert);
  }
  return choice.expert;
}

// Tokens that chose an expert, a bit each.
struct TokenSet {
  uint32_t words[kMaxTokens / 32];

  __device__ __forceinline__ uint32_t size() const { return __popc(words[0]) + __popc(words[1]); }
  __device__ __forceinline__ bool has(uint32_t token) const { return words[token / 32] >> token % 32 & 1; }
  // How many of them come before a token.
  __device__ __forceinline__ uint32_t rank(uint32_t token) const {
    const uint32_t below = __popc(words[token / 32] & ((1u << token % 32) - 1));
    return token < 32 ? below : __popc(words[0]) + below;
  }
};

// Rows in the low half, groups in the high one: what comes before an expert.
__device__ __forceinline__ uint32_t rows_of(uint32_t sum) { return sum & 0xFFFF; }
__device__ __forceinline__ uint32_t groups_of(uint32_t sum) { return sum >> 16; }

__device__ __forceinline__ void sort(const Args& a, uint32_t num_tokens, const uint32_t* chosen, TokenSet* sets) {
  __shared__ uint32_t before[kMaxExperts + 1];
  const uint32_t num_choices = num_tokens * a.top_k;
  for (uint32_t i = threadIdx.x; i < num_choices; i += kThreads) {
    const uint32_t token = i / a.top_k;
    atomicOr(&sets[chosen[i]].words[token / 32], 1u << token % 32);
  }
  __syncthreads();
  izar::exclusive_sums<kThreads>(a.num_experts, before, [&](uint32_t e) {
    const uint32_t rows = sets[e].size();
    return rows | (rows + a.tile_tokens - 1) / a.tile_tokens << 16;
  });
  uint32_t distinct = 0;
  for (uint32_t first = 0; first < a.num_experts; first += kThreads) {
    const uint32_t e = first + threadIdx.x;
    const uint32_t rows = e < a.num_experts ? sets[e].size() : 0;
    for (uint32_t done = 0; done < rows; done += a.tile_tokens) {
      const uint32_t group = groups_of(before[e]) + done / a.tile_tokens;
      a.groups[group] = {e, rows_of(before[e]) + done, min(rows - done, a.tile_tokens), 0};
    }
    distinct += __syncthreads_count(rows != 0);
  }
  for (uint32_t i = threadIdx.x; i < num_choices; i += kThreads) {
    const uint32_t token = i / a.top_k;
    const uint32_t row = rows_of(before[chosen[i]]) + sets[chosen[i]].rank(token);
    a.slots[i] = row;
    a.sources[row] = token;
  }
  if (a.columns != nullptr) {
    for (uint32_t i = threadIdx.x; i < a.num_experts * a.tile_tokens; i += kThreads) {
      const uint32_t e = i / a.tile_tokens;
      const uint32_t token = i % a.tile_tokens;
      if (sets[e].size() == 0) continue;
      const uint32_t row = rows_of(before[e]) + sets[e].rank(token);
      a.columns[groups_of(before[e]) * a.tile_tokens + token] = sets[e].has(token) ? row : kAbsent;
    }
  }
  if (threadIdx.x == 0) {
    a.counts[0] = groups_of(before[a.num_experts]);
    a.counts[1] = num_choices;
    a.counts[2] = distinct;
    a.counts[3] = 0;
  }
}

// A single token's experts are sorted by the warp that chose them: each is a group of one row.
__device__ __forceinline__ void sort_one(const Args& a, uint32_t expert) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t row = 0;
  for (uint32_t k = 0; k < a.top_k; ++k) row += __shfl_sync(izar::moe::kAllLanes, expert, k) < expert;
  if (lane < a.top_k) {
    a.slots[lane] = row;
    a.sources[row] = 0;
    a.groups[row] = {expert, row, 1, 0};
    if (a.columns != nullptr) {
      for (uint32_t i = 0; i < a.tile_tokens; ++i) a.columns[row * a.tile_tokens + i] = i == 0 ? row : kAbsent;
    }
  }
  if (lane == 0) *reinterpret_cast<uint4*>(a.counts) = {a.top_k, a.top_k, a.top_k, 0};
}

template <uint32_t kPerLane>
__global__ void __launch_bounds__(kThreads) kernel(const Args a) {
  __shared__ TokenSet sets[kMaxExperts];
  __shared__ uint32_t chosen[kMaxTokens * kMaxTopK];
  ptx::launch_dependents();
  const uint32_t num_tokens = min(*a.tokens_here, a.num_tokens);
  const bool sorts = blockIdx.x == 0 && blockIdx.y == 0;
  Lane lane(a);
  lane.load_weights(0);
  if (sorts) {
    for (uint32_t e = threadIdx.x; e < a.num_experts; e += kThreads) sets[e] = {};
  }
  ptx::wait_for_previous_kernel();
  if (blockIdx.y * kTokens >= num_tokens && !sorts) return;
  project(a, lane, num_tokens);
  if (blockIdx.x != 0) return;
  const uint32_t expert = choose<kPerLane>(a, num_tokens, chosen);
  if (!sorts) return;
  if (num_tokens == 1) {
    if (threadIdx.x < 32) sort_one(a, expert);
    return;
  }
  for (uint32_t first = kTokens * a.top_k + threadIdx.x; first < num_tokens * a.top_k; first += 2 * kThreads) {
    const auto is_there = [&](uint32_t i) { return first + i * kThreads < num_tokens * a.top_k; };
    uint32_t words[2];
    take_words(a, words, [&](uint32_t i) { return a.choices + first + i * kThreads; }, is_there);
    for (uint32_t i = 0; i < 2; ++i) {
      if (is_there(i)) chosen[first + i * kThreads] = words[i];
    }
  }
  __syncthreads();
  sort(a, num_tokens, chosen, sets);
}

}  // namespace

extern "C" int32_t izar_moe_select(const Args* args, cudaStream_t stream) {
  const dim3 grid((args->num_experts + kExperts - 1) / kExperts, (args->num_tokens + kTokens - 1) / kTokens);
  constexpr uint32_t kFewPerLane = 4;
  auto* chosen = args->num_experts <= 32 * kFewPerLane ? kernel<kFewPerLane> : kernel<kMaxPerLane>;
  return izar::launch_overlapped(chosen, grid, kThreads, 0, stream, *args);
}
