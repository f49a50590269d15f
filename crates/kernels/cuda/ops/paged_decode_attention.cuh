// Device code of paged_decode_attention; paged_decode_attention.cu says what it computes.
//
// An item is a chunk of one sequence for one kv head. A warp owns its items: it copies their keys and values
// into a ring of its own in shared memory, KV block by KV block, and multiplies as they land, so that warps
// never wait for each other. Chunks of a sequence are joined at the end, in order, by whichever warps are
// through, one for a query head.
//
// A sequence is cut by its own length alone, so its result does not depend on its batch.
//
// One block an SM, all resident. What was in the cache before this step does not depend on the kernel before,
// so rings are filled before that has finished where the caller says that it may be.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../ptx/grid.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/mma.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/warpgroup.cuh"
#include "paged_decode_attention_items.cuh"

namespace izar::paged_decode_attention {

// Units in order, keys and values of a KV block in turn: of one warp.
template <class C>
struct Ring {
  uint8_t* data;
  uint64_t* full;
  uint32_t depth;

  __device__ __forceinline__ static Ring of(const Share& share, uint32_t warp, uint8_t* data, uint64_t* full) {
    const uint32_t depth = C::kUnits / share.num_warps;
    const uint32_t first = warp < share.num_warps ? warp * depth : 0;
    return {data + first * C::kUnitBytes, full + first, depth};
  }
};

struct RingCursor {
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance(uint32_t depth) {
    if (++stage == depth) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Brings a warp's items into its ring, ahead of the arithmetic by as much as the ring holds.
template <class C>
class Loader {
 public:
  __device__ Loader(const Params& p, const List& list, const Share& share, uint32_t warp, const Ring<C>& ring,
                    const CUtensorMap* k_map, const CUtensorMap* v_map)
      : p_(p), list_(list), share_(share), ring_(ring), k_map_(k_map), v_map_(v_map) {
    index_ = share.first(warp);
    enter();
    look_ahead();
    current_ = next_;
    step();
  }

  __device__ __forceinline__ bool done() const { return !current_.is_there; }

  // Whether the next unit holds the position that this step has written.
  __device__ __forceinline__ bool at_last_block() const { return current_.is_last; }

  __device__ __forceinline__ bool has_room() const { return in_flight_ < ring_.depth; }

  // The arithmetic is through with the oldest unit.
  __device__ __forceinline__ void release() {
    --in_flight_;
    if (!done()) issue();
  }

  // Copies the next unit into the ring, which has room.
  __device__ __forceinline__ void issue() {
    if (threadIdx.x % 32 == 0) copy();
    ++in_flight_;
    stage_ = stage_ + 1 == ring_.depth ? 0 : stage_ + 1;
    if (is_values_) {
      current_ = next_;
      step();
    }
    is_values_ = !is_values_;
  }

  // From now on the queries of items to come are asked into L1.
  __device__ __forceinline__ void queries_are_there() { touches_queries_ = true; }

 private:
  struct Block {
    uint32_t id = 0;
    uint32_t kv_head;
    bool is_there;  // not past the last item
    bool is_last;
  };

  __device__ __forceinline__ void copy() const {
    uint64_t* full = ring_.full + stage_;
    uint8_t* to = ring_.data + stage_ * C::kUnitBytes;
    const CUtensorMap* map = is_values_ ? v_map_ : k_map_;
    const uint32_t position = current_.id * kBlockSize;
    ptx::mbarrier_arrive_expect_tx(full, C::kUnitBytes);
    if constexpr (C::kWholePanels) {
      ptx::tma_load_4d(to, map, full, ptx::kEvictFirst, 0, position, 0, current_.kv_head);
    } else {
#pragma unroll
      for (uint32_t panel = 0; panel < C::kPanels; ++panel) {
        ptx::tma_load_3d(to + panel * kPanelBytes, map, full, ptx::kEvictFirst, panel * kPanelDims, current_.kv_head,
                         position);
      }
    }
  }

  __device__ __forceinline__ void enter() {
    if (index_ >= share_.num_items) return;
    const Item item = Item::at(p_, list_, index_);
    block_ = item.begin;
    end_ = item.end;
    last_ = (item.seen_to - 1) / kBlockSize;
    kv_head_ = item.kv_head;
    table_ = p_.block_table + size_t{item.seq} * p_.max_blocks_per_seq;
    const uint32_t at = threadIdx.x % 32 * 64;  // an element of every 128 bytes
    if (touches_queries_ && at < p_.group * C::kHeadDim) ptx::prefetch_l1(item.queries(p_, C::kHeadDim) + at);
  }

  // next_ becomes the block at the walk's place. Its id is on its way: nothing here may wait for it.
  __device__ __forceinline__ void look_ahead() {
    next_.is_there = index_ < share_.num_items;
    next_.kv_head = kv_head_;
    next_.is_last = block_ == last_;
    ptx::ld_relaxed_gpu_if(next_.is_there, next_.id, table_ + block_);
  }

  // One block on.
  __device__ __forceinline__ void step() {
    if (index_ < share_.num_items && ++block_ == end_) {
      index_ += share_.stride();
      enter();
    }
    look_ahead();
  }

  const Params& p_;
  const List& list_;
  const Share& share_;
  const Ring<C>& ring_;
  const CUtensorMap* k_map_;
  const CUtensorMap* v_map_;
  // The walk is one block ahead of the copies.
  uint32_t index_;
  uint32_t block_ = 0;
  uint32_t end_ = 0;
  uint32_t last_ = 0;
  uint32_t kv_head_ = 0;
  const uint32_t* table_ = nullptr;
  Block current_;
  Block next_;
  uint32_t stage_ = 0;
  uint32_t in_flight_ = 0;
  bool is_values_ = false;
  bool touches_queries_ = false;
};

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The arithmetic of one item. Rows of the products are the query heads of one kv head; a thread has rows
// lane / 4 and + 8, of every 8 columns 2 * (lane % 4) and the next.
template <class C>
class Softmax {
 public:
  __device__ __forceinline__ Softmax(const Params& p, const Item& item) {
    const uint32_t row = lane() / 4;
    const __nv_bfloat16* from = item.queries(p, C::kHeadDim) + row * C::kHeadDim + 2 * (lane() % 4);
#pragma unroll
    for (uint32_t half = 0; half < C::kRowHalves; ++half) {
      const bool valid = row + 8 * half < p.group;
#pragma unroll
      for (uint32_t i = 0; i < C::kHeadDim / 8; ++i) {
        q_[half][i] = valid ? *reinterpret_cast<const uint32_t*>(from + half * 8 * C::kHeadDim + 8 * i) : 0;
      }
      max_[half] = -INFINITY;
      sum_[half] = 0.0f;
    }
#pragma unroll
    for (auto& tile : out_) {
#pragma unroll
      for (float& value : tile) value = 0.0f;
    }
  }

  // scores[position half] = q * keys^T.
  __device__ __forceinline__ void score(float (&scores)[2][4], const uint8_t* keys) const {
    // Matrices: positions 0-7 of two neighbouring 8-dim columns, then positions 8-15.
    const uint32_t position = lane() % 8 + lane() / 16 * 8;
    const uint32_t from = ptx::shared_address(keys) + position * 128 + (((lane() % 8) ^ (lane() / 8 % 2)) << 4);
    float sums[2][2][4] = {};  // two chains for each half: a product waits for the one before in its chain
#pragma unroll
    for (uint32_t k = 0; k < C::kHeadDim / 16; ++k) {
      uint32_t m[4];
      ptx::ldmatrix_x4(m, (from ^ ((k % 4) << 5)) + k / 4 * kPanelBytes);
      const uint32_t low0 = q_[0][2 * k], low1 = q_[0][2 * k + 1];
      const uint32_t high0 = C::kRowHalves == 2 ? q_[C::kRowHalves - 1][2 * k] : 0;
      const uint32_t high1 = C::kRowHalves == 2 ? q_[C::kRowHalves - 1][2 * k + 1] : 0;
      ptx::mma_m16n8k16(sums[k % 2][0], low0, high0, low1, high1, m[0], m[1]);
      ptx::mma_m16n8k16(sums[k % 2][1], low0, high0, low1, high1, m[2], m[3]);
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) scores[half][i] = sums[0][half][i] + sums[1][half][i];
    }
  }

  // Turns the scores of positions [begin, end) of a KV block into weights, and multiplies what is summed
  // so far by what the new maximum asks for.
  __device__ __forceinline__ void weigh(uint32_t (&weights)[2][2], const float (&scores)[2][4], float scale_log2,
                                        uint32_t begin, uint32_t end) {
    float shrink[C::kRowHalves];
    bool grew = false;
#pragma unroll
    for (uint32_t r = 0; r < C::kRowHalves; ++r) {
      float s[4];
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t position = 8 * (i / 2) + 2 * (lane() % 4) + i % 2;
        s[i] = position >= begin && position < end ? scores[i / 2][2 * r + i % 2] * scale_log2 : -INFINITY;
      }
      float highest = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 2));
      // A block holds at least one valid position, so the new maximum is finite.
      highest = fmaxf(highest, max_[r]);
      grew |= highest > max_[r];
      shrink[r] = ptx::ex2(max_[r] - highest);
      max_[r] = highest;
#pragma unroll
      for (float& value : s) value = ptx::ex2(value - highest);
      sum_[r] = sum_[r] * shrink[r] + ((s[0] + s[1]) + (s[2] + s[3]));
      weights[0][r] = pack(s[0], s[1]);
      weights[1][r] = pack(s[2], s[3]);
    }
    // Where no maximum grew every factor is exactly 1.
    if (!__any_sync(0xFFFFFFFF, grew)) return;
#pragma unroll
    for (auto& tile : out_) {
#pragma unroll
      for (uint32_t i = 0; i < 2 * C::kRowHalves; ++i) tile[i] *= shrink[i / 2];
    }
  }

  // out += weights * values. Values outside [begin, end) may be anything, NaN too, and count as zero.
  template <bool kPartial>
  __device__ __forceinline__ void add(const uint32_t (&weights)[2][2], const uint8_t* values, uint32_t begin,
                                      uint32_t end) {
    // Matrices: positions 0-7 and 8-15 of an 8-dim column, then of the next.
    const uint32_t position = lane() % 16;
    const uint32_t from = ptx::shared_address(values) + position * 128 + (((lane() % 8) ^ (lane() / 16)) << 4);
    const uint32_t keep[2] = {kept(0, begin, end), kept(8, begin, end)};
#pragma unroll
    for (uint32_t pair = 0; pair < C::kHeadDim / 16; ++pair) {
      uint32_t m[4];
      ptx::ldmatrix_x4_trans(m, (from ^ ((pair % 4) << 5)) + pair / 4 * kPanelBytes);
      if constexpr (kPartial) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) m[i] &= keep[i % 2];
      }
      multiply(out_[2 * pair], weights, m[0], m[1]);
      multiply(out_[2 * pair + 1], weights, m[2], m[3]);
    }
  }

  // Writes a finished item: to out if it is all of its sequence, else as a part.
  __device__ __forceinline__ void write(const Params& p, const Item& item) const {
#pragma unroll
    for (uint32_t r = 0; r < C::kRowHalves; ++r) {
      const uint32_t row = lane() / 4 + 8 * r;
      float sum = sum_[r];
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
      if (row >= p.group) continue;
      const uint32_t head = item.kv_head * p.group + row;
      const uint32_t column = 2 * (lane() % 4);
      if (item.num_chunks == 1) {
        __nv_bfloat16* to = p.out + size_t{item.seq} * p.out_stride + head * C::kHeadDim + column;
        const float inverse = 1.0f / sum;
#pragma unroll
        for (uint32_t i = 0; i < C::kHeadDim / 8; ++i) {
          *reinterpret_cast<uint32_t*>(to + 8 * i) = pack(out_[i][2 * r] * inverse, out_[i][2 * r + 1] * inverse);
        }
        continue;
      }
      float* part = p.partials + (size_t{item.chunk} * p.num_heads + head) * C::kPartFloats;
#pragma unroll
      for (uint32_t i = 0; i < C::kHeadDim / 8; ++i) {
        __stcg(reinterpret_cast<float2*>(part + column + 8 * i), make_float2(out_[i][2 * r], out_[i][2 * r + 1]));
      }
      if (lane() % 4 == 0) __stcg(reinterpret_cast<float2*>(part + C::kHeadDim), make_float2(max_[r], sum));
    }
  }

 private:
  __device__ __forceinline__ static uint32_t lane() { return threadIdx.x % 32; }

  // Of a pair of neighbouring positions from first + 2 * (lane % 4) on, the bits of those inside.
  __device__ __forceinline__ static uint32_t kept(uint32_t first, uint32_t begin, uint32_t end) {
    const uint32_t position = first + 2 * (lane() % 4);
    return (position >= begin && position < end ? 0xFFFFu : 0) |
           (position + 1 >= begin && position + 1 < end ? 0xFFFF0000u : 0);
  }

  __device__ __forceinline__ static void multiply(float (&out)[2 * C::kRowHalves], const uint32_t (&weights)[2][2],
                                                  uint32_t b0, uint32_t b1) {
    float d[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < 2 * C::kRowHalves; ++i) d[i] = out[i];
    const uint32_t high0 = C::kRowHalves == 2 ? weights[0][C::kRowHalves - 1] : 0;
    const uint32_t high1 = C::kRowHalves == 2 ? weights[1][C::kRowHalves - 1] : 0;
    ptx::mma_m16n8k16(d, weights[0][0], high0, weights[1][0], high1, b0, b1);
#pragma unroll
    for (uint32_t i = 0; i < 2 * C::kRowHalves; ++i) out[i] = d[i];
  }

  uint32_t q_[C::kRowHalves][C::kHeadDim / 8];
  float max_[C::kRowHalves];
  float sum_[C::kRowHalves];
  float out_[C::kHeadDim / 8][2 * C::kRowHalves];
};

// A warp's items, one after the other.
template <class C>
__device__ __forceinline__ void attend(const Params& p, const List& list, const Share& share, uint32_t warp,
                                       const Ring<C>& ring, Loader<C>& loader) {
  RingCursor cursor;
  for (uint32_t index = share.first(warp); index < share.num_items; index += share.stride()) {
    const Item item = Item::at(p, list, index);
    Softmax<C> softmax(p, item);
    for (uint32_t block = item.begin; block < item.end; ++block) {
      const uint32_t position = block * kBlockSize;
      const uint32_t begin = position < item.seen_from ? item.seen_from - position : 0;
      const uint32_t end = min(item.seen_to - position, kBlockSize);
      float scores[2][4];
      ptx::mbarrier_wait(ring.full + cursor.stage, cursor.parity);
      softmax.score(scores, ring.data + cursor.stage * C::kUnitBytes);
      __syncwarp();
      loader.release();
      cursor.advance(ring.depth);
      uint32_t weights[2][2] = {};
      softmax.weigh(weights, scores, p.scale_log2, begin, end);
      ptx::mbarrier_wait(ring.full + cursor.stage, cursor.parity);
      const uint8_t* values = ring.data + cursor.stage * C::kUnitBytes;
      if (begin == 0 && end == kBlockSize) {
        softmax.template add<false>(weights, values, begin, end);
      } else {
        softmax.template add<true>(weights, values, begin, end);
      }
      __syncwarp();
      loader.release();
      cursor.advance(ring.depth);
    }
    softmax.write(p, item);
  }
}

// Joins the chunks of one head of one sequence: lane i knows chunk i's maximum and sum, and sums 4 dims.
template <class C>
__device__ __forceinline__ void join(const Params& p, const List& list, const Share& share, uint32_t seq,
                                     uint32_t head, uint32_t launch) {
  constexpr uint32_t kInFlight = 8;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t first_chunk = list.first_chunk[seq];
  const uint32_t num_chunks = list.first_chunk[seq + 1] - first_chunk;
  if (num_chunks <= 1) return;
  const uint32_t own_chunk = min(lane, num_chunks - 1);
  const uint32_t item = (first_chunk + own_chunk) * p.num_kv_heads + head / p.group;
  const uint32_t* finished = p.finished + share.owner(item);
  // SYNC warp-finished: pairs with the release in kernel. Every lane waits for its own chunk's warp, and the
  // vote passes what that makes visible on to all lanes. All those warps are resident.
  for (uint32_t polls = 0; !__all_sync(0xFFFFFFFF, ptx::ld_acquire_gpu(finished) == launch); ++polls) {
    if (polls == kMaxPolls) {
      if (lane == 0) ptx::st_relaxed_sys(p.error, kErrorPartAbsent);
      return;
    }
  }
  const size_t stride = size_t{p.num_heads} * C::kPartFloats;
  const float* parts = p.partials + (size_t{first_chunk} * p.num_heads + head) * C::kPartFloats;
  const uint32_t dim = min(lane * 4, C::kHeadDim - 4);
  float2 own = __ldcg(reinterpret_cast<const float2*>(parts + own_chunk * stride + C::kHeadDim));
  if (lane >= num_chunks) own = {-INFINITY, 0.0f};
  float highest = own.x;
  for (uint32_t offset = 16; offset > 0; offset /= 2) {
    highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, offset));
  }
  const float weight = ptx::ex2(own.x - highest);
  float sum = own.y * weight;
  for (uint32_t offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, offset);
  float4 out = {};
  for (uint32_t base = 0; base < num_chunks; base += kInFlight) {
    float4 part[kInFlight];
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
      part[i] = __ldcg(reinterpret_cast<const float4*>(parts + min(base + i, num_chunks - 1) * stride + dim));
    }
#pragma unroll
    for (uint32_t i = 0; i < kInFlight; ++i) {
      const float w = __shfl_sync(0xFFFFFFFF, weight, base + i);  // 0 past the last chunk
      out.x = fmaf(part[i].x, w, out.x);
      out.y = fmaf(part[i].y, w, out.y);
      out.z = fmaf(part[i].z, w, out.z);
      out.w = fmaf(part[i].w, w, out.w);
    }
  }
  if (lane * 4 >= C::kHeadDim) return;
  const float inverse = 1.0f / sum;
  __nv_bfloat16* to = p.out + size_t{seq} * p.out_stride + head * C::kHeadDim + dim;
  *reinterpret_cast<uint2*>(to) = {pack(out.x * inverse, out.y * inverse), pack(out.z * inverse, out.w * inverse)};
}

template <class C>
struct Shared {
  List list;
  uint64_t full[C::kUnits];
};

template <class C>
__global__ void __maxnreg__(C::kMaxRegisters)
    kernel(const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map,
           const __grid_constant__ Params p) {
  extern __shared__ uint8_t dynamic[];
  __shared__ Shared<C> shared;
  uint8_t* data = dynamic + (kSwizzleBytes - ptx::shared_address(dynamic) % kSwizzleBytes) % kSwizzleBytes;
  if (threadIdx.x < C::kUnits) {
    ptx::mbarrier_init(&shared.full[threadIdx.x], 1);
    ptx::fence_mbarrier_init();
  }
  ptx::launch_dependents();
  if (!p.reads_early) ptx::wait_for_previous_kernel();
  shared.list.build(p);

  const Share share = Share::of(p, shared.list);
  const uint32_t warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  const Ring<C> ring = Ring<C>::of(share, warp, data, shared.full);
  Loader<C> loader(p, shared.list, share, warp, ring, &k_map, &v_map);
  while (!loader.done() && loader.has_room() && !loader.at_last_block()) loader.issue();
  ptx::wait_for_previous_kernel();
  loader.queries_are_there();
  while (!loader.done() && loader.has_room()) loader.issue();
  uint32_t* finished = p.finished + blockIdx.x + warp * gridDim.x;
  const uint32_t launches = ptx::ld_relaxed_gpu(finished);
  attend<C>(p, shared.list, share, warp, ring, loader);
  __syncwarp();
  // SYNC warp-finished: pairs with the acquire loads in join. Scope gpu: the joining warps are on other SMs.
  // The barrier before makes the other lanes' parts this lane's to release.
  if (threadIdx.x % 32 == 0) ptx::st_release_gpu(finished, launches + 1);

  // Warps without items come first: they are free while the others work.
  const uint32_t num_joins = p.num_seqs * p.num_heads;
  for (uint32_t i = blockIdx.x + (kWarps - 1 - warp) * gridDim.x; i < num_joins; i += kWarps * gridDim.x) {
    join<C>(p, shared.list, share, i / p.num_heads, i % p.num_heads, launches + 1);
  }
}

}  // namespace izar::paged_decode_attention
