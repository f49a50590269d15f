// Device code of paged_prefill_attention; paged_prefill_attention.cu says what it computes.
//
// A tile is up to 128 query rows of one entry and one kv head: 128 / group tokens, the heads of the group
// for each. It walks the keys it can see in steps of 128 positions that start at multiples of 128, so a
// token's result depends on its position and its cache alone: not on how its prompt was cut, not on who
// shares its step. What a row cannot see adds exact zeros.
//
// One block an SM takes tiles in turn, long ones first. Warps 4 to 11 multiply, 64 rows a warpgroup: the
// scores of the next step are computed while this step's softmax is multiplied with its values. Warp 0
// brings queries, keys and values by bulk copies, a KV block and 64 dims each; it alone knows of paging.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/block_scan.cuh"
#include "../ptx/grid.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/warpgroup.cuh"
#include "../ptx/wgmma.cuh"

namespace izar::paged_prefill_attention {

constexpr uint32_t kBlockSize = 16;
constexpr uint32_t kRows = 128;  // query rows of a tile
constexpr uint32_t kKeys = 128;  // positions of a step
constexpr uint32_t kBlocks = kKeys / kBlockSize;
constexpr uint32_t kPanelDims = 64;  // one 128-byte swizzled row
constexpr uint32_t kPanelBytes = kKeys * kPanelDims * 2;
constexpr uint32_t kMaxEntries = 1024;
constexpr uint32_t kConsumerWarps = 8;
constexpr uint32_t kThreads = 128 + kConsumerWarps * 32;
constexpr uint32_t kSwizzleBytes = 1024;

struct Params {
  const uint32_t* block_tables;
  const uint32_t* query_starts;
  const uint32_t* query_lens;
  const uint32_t* seq_lens;
  const uint32_t* first_entry;
  const uint32_t* end_entry;
  __nv_bfloat16* out;
  uint32_t num_tokens;
  uint32_t max_entries;
  uint32_t num_kv_heads;
  uint32_t group;            // query heads a kv head
  uint32_t tokens_per_tile;  // kRows / group
  uint32_t max_blocks_per_seq;
  uint32_t cache_tokens;  // positions of the whole cache: the first that lies outside
  uint32_t out_stride;
  uint32_t window;  // 0: none
  float scale_log2;
};

template <uint32_t kHeadDim_>
struct Config {
  static constexpr uint32_t kHeadDim = kHeadDim_;
  static constexpr uint32_t kPanels = (kHeadDim + kPanelDims - 1) / kPanelDims;
  static constexpr uint32_t kStages = kPanels == 1 ? 4 : 2;
  static constexpr uint32_t kOperandBytes = kPanels * kPanelBytes;  // queries, keys or values of a step
  static constexpr uint32_t kSharedBytes = (1 + 2 * kStages) * kOperandBytes + kSwizzleBytes;
};

// An entry as this step sees it, clipped to what its tables hold.
struct Entry {
  uint32_t token;     // its first row of q
  uint32_t num_tokens;
  uint32_t seq_len;

  __device__ static Entry at(const Params& p, uint32_t entry) {
    Entry e;
    e.token = p.query_starts[entry];
    e.seq_len = min(p.seq_lens[entry], p.max_blocks_per_seq * kBlockSize);
    const uint32_t room = p.num_tokens - min(e.token, p.num_tokens);
    e.num_tokens = min(min(p.query_lens[entry], e.seq_len), room);
    return e;
  }
};

// The tiles of all entries of this step, in shared memory.
struct TileList {
  uint32_t first_entry;
  uint32_t num_entries;
  uint32_t first_tile[kMaxEntries + 1];

  __device__ void build(const Params& p) {
    const uint32_t end = min(*p.end_entry, p.max_entries);
    const uint32_t begin = min(*p.first_entry, end);
    exclusive_sums<kThreads>(end - begin, first_tile, [&](uint32_t i) {
      return (Entry::at(p, begin + i).num_tokens + p.tokens_per_tile - 1) / p.tokens_per_tile;
    });
    if (threadIdx.x == 0) {
      first_entry = begin;
      num_entries = end - begin;
    }
    __syncthreads();
  }

  __device__ uint32_t size() const { return first_tile[num_entries]; }
};

struct Tile {
  uint32_t entry;
  uint32_t kv_head;
  uint32_t token;       // first row of q
  uint32_t num_tokens;  // real ones
  uint32_t position;    // of the first
  uint32_t seq_len;
  uint32_t first_step;
  uint32_t end_step;

  // Long tiles first: entries and their tokens from the last to the first.
  __device__ static Tile at(const Params& p, const TileList& list, uint32_t index) {
    Tile t;
    t.kv_head = index % p.num_kv_heads;
    const uint32_t tile = list.size() - 1 - index / p.num_kv_heads;
    const uint32_t owner = owner_of(list.first_tile, list.num_entries, tile);
    t.entry = list.first_entry + owner;
    const Entry e = Entry::at(p, t.entry);
    const uint32_t skipped = (tile - list.first_tile[owner]) * p.tokens_per_tile;
    t.token = e.token + skipped;
    t.num_tokens = min(e.num_tokens - skipped, p.tokens_per_tile);
    t.position = e.seq_len - e.num_tokens + skipped;
    t.seq_len = e.seq_len;
    const uint32_t seen_from = p.window != 0 && t.position + 1 > p.window ? t.position + 1 - p.window : 0;
    t.first_step = seen_from / kKeys;
    t.end_step = (t.position + t.num_tokens + kKeys - 1) / kKeys;
    return t;
  }

  // Whether some row does not see some position of the step.
  __device__ bool needs_mask(const Params& p, uint32_t step) const {
    return (step + 1) * kKeys > position + 1 ||
           (p.window != 0 && step * kKeys + p.window < position + num_tokens);
  }
};

// A block's turns: every other round runs backwards, so that no block always gets the longest.
struct Turns {
  uint32_t round = 0;

  __device__ __forceinline__ uint32_t next() {
    const uint32_t place = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    return round++ * gridDim.x + place;
  }
};

template <uint32_t kStages>
struct Cursor {
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class C>
struct Shared {
  TileList tiles;
  uint64_t q_full;
  uint64_t q_empty;
  uint64_t patched;  // a copy that the producer itself waits for
  uint64_t k_full[C::kStages];
  uint64_t k_empty[C::kStages];
  uint64_t v_full[C::kStages];
  uint64_t v_empty[C::kStages];

  __device__ void init() {
    ptx::mbarrier_init(&q_full, 1);
    ptx::mbarrier_init(&q_empty, kConsumerWarps);
    ptx::mbarrier_init(&patched, 1);
    for (uint32_t i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(&k_full[i], 1);
      ptx::mbarrier_init(&k_empty[i], kConsumerWarps);
      ptx::mbarrier_init(&v_full[i], 1);
      ptx::mbarrier_init(&v_empty[i], kConsumerWarps);
    }
    ptx::fence_mbarrier_init();
  }
};

// Operands of 128 swizzled rows in panels of 64 dims.
template <class C>
struct Operands {
  uint8_t* base;

  __device__ __forceinline__ uint8_t* q() const { return base; }
  __device__ __forceinline__ uint8_t* k(uint32_t stage) const { return base + (1 + stage) * C::kOperandBytes; }
  __device__ __forceinline__ uint8_t* v(uint32_t stage) const {
    return base + (1 + C::kStages + stage) * C::kOperandBytes;
  }
};

// Warp 0. Of a step each lane copies one KV block's rows of one panel.
template <class C>
struct Producer {
  const Params& p;
  const CUtensorMap* q_map;
  const CUtensorMap* k_map;
  const CUtensorMap* v_map;
  Operands<C> data;
  Shared<C>& shared;
  // The first round finds every stage empty: a barrier's previous phase counts as complete.
  Cursor<C::kStages> k_cursor{0, 1};
  Cursor<C::kStages> v_cursor{0, 1};
  uint32_t q_parity = 1;
  uint32_t patch_parity = 0;

  __device__ __forceinline__ static uint32_t lane() { return threadIdx.x % 32; }

  // Position in the cache of this lane's block; past the sequence one outside the cache, which reads as zero.
  __device__ __forceinline__ uint32_t cache_position(const Tile& t, uint32_t step) const {
    const uint32_t block = step * kBlocks + lane() % kBlocks;
    if (block * kBlockSize >= t.seq_len) return p.cache_tokens;
    return p.block_tables[size_t{t.entry} * p.max_blocks_per_seq + block] * kBlockSize;
  }

  __device__ __forceinline__ void copy(const CUtensorMap* map, uint8_t* to, uint64_t* full, const Tile& t,
                                       uint32_t position) const {
    if (lane() == 0) ptx::mbarrier_arrive_expect_tx(full, C::kOperandBytes);
    __syncwarp();
    if (lane() >= kBlocks * C::kPanels) return;
    const uint32_t panel = lane() / kBlocks;
    const uint32_t offset = panel * kPanelBytes + lane() % kBlocks * (kPanelBytes / kBlocks);
    ptx::tma_load_3d(to + offset, map, full, ptx::kEvictNormal, panel * kPanelDims, t.kv_head, position);
  }

  __device__ __forceinline__ void load_q(const Tile& t) {
    ptx::mbarrier_wait(&shared.q_empty, q_parity);
    q_parity ^= 1;
    if (lane() == 0) {
      const uint32_t rows = p.tokens_per_tile * p.group;
      ptx::mbarrier_arrive_expect_tx(&shared.q_full, C::kPanels * rows * kPanelDims * 2);
      for (uint32_t panel = 0; panel < C::kPanels; ++panel) {
        ptx::tma_load_3d(data.q() + panel * kPanelBytes, q_map, &shared.q_full, ptx::kEvictFirst, panel * kPanelDims,
                         t.kv_head * p.group, t.token);
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void load_k(const Tile& t, uint32_t position) {
    ptx::mbarrier_wait(&shared.k_empty[k_cursor.stage], k_cursor.parity);
    copy(k_map, data.k(k_cursor.stage), &shared.k_full[k_cursor.stage], t, position);
    k_cursor.advance();
  }

  __device__ __forceinline__ void load_v(const Tile& t, uint32_t step, uint32_t position) {
    const uint32_t stage = v_cursor.stage;
    uint64_t* full = &shared.v_full[stage];
    ptx::mbarrier_wait(&shared.v_empty[stage], v_cursor.parity);
    v_cursor.advance();
    if (t.seq_len % kBlockSize == 0 || t.seq_len / kKeys != step) {
      copy(v_map, data.v(stage), full, t, position);
      return;
    }
    // Positions of the last block past the sequence hold anything, NaN too, which a weight of 0 would not
    // silence: they become zeros before the consumers see them.
    copy(v_map, data.v(stage), &shared.patched, t, position);
    ptx::mbarrier_wait(&shared.patched, patch_parity);
    patch_parity ^= 1;
    const uint32_t block = t.seq_len / kBlockSize % kBlocks;
    const uint32_t begin = t.seq_len % kBlockSize * 8;  // in 16-byte words
    for (uint32_t panel = 0; panel < C::kPanels; ++panel) {
      uint4* words = reinterpret_cast<uint4*>(data.v(stage) + panel * kPanelBytes) + block * kBlockSize * 8;
      for (uint32_t i = begin + lane(); i < kBlockSize * 8; i += 32) words[i] = uint4{};
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(full);
  }

  __device__ __forceinline__ void run() {
    const uint32_t num_tiles = shared.tiles.size() * p.num_kv_heads;
    Turns turns;
    for (uint32_t index = turns.next(); index < num_tiles; index = turns.next()) {
      const Tile t = Tile::at(p, shared.tiles, index);
      uint32_t position = cache_position(t, t.first_step);
      load_q(t);
      load_k(t, position);
      for (uint32_t step = t.first_step + 1; step < t.end_step; ++step) {
        const uint32_t next = cache_position(t, step);
        load_k(t, next);
        load_v(t, step - 1, position);
        position = next;
      }
      load_v(t, t.end_step - 1, position);
    }
  }
};

// Warps 4 to 11, a warpgroup for 64 rows. A thread's products are of rows lane / 4 and + 8 of its warp's
// 16, of every 8 columns 2 * (lane % 4) and the next.
template <class C>
struct Consumer {
  using Scores = float[kKeys / 2];
  using Weights = uint32_t[kKeys / 16][4];
  using Output = float[C::kHeadDim / 2];

  const Params& p;
  Operands<C> data;
  Shared<C>& shared;
  Cursor<C::kStages> k_cursor = {};
  Cursor<C::kStages> v_cursor = {};
  uint32_t q_parity = 0;
  float max[2];
  float sum[2];

  __device__ __forceinline__ static uint32_t lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ static uint32_t warpgroup() { return threadIdx.x / 128 - 1; }
  __device__ __forceinline__ static uint32_t row(uint32_t r) {
    return (threadIdx.x / 32 - 4) * 16 + lane() / 4 + 8 * r;
  }

  __device__ __forceinline__ static void release(uint64_t* empty) {
    if (lane() == 0) ptx::mbarrier_arrive(empty);
  }

  // Issues scores = queries * keys^T of the stage at the cursor.
  __device__ __forceinline__ void issue_scores(Scores& scores) const {
    ptx::mbarrier_wait(&shared.k_full[k_cursor.stage], k_cursor.parity);
    const uint64_t a = ptx::wgmma_descriptor(data.q() + warpgroup() * 64 * kPanelDims * 2);
    const uint64_t b = ptx::wgmma_descriptor(data.k(k_cursor.stage));
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < C::kHeadDim / 16; ++k) {
      const uint32_t at = k / 4 * (kPanelBytes / 16) + k % 4 * 2;
      if (k == 0) {
        ptx::wgmma_m64n128k16<0>(scores, a, b);
      } else {
        ptx::wgmma_m64n128k16<1>(scores, a + at, b + at);
      }
    }
    ptx::wgmma_commit();
  }

  // Issues out += weights * values of the stage at the cursor.
  __device__ __forceinline__ void issue_output(Output& out, const Weights& weights) const {
    ptx::mbarrier_wait(&shared.v_full[v_cursor.stage], v_cursor.parity);
    const uint64_t b = ptx::wgmma_descriptor_transposed(data.v(v_cursor.stage), kPanelBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < kKeys / 16; ++k) {
      ptx::wgmma_m64k16_registers<C::kHeadDim>(out, weights[k], b + k * (16 * kPanelDims * 2 / 16));
    }
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void finish_scores(Scores& scores) {
#pragma unroll
    for (float& score : scores) ptx::wgmma_fence_operand(score);
    release(&shared.k_empty[k_cursor.stage]);
    k_cursor.advance();
  }

  __device__ __forceinline__ void finish_output(Output& out, Weights& weights) {
#pragma unroll
    for (float& value : out) ptx::wgmma_fence_operand(value);
#pragma unroll
    for (auto& word : weights) {
#pragma unroll
      for (uint32_t& pair : word) asm volatile("" : "+r"(pair)::"memory");
    }
    release(&shared.v_empty[v_cursor.stage]);
    v_cursor.advance();
  }

  __device__ __forceinline__ void mask(Scores& scores, const Tile& t, uint32_t step) const {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t position = t.position + row(r) / p.group;
      const uint32_t begin = p.window != 0 && position + 1 > p.window ? position + 1 - p.window : 0;
      const uint32_t column = step * kKeys + 2 * (lane() % 4);
#pragma unroll
      for (uint32_t j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          const uint32_t at = column + 8 * j + i;
          if (at > position || at < begin) scores[4 * j + 2 * r + i] = -INFINITY;
        }
      }
    }
  }

  // Turns scores into unnormalised weights; shrink is what the output so far must be multiplied by.
  __device__ __forceinline__ void softmax(Scores& scores, const Tile& t, uint32_t step, float (&shrink)[2]) {
    if (t.needs_mask(p, step)) mask(scores, t, step);
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      float highest = max[r];
#pragma unroll
      for (uint32_t j = 0; j < kKeys / 8; ++j) {
        highest = fmaxf(highest, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 2));
      // A row that has seen nothing yet keeps weights of exactly zero.
      const float base = highest == -INFINITY ? 0.0f : highest * p.scale_log2;
      shrink[r] = ptx::ex2(max[r] * p.scale_log2 - base);
      max[r] = highest;
      float added = 0.0f;
#pragma unroll
      for (uint32_t j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          float& score = scores[4 * j + 2 * r + i];
          score = ptx::ex2(fmaf(score, p.scale_log2, -base));
          added += score;
        }
      }
      sum[r] = sum[r] * shrink[r] + added;
    }
  }

  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }

  // A product's columns are laid out as the left operand of the next one's are.
  __device__ __forceinline__ static void pack_weights(Weights& weights, const Scores& scores) {
#pragma unroll
    for (uint32_t k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) weights[k][i] = pack(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
    }
  }

  __device__ __forceinline__ static void multiply_rows(Output& out, const float (&shrink)[2]) {
#pragma unroll
    for (uint32_t j = 0; j < C::kHeadDim / 8; ++j) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) out[4 * j + i] *= shrink[i / 2];
    }
  }

  // Transposes the 4 x 4 words that 4 neighbouring lanes hold, a row each.
  __device__ __forceinline__ static void transpose_in_quad(uint32_t (&w)[4]) {
#pragma unroll
    for (uint32_t distance = 1; distance <= 2; distance *= 2) {
      const bool is_upper = lane() & distance;
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        if (i & distance) continue;
        const uint32_t kept = is_upper ? w[i + distance] : w[i];
        const uint32_t given = is_upper ? w[i] : w[i + distance];
        const uint32_t taken = __shfl_xor_sync(0xFFFFFFFF, given, distance);
        w[i] = is_upper ? taken : kept;
        w[i + distance] = is_upper ? kept : taken;
      }
    }
  }

  // Of every 32 dims a lane writes the 8 that its place in the quad names.
  __device__ __forceinline__ void write(const Tile& t, const Output& out) const {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      float total = sum[r];
      total += __shfl_xor_sync(0xFFFFFFFF, total, 1);
      total += __shfl_xor_sync(0xFFFFFFFF, total, 2);
      const float inverse = 1.0f / total;
      const uint32_t token = row(r) / p.group;
      const uint32_t head = t.kv_head * p.group + row(r) % p.group;
      __nv_bfloat16* to = p.out + size_t{t.token + token} * p.out_stride + head * C::kHeadDim + 8 * (lane() % 4);
#pragma unroll
      for (uint32_t j = 0; j < C::kHeadDim / 8; j += 4) {
        uint32_t words[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          words[i] = pack(out[4 * (j + i) + 2 * r] * inverse, out[4 * (j + i) + 2 * r + 1] * inverse);
        }
        transpose_in_quad(words);
        if (token < t.num_tokens) *reinterpret_cast<uint4*>(to + 8 * j) = {words[0], words[1], words[2], words[3]};
      }
    }
  }

  __device__ __forceinline__ void attend(const Tile& t) {
    Scores scores;
    Weights weights;
    Output out;
    float shrink[2];
#pragma unroll
    for (float& value : out) value = 0.0f;
    for (uint32_t r = 0; r < 2; ++r) {
      max[r] = -INFINITY;
      sum[r] = 0.0f;
    }
    ptx::mbarrier_wait(&shared.q_full, q_parity);
    q_parity ^= 1;
    issue_scores(scores);
    ptx::wgmma_wait<0>();
    finish_scores(scores);
    softmax(scores, t, t.first_step, shrink);
    pack_weights(weights, scores);
    for (uint32_t step = t.first_step + 1; step < t.end_step; ++step) {
      issue_scores(scores);
      issue_output(out, weights);
      ptx::wgmma_wait<1>();
      finish_scores(scores);
      softmax(scores, t, step, shrink);
      ptx::wgmma_wait<0>();
      finish_output(out, weights);
      multiply_rows(out, shrink);
      pack_weights(weights, scores);
    }
    release(&shared.q_empty);
    issue_output(out, weights);
    ptx::wgmma_wait<0>();
    finish_output(out, weights);
    write(t, out);
  }

  __device__ __forceinline__ void run() {
    const uint32_t num_tiles = shared.tiles.size() * p.num_kv_heads;
    Turns turns;
    for (uint32_t index = turns.next(); index < num_tiles; index = turns.next()) {
      attend(Tile::at(p, shared.tiles, index));
    }
  }
};

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
           const __grid_constant__ CUtensorMap v_map, const __grid_constant__ Params p) {
  extern __shared__ uint8_t dynamic[];
  __shared__ Shared<C> shared;
  const Operands<C> data{dynamic + (kSwizzleBytes - ptx::shared_address(dynamic) % kSwizzleBytes) % kSwizzleBytes};
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&q_map);
    ptx::prefetch_tensor_map(&k_map);
    ptx::prefetch_tensor_map(&v_map);
    shared.init();
  }
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  shared.tiles.build(p);

  // The shuffle tells the compiler that a warp takes one branch, without which it serialises wgmma.
  const uint32_t warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  if (warp < 4) {
    ptx::give_registers<40>();
    if (warp == 0) Producer<C>{p, &q_map, &k_map, &v_map, data, shared}.run();
  } else {
    ptx::take_registers<232>();
    Consumer<C>{p, data, shared}.run();
  }
}

}  // namespace izar::paged_prefill_attention
