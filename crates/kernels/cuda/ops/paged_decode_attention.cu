// paged_decode_attention: one decode step, GQA, paged KV, split along the context.
//   q           [num_seqs, num_heads, head_dim]                bf16, row stride q_stride
//   k_cache     [num_blocks, 16, num_kv_heads, head_dim]       bf16; v_cache likewise
//   block_table [num_seqs, max_blocks_per_seq]                 u32; only entries below a sequence's length are read
//   seq_lens    [num_seqs]                                     u32, tokens in the cache, this step's included; 0: row skipped
//   out         [num_seqs, num_heads, head_dim]                bf16, row stride out_stride
//   partials    [num_seqs * 32, num_heads, head_dim + 4]       f32
// Two kernels. The first: any grid size, 128 threads; warps walk the list of (sequence, chunk, kv head), which every
// block builds from seq_lens, so a captured launch serves any lengths. The second joins the chunks of a sequence.
// A sequence is cut by its own length alone and joined in order: its result does not depend on its batch.
// Requires head_dim 64, 96 or 128, num_heads / num_kv_heads <= 16, 1024 sequences, 16-byte aligned q, out, strides % 8 == 0.
// Bound: HBM bytes = 4 * num_kv_heads * head_dim * sum(seq_lens).  Measured: docs/perf/h200-kernels.md
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../ptx/grid.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/mma.cuh"

// Mirrored by ffi::PagedDecodeAttentionArgs.
struct IzarPagedDecodeAttentionArgs {
  const __nv_bfloat16* q;
  const __nv_bfloat16* k_cache;
  const __nv_bfloat16* v_cache;
  const uint32_t* block_table;
  const uint32_t* seq_lens;
  __nv_bfloat16* out;
  float* partials;
  uint32_t num_seqs;
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t max_blocks_per_seq;
  uint32_t q_stride;
  uint32_t out_stride;
  uint32_t window;  // a token sees this many positions back, itself included; 0: all
  float scale;
  uint32_t num_sms;
};
static_assert(sizeof(IzarPagedDecodeAttentionArgs) == 96);

namespace {

using Args = IzarPagedDecodeAttentionArgs;
namespace ptx = izar::ptx;

constexpr uint32_t kBlockSize = 16;
constexpr uint32_t kWarps = 4;
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kMinChunk = 4 * kBlockSize;
constexpr uint32_t kMaxChunks = 32;
constexpr uint32_t kMaxSeqs = 1024;
constexpr float kLog2E = 1.4426950408889634f;

// The positions that a sequence's token attends to, and their cut into chunks.
struct Extent {
  uint32_t begin;  // first position seen
  uint32_t end;
  uint32_t chunk;  // positions a chunk, a multiple of kMinChunk

  __device__ static Extent of(const Args& a, uint32_t seq) {
    Extent e;
    e.end = min(a.seq_lens[seq], a.max_blocks_per_seq * kBlockSize);
    e.begin = a.window != 0 && e.end > a.window ? e.end - a.window : 0;
    e.chunk = kMinChunk;
    while (e.aligned_length() > e.chunk * kMaxChunks) e.chunk *= 2;
    return e;
  }

  __device__ uint32_t aligned_begin() const { return begin / kBlockSize * kBlockSize; }
  __device__ uint32_t aligned_length() const { return end - aligned_begin(); }
  __device__ uint32_t num_chunks() const { return (aligned_length() + chunk - 1) / chunk; }
};

// first_chunk[s] = chunks of the sequences before s.
__device__ void list_chunks(const Args& a, uint32_t (&first_chunk)[kMaxSeqs + 1]) {
  __shared__ uint32_t warp_sums[kWarps];
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  uint32_t carry = 0;
  for (uint32_t base = 0; base < a.num_seqs; base += kThreads) {
    const uint32_t seq = base + threadIdx.x;
    const uint32_t count = seq < a.num_seqs ? Extent::of(a, seq).num_chunks() : 0;
    uint32_t sum = count;
    for (uint32_t offset = 1; offset < 32; offset *= 2) {
      const uint32_t below = __shfl_up_sync(0xFFFFFFFF, sum, offset);
      if (lane >= offset) sum += below;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    uint32_t before = carry;
    for (uint32_t w = 0; w < kWarps; ++w) {
      if (w < warp) before += warp_sums[w];
      carry += warp_sums[w];
    }
    if (seq < a.num_seqs) first_chunk[seq] = before + sum - count;
    __syncthreads();
  }
  if (threadIdx.x == 0) first_chunk[a.num_seqs] = carry;
  __syncthreads();
}

// The sequence that a chunk of the list belongs to: the last one that starts at or before it.
__device__ uint32_t seq_of_chunk(const uint32_t* first_chunk, uint32_t num_seqs, uint32_t chunk) {
  uint32_t low = 0;
  uint32_t high = num_seqs;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (first_chunk[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// One entry of the list: a chunk of a sequence for one kv head.
struct Item {
  uint32_t seq;
  uint32_t kv_head;
  uint32_t chunk;  // in the list of all sequences' chunks
  uint32_t num_chunks;
  uint32_t seen_from;  // the sequence's first position seen
  uint32_t begin;      // the chunk's positions, begin on a KV block
  uint32_t end;

  __device__ static Item at(const Args& a, const uint32_t* first_chunk, uint32_t index) {
    Item item;
    item.kv_head = index % a.num_kv_heads;
    item.chunk = index / a.num_kv_heads;
    item.seq = seq_of_chunk(first_chunk, a.num_seqs, item.chunk);
    const Extent extent = Extent::of(a, item.seq);
    item.num_chunks = extent.num_chunks();
    item.seen_from = extent.begin;
    item.begin = extent.aligned_begin() + (item.chunk - first_chunk[item.seq]) * extent.chunk;
    item.end = min(item.begin + extent.chunk, extent.end);
    return item;
  }
};

// A KV block that a warp reads, and which of its 16 positions count.
struct Step {
  uint32_t block = 0;
  uint16_t kv_head = 0;
  uint8_t begin = 0;
  uint8_t end = 0;  // 0: nothing left to read
};

// Warps of one block take items far apart: few items spread over all blocks.
__device__ uint32_t first_item() { return blockIdx.x + threadIdx.x / 32 * gridDim.x; }

// The KV blocks of one warp, item after item. It runs ahead of the arithmetic, so that the next block
// is on its way, and the id of the one after it, while one is worked on.
class Walk {
 public:
  __device__ Walk(const Args& a, const uint32_t* first_chunk, uint32_t num_items)
      : a_(a), first_chunk_(first_chunk), num_items_(num_items), index_(first_item()) {
    enter();
  }

  __device__ Step next() {
    while (index_ < num_items_ && position_ >= item_.end) {
      index_ += kWarps * gridDim.x;
      enter();
    }
    if (index_ >= num_items_) return {};
    Step step;
    step.block = a_.block_table[size_t{item_.seq} * a_.max_blocks_per_seq + position_ / kBlockSize];
    step.kv_head = item_.kv_head;
    step.begin = position_ < item_.seen_from ? item_.seen_from - position_ : 0;
    step.end = min(item_.end - position_, kBlockSize);
    position_ += kBlockSize;
    return step;
  }

 private:
  __device__ void enter() {
    if (index_ >= num_items_) return;
    item_ = Item::at(a_, first_chunk_, index_);
    position_ = item_.begin;
  }

  const Args& a_;
  const uint32_t* first_chunk_;
  uint32_t num_items_;
  uint32_t index_;
  Item item_;
  uint32_t position_;
};

// A warp's running softmax over its KV blocks. Rows of the matrix products are the query heads of one
// kv head, 8 or 16 of them. Positions and dims are permuted inside the products so that every thread
// loads 16 (or 8) contiguous bytes: a sum does not care for the order of its terms.
template <uint32_t kHeadDim, uint32_t kRowHalves>
struct WarpState {
  static constexpr uint32_t kSegments = kHeadDim / 32;             // of K: 32 dims, 4 threads of 8
  static constexpr uint32_t kVector = kHeadDim % 64 == 0 ? 8 : 4;  // dims of V a thread loads
  static constexpr uint32_t kSlices = kHeadDim / (8 * kVector);    // of V: 8 threads of kVector

  float max[kRowHalves];
  float sum[kRowHalves];
  float out[kSlices][kVector][2 * kRowHalves];

  __device__ void reset() {
    for (uint32_t h = 0; h < kRowHalves; ++h) {
      max[h] = -INFINITY;
      sum[h] = 0.0f;
    }
    for (auto& slice : out) {
      for (auto& tile : slice) {
        for (float& value : tile) value = 0.0f;
      }
    }
  }
};

template <uint32_t kVector>
struct Words {
  uint32_t w[kVector / 2];
};

template <uint32_t kVector>
__device__ __forceinline__ Words<kVector> load_words(const __nv_bfloat16* from, bool valid) {
  Words<kVector> out = {};
  if (!valid) return out;
  if constexpr (kVector == 8) {
    const uint4 v = ptx::ld_stream_v4(from);
    out.w[0] = v.x, out.w[1] = v.y, out.w[2] = v.z, out.w[3] = v.w;
  } else {
    const uint2 v = ptx::ld_stream_v2(from);
    out.w[0] = v.x, out.w[1] = v.y;
  }
  return out;
}

// One KV block of 16 positions; those that do not count are not read and are zero.
template <uint32_t kHeadDim, uint32_t kRowHalves>
struct BlockData {
  using State = WarpState<kHeadDim, kRowHalves>;
  uint4 k[2][State::kSegments];                   // positions lane / 4 and + 8
  Words<State::kVector> v[4][State::kSlices];  // positions 2 * (lane % 4) + {0, 1, 8, 9}

  __device__ __forceinline__ static size_t offset(const Args& a, const Step& step) {
    return (size_t{step.block} * kBlockSize * a.num_kv_heads + step.kv_head) * kHeadDim;
  }

  __device__ __forceinline__ void load_k(const Args& a, const Step& step) {
    const uint32_t group = threadIdx.x % 32 / 4;
    const __nv_bfloat16* from = a.k_cache + offset(a, step) + threadIdx.x % 4 * 8;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t position = group + 8 * half;
      const bool valid = position >= step.begin && position < step.end;
#pragma unroll
      for (uint32_t s = 0; s < State::kSegments; ++s) {
        k[half][s] = valid ? ptx::ld_stream_v4(from + size_t{position * a.num_kv_heads} * kHeadDim + s * 32) : uint4{};
      }
    }
  }

  __device__ __forceinline__ void load_v(const Args& a, const Step& step) {
    const __nv_bfloat16* from = a.v_cache + offset(a, step) + threadIdx.x % 32 / 4 * State::kVector;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t position = 2 * (threadIdx.x % 4) + i % 2 + 8 * (i / 2);
      const bool valid = position >= step.begin && position < step.end;
#pragma unroll
      for (uint32_t s = 0; s < State::kSlices; ++s) {
        v[i][s] = load_words<State::kVector>(
            from + size_t{position * a.num_kv_heads} * kHeadDim + s * 8 * State::kVector, valid);
      }
    }
  }
};

// This thread's share of the query rows; rows beyond the group's heads are zero.
template <uint32_t kRowHalves>
struct Query {
  const __nv_bfloat16* from;
  bool valid[kRowHalves];

  __device__ __forceinline__ Query(const Args& a, uint32_t seq, uint32_t kv_head) {
    const uint32_t heads = a.num_heads / a.num_kv_heads;
    const uint32_t row = threadIdx.x % 32 / 4;
    from = a.q + size_t{seq} * a.q_stride + (kv_head * heads + row) * a.head_dim + threadIdx.x % 4 * 8;
    for (uint32_t half = 0; half < kRowHalves; ++half) valid[half] = row + 8 * half < heads;
  }

  // Read anew for every KV block (from L1): registers are better spent on loads in flight.
  template <uint32_t kHeadDim>
  __device__ __forceinline__ uint4 load(uint32_t half, uint32_t segment) const {
    return valid[half] ? ptx::ld_in_place_v4(from + half * 8 * kHeadDim + segment * 32) : uint4{};
  }
};

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// scores[position half] = q * k^T: rows are heads, columns positions 2 * (lane % 4) + {0, 1} of a half.
template <uint32_t kHeadDim, uint32_t kRowHalves>
__device__ __forceinline__ void score_block(const Query<kRowHalves>& q,
                                            const BlockData<kHeadDim, kRowHalves>& data, float (&scores)[2][4]) {
#pragma unroll
  for (uint32_t s = 0; s < kHeadDim / 32; ++s) {
    const uint4 low = q.template load<kHeadDim>(0, s);
    const uint4 high = kRowHalves == 2 ? q.template load<kHeadDim>(kRowHalves - 1, s) : uint4{};
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint4 k = data.k[half][s];
      ptx::mma_m16n8k16(scores[half], low.x, high.x, low.y, high.y, k.x, k.y);
      ptx::mma_m16n8k16(scores[half], low.z, high.z, low.w, high.w, k.z, k.w);
    }
  }
}

template <uint32_t kHeadDim, uint32_t kRowHalves>
__device__ __forceinline__ void add_block(WarpState<kHeadDim, kRowHalves>& state, float (&scores)[2][4],
                                          const BlockData<kHeadDim, kRowHalves>& data, float scale_log2,
                                          const Step& step) {
  using State = WarpState<kHeadDim, kRowHalves>;
  const uint32_t member = threadIdx.x % 4;
  uint32_t p[2][2] = {};
#pragma unroll
  for (uint32_t r = 0; r < kRowHalves; ++r) {
    float s[2][2];
    float block_max = -INFINITY;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t position = 8 * half + 2 * member + i;
        s[half][i] = position >= step.begin && position < step.end ? scores[half][2 * r + i] * scale_log2 : -INFINITY;
        block_max = fmaxf(block_max, s[half][i]);
      }
    }
    block_max = fmaxf(block_max, __shfl_xor_sync(0xFFFFFFFF, block_max, 1));
    block_max = fmaxf(block_max, __shfl_xor_sync(0xFFFFFFFF, block_max, 2));
    // A block holds at least one valid position, so the new maximum is finite.
    const float new_max = fmaxf(state.max[r], block_max);
    const float shrink = exp2f(state.max[r] - new_max);
    state.max[r] = new_max;
    float added = 0.0f;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const float e0 = exp2f(s[half][0] - new_max);
      const float e1 = exp2f(s[half][1] - new_max);
      added += e0 + e1;
      p[half][r] = pack(e0, e1);
    }
    state.sum[r] = state.sum[r] * shrink + added;
#pragma unroll
    for (uint32_t slice = 0; slice < State::kSlices; ++slice) {
#pragma unroll
      for (uint32_t j = 0; j < State::kVector; ++j) {
        state.out[slice][j][2 * r] *= shrink;
        state.out[slice][j][2 * r + 1] *= shrink;
      }
    }
  }
#pragma unroll
  for (uint32_t slice = 0; slice < State::kSlices; ++slice) {
#pragma unroll
    for (uint32_t j = 0; j < State::kVector; ++j) {
      // Dim j of this thread's vector, of two neighbouring positions.
      const uint32_t select = j % 2 == 0 ? 0x5410 : 0x7632;
      const uint32_t b0 = __byte_perm(data.v[0][slice].w[j / 2], data.v[1][slice].w[j / 2], select);
      const uint32_t b1 = __byte_perm(data.v[2][slice].w[j / 2], data.v[3][slice].w[j / 2], select);
      float d[4] = {};
#pragma unroll
      for (uint32_t i = 0; i < 2 * kRowHalves; ++i) d[i] = state.out[slice][j][i];
      ptx::mma_m16n8k16(d, p[0][0], p[0][1], p[1][0], p[1][1], b0, b1);
#pragma unroll
      for (uint32_t i = 0; i < 2 * kRowHalves; ++i) state.out[slice][j][i] = d[i];
    }
  }
}

// Softmax parts of 4 dims of one head, joined by the rule that any two parts follow.
struct Part {
  float max = -INFINITY;
  float sum = 0.0f;
  float4 out = {};

  __device__ __forceinline__ void add(float other_max, float other_sum, float4 other) {
    if (other_max == -INFINITY) return;
    const float new_max = fmaxf(max, other_max);
    const float mine = exp2f(max - new_max);
    const float theirs = exp2f(other_max - new_max);
    max = new_max;
    sum = sum * mine + other_sum * theirs;
    out.x = out.x * mine + other.x * theirs;
    out.y = out.y * mine + other.y * theirs;
    out.z = out.z * mine + other.z * theirs;
    out.w = out.w * mine + other.w * theirs;
  }
};

// A part of (chunk of the list, head): head_dim products, then maximum and sum.
__device__ __forceinline__ float* partial_of(const Args& a, uint32_t chunk, uint32_t head) {
  return a.partials + (size_t{chunk} * a.num_heads + head) * (a.head_dim + 4);
}

// Writes a finished item: to out if it is all of its sequence, else as a part.
template <uint32_t kHeadDim, uint32_t kRowHalves>
__device__ __forceinline__ void write_item(const Args& a, const Item& item,
                                           const WarpState<kHeadDim, kRowHalves>& state) {
  using State = WarpState<kHeadDim, kRowHalves>;
  const uint32_t heads = a.num_heads / a.num_kv_heads;
  const uint32_t member = threadIdx.x % 4;
#pragma unroll
  for (uint32_t r = 0; r < kRowHalves; ++r) {
    const uint32_t row = threadIdx.x % 32 / 4 + 8 * r;
    float sum = state.sum[r];
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    if (row >= heads) continue;
    const uint32_t head = item.kv_head * heads + row;
    __nv_bfloat16* out = a.out + size_t{item.seq} * a.out_stride + head * kHeadDim;
    float* part = partial_of(a, item.chunk, head);
    if (item.num_chunks > 1 && member == 0) {
      __stcg(reinterpret_cast<float2*>(part + kHeadDim), make_float2(state.max[r], sum));
    }
    const float inverse = 1.0f / sum;
#pragma unroll
    for (uint32_t slice = 0; slice < State::kSlices; ++slice) {
#pragma unroll
      for (uint32_t column = 0; column < 2; ++column) {
        const uint32_t dim = (slice * 8 + 2 * member + column) * State::kVector;
#pragma unroll
        for (uint32_t j = 0; j < State::kVector; j += 4) {
          const float4 v = {state.out[slice][j][2 * r + column], state.out[slice][j + 1][2 * r + column],
                            state.out[slice][j + 2][2 * r + column], state.out[slice][j + 3][2 * r + column]};
          if (item.num_chunks > 1) {
            __stcg(reinterpret_cast<float4*>(part + dim + j), v);
          } else {
            *reinterpret_cast<uint2*>(out + dim + j) = {pack(v.x * inverse, v.y * inverse),
                                                        pack(v.z * inverse, v.w * inverse)};
          }
        }
      }
    }
  }
}

// Blocks an SM: as many as registers allow for the larger of the two states.
constexpr uint32_t blocks_per_sm(uint32_t row_halves) { return row_halves == 1 ? 3 : 2; }

template <uint32_t kHeadDim, uint32_t kRowHalves>
__global__ void __launch_bounds__(kThreads, blocks_per_sm(kRowHalves)) attend(const Args a) {
  __shared__ uint32_t first_chunk[kMaxSeqs + 1];
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  list_chunks(a, first_chunk);
  const uint32_t num_items = first_chunk[a.num_seqs] * a.num_kv_heads;
  const float scale_log2 = a.scale * kLog2E;

  Walk walk(a, first_chunk, num_items);
  BlockData<kHeadDim, kRowHalves> data;
  Step loading = walk.next();
  data.load_k(a, loading);
  data.load_v(a, loading);
  Step ahead = walk.next();
  for (uint32_t index = first_item(); index < num_items; index += kWarps * gridDim.x) {
    const Item item = Item::at(a, first_chunk, index);
    const Query<kRowHalves> q(a, item.seq, item.kv_head);
    WarpState<kHeadDim, kRowHalves> state;
    state.reset();
    for (uint32_t position = item.begin; position < item.end; position += kBlockSize) {
      const Step step = loading;
      float scores[2][4] = {};
      score_block<kHeadDim, kRowHalves>(q, data, scores);
      loading = ahead;
      data.load_k(a, loading);
      ahead = walk.next();
      add_block<kHeadDim, kRowHalves>(state, scores, data, scale_log2, step);
      data.load_v(a, loading);
    }
    write_item<kHeadDim, kRowHalves>(a, item, state);
  }
}

// Joins the chunks of one head of one sequence. A warp takes every fourth chunk, all of them in flight
// at once, a lane 4 dims; then warps are joined through shared memory, in order.
__global__ void __launch_bounds__(kThreads) join(const Args a) {
  __shared__ uint32_t first_chunk[kMaxSeqs + 1];
  __shared__ float2 scalars[kWarps];
  __shared__ float4 products[kWarps][32];
  const uint32_t head = blockIdx.x;
  const uint32_t seq = blockIdx.y;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32;
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  list_chunks(a, first_chunk);
  const uint32_t num_chunks = first_chunk[seq + 1] - first_chunk[seq];
  if (num_chunks <= 1) return;

  const uint32_t dim = min(lane * 4, a.head_dim - 4);
  float2 scalar[kMaxChunks / kWarps];
  float4 product[kMaxChunks / kWarps];
#pragma unroll
  for (uint32_t i = 0; i < kMaxChunks / kWarps; ++i) {
    const uint32_t chunk = i * kWarps + warp;
    const float* from = partial_of(a, first_chunk[seq] + min(chunk, num_chunks - 1), head);
    scalar[i] = __ldcg(reinterpret_cast<const float2*>(from + a.head_dim));
    product[i] = __ldcg(reinterpret_cast<const float4*>(from + dim));
    if (chunk >= num_chunks) scalar[i].x = -INFINITY;
  }
  Part part;
#pragma unroll
  for (uint32_t i = 0; i < kMaxChunks / kWarps; ++i) part.add(scalar[i].x, scalar[i].y, product[i]);
  products[warp][lane] = part.out;
  if (lane == 0) scalars[warp] = {part.max, part.sum};
  __syncthreads();
  if (warp != 0 || lane * 4 >= a.head_dim) return;
  Part whole;
  for (uint32_t w = 0; w < kWarps; ++w) whole.add(scalars[w].x, scalars[w].y, products[w][lane]);
  const float inverse = 1.0f / whole.sum;
  __nv_bfloat16* to = a.out + size_t{seq} * a.out_stride + head * a.head_dim + dim;
  *reinterpret_cast<uint2*>(to) = {pack(whole.out.x * inverse, whole.out.y * inverse),
                                   pack(whole.out.z * inverse, whole.out.w * inverse)};
}

cudaError_t launch(void (*kernel)(Args), dim3 grid, const Args& a, cudaStream_t stream) {
  cudaLaunchAttribute serialisation;
  serialisation.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  serialisation.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = kThreads;
  config.stream = stream;
  config.attrs = &serialisation;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, a);
}

template <uint32_t kHeadDim, uint32_t kRowHalves>
cudaError_t launch_both(const Args& a, cudaStream_t stream) {
  const dim3 grid(a.num_sms * blocks_per_sm(kRowHalves));
  const cudaError_t error = launch(attend<kHeadDim, kRowHalves>, grid, a, stream);
  if (error != cudaSuccess) return error;
  // No sequence of the table's length has more than one chunk: nothing to join.
  if (a.max_blocks_per_seq * kBlockSize <= kMinChunk) return cudaSuccess;
  return launch(join, dim3(a.num_heads, a.num_seqs), a, stream);
}

template <uint32_t kHeadDim>
cudaError_t launch_for_heads(const Args& a, cudaStream_t stream) {
  return a.num_heads / a.num_kv_heads <= 8 ? launch_both<kHeadDim, 1>(a, stream) : launch_both<kHeadDim, 2>(a, stream);
}

}  // namespace

extern "C" int32_t izar_paged_decode_attention(const IzarPagedDecodeAttentionArgs* args, cudaStream_t stream) {
  switch (args->head_dim) {
    case 64: return launch_for_heads<64>(*args, stream);
    case 96: return launch_for_heads<96>(*args, stream);
    case 128: return launch_for_heads<128>(*args, stream);
    default: return cudaErrorInvalidValue;
  }
}
