// Device code of expert_projection; expert_projection.cu says what it computes.
//
// Built like decode_projection: weights stream through shared memory in units of 64 rows by 64 of the depth, 8 KB each. A
// tile is 64 weight rows of a group's expert over the whole depth, times the group's columns of x. A tile is cut into
// pieces at depths that the shape alone decides, every piece is summed from zero and pieces are added in order, so a row's
// result does not depend on which block computed what, nor on the other rows. All pieces of all groups, in order, are cut
// into one contiguous range per block; how many groups there are is read from device memory.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "decode_projection.cuh"

namespace izar::expert_projection {

using decode_projection::Cursor;
using decode_projection::kConsumers;
using decode_projection::kErrorPartAbsent;
using decode_projection::kMaxPolls;
using decode_projection::kSwizzleBytes;
using decode_projection::kThreads;
using decode_projection::kTileRows;
using decode_projection::kUnitDepth;
using decode_projection::kWeightBytes;
using decode_projection::Ring;

constexpr uint32_t kMaxPieces = 2;
constexpr uint32_t kNoRow = 0xFFFFFFFF;

struct Params {
  __nv_bfloat16* y;         // [sorted rows, num_outputs], dense
  const uint4* groups;      // expert, first sorted row, rows, 0
  const uint32_t* columns;  // [groups, kTokens], the sorted row of a column of x, or null: columns are the group's rows
  const uint32_t* counts;   // [0]: how many groups
  float* parts;             // [num_blocks, kMaxPieces - 1, 64 * kTokens], all kAbsent between launches
  uint32_t* error;
  uint32_t num_outputs;       // columns of y
  uint32_t tiles_per_group;
  uint32_t units_per_tile;
  uint32_t units_per_piece;
  uint32_t pieces_per_tile;   // at most kMaxPieces
  uint32_t rows_per_expert;   // where an expert's weights start: in rows, or in blocks of 8 rows with SwiGLU
  uint32_t waits_for_groups;  // the previous kernel writes the groups
};

template <uint32_t kTokens_, uint32_t kWeightStages_, uint32_t kXStages_, bool kSwiglu_>
struct Config {
  static constexpr uint32_t kTokens = kTokens_;
  static constexpr uint32_t kWeightStages = kWeightStages_;
  static constexpr uint32_t kXStages = kXStages_;
  static constexpr bool kSwiglu = kSwiglu_;

  static constexpr uint32_t kTileOutputs = kSwiglu ? kTileRows / 2 : kTileRows;
  static constexpr uint32_t kXBytes = kTokens * kUnitDepth * 2;
  static constexpr uint32_t kSharedBytes = kWeightStages * kWeightBytes + kXStages * kXBytes + kSwizzleBytes;
  static constexpr uint32_t kAccumulators = kTokens / 2;
  static constexpr uint32_t kPartFloats = kTileRows * kTokens;
};

// Pieces [begin, end) of a block: num_pieces * block / num_blocks, rounded down.
struct Range {
  uint32_t num_pieces;
  uint32_t begin;
  uint32_t end;

  __device__ __forceinline__ static Range of_this_block(const Params& p) {
    const uint32_t num_pieces = __ldcg(p.counts) * p.tiles_per_group * p.pieces_per_tile;
    return {num_pieces, cut(num_pieces, blockIdx.x), cut(num_pieces, blockIdx.x + 1)};
  }

  __device__ __forceinline__ static uint32_t cut(uint32_t num_pieces, uint32_t block) {
    return static_cast<uint32_t>(uint64_t{num_pieces} * block / gridDim.x);
  }

  __device__ __forceinline__ uint32_t block_of(uint32_t piece) const {
    return static_cast<uint32_t>((uint64_t{piece + 1} * gridDim.x - 1) / num_pieces);
  }
};

// Walks the pieces of a range. A group is read when its first piece comes: a load in every piece would stall every ring.
class PieceCursor {
 public:
  __device__ __forceinline__ PieceCursor(const Params& params, uint32_t index) : p(params) {
    part = index % p.pieces_per_tile;
    const uint32_t tile_index = index / p.pieces_per_tile;
    tile = tile_index % p.tiles_per_group;
    group_index = tile_index / p.tiles_per_group;
    group = __ldcg(p.groups + group_index);
  }

  // The list has an entry past the last group, so the piece past the last may be walked to.
  __device__ __forceinline__ void advance() {
    if (++part < p.pieces_per_tile) return;
    part = 0;
    if (++tile < p.tiles_per_group) return;
    tile = 0;
    ++group_index;
    group = __ldcg(p.groups + group_index);
  }

  __device__ __forceinline__ uint32_t first_unit() const { return part * p.units_per_piece; }
  __device__ __forceinline__ uint32_t end_unit() const {
    return min((part + 1) * p.units_per_piece, p.units_per_tile);
  }

  uint4 group;
  uint32_t group_index;
  uint32_t tile;  // of the group
  uint32_t part;  // of the tile

 private:
  const Params& p;
};

template <class C>
struct Shared {
  Ring<C::kWeightStages> weights;
  Ring<C::kXStages> x;
};

// Warp 4, one thread. Which experts are needed is known before x is: their weights are asked for at once.
template <class C>
struct WeightProducer {
  const Params& p;
  const CUtensorMap* map;
  uint8_t* data;
  Ring<C::kWeightStages>& ring;

  // Larger groups come in several, which read the same weights.
  static constexpr uint64_t kPolicy = C::kTokens < 64 ? ptx::kEvictFirst : ptx::kEvictNormal;

  __device__ __forceinline__ void load(const PieceCursor& piece, uint32_t unit, uint32_t stage) const {
    ptx::mbarrier_arrive_expect_tx(&ring.full[stage], kWeightBytes);
    const int column = unit * kUnitDepth;
    const int expert_row = piece.group.x * p.rows_per_expert;
    uint8_t* to = data + stage * kWeightBytes;
    if constexpr (C::kSwiglu) {
      ptx::tma_load_4d(to, map, &ring.full[stage], kPolicy, column, 0, 0, expert_row + piece.tile * (kTileRows / 16));
    } else {
      ptx::tma_load_2d(to, map, &ring.full[stage], kPolicy, column, expert_row + piece.tile * kTileRows);
    }
  }

  __device__ __forceinline__ void run() const {
    if (p.waits_for_groups) {
      ptx::wait_for_previous_kernel();
      // Not before: the next kernel reads the groups without waiting.
      ptx::launch_dependents();
    }
    const Range range = Range::of_this_block(p);
    Cursor<C::kWeightStages> cursor{0, 1};
    PieceCursor piece(p, range.begin);
    for (uint32_t index = range.begin; index < range.end; ++index, piece.advance()) {
      for (uint32_t unit = piece.first_unit(); unit < piece.end_unit(); ++unit) {
        ptx::mbarrier_wait(&ring.empty[cursor.stage], cursor.parity);
        load(piece, unit, cursor.stage);
        cursor.advance();
      }
    }
  }
};

// Warp 5, one thread.
template <class C>
struct XProducer {
  const Params& p;
  const CUtensorMap* map;
  uint8_t* data;
  Ring<C::kXStages>& ring;

  __device__ __forceinline__ void run() const {
    ptx::wait_for_previous_kernel();
    const Range range = Range::of_this_block(p);
    Cursor<C::kXStages> cursor{0, 1};
    PieceCursor piece(p, range.begin);
    for (uint32_t index = range.begin; index < range.end; ++index, piece.advance()) {
      const int row = p.columns == nullptr ? piece.group.y : 0;
      for (uint32_t unit = piece.first_unit(); unit < piece.end_unit(); ++unit) {
        ptx::mbarrier_wait(&ring.empty[cursor.stage], cursor.parity);
        ptx::mbarrier_arrive_expect_tx(&ring.full[cursor.stage], C::kXBytes);
        ptx::tma_load_2d(data + cursor.stage * C::kXBytes, map, &ring.full[cursor.stage], ptx::kEvictLast,
                         unit * kUnitDepth, row);
        cursor.advance();
      }
    }
  }
};

// Warps 0-3, one warpgroup.
template <class C>
struct Consumer {
  using Accumulators = float[C::kAccumulators];

  const Params& p;
  const uint8_t* weights;
  const uint8_t* x;
  Shared<C>& rings;
  Cursor<C::kWeightStages> weight_cursor = {};
  Cursor<C::kXStages> x_cursor = {};

  // Issues one unit's products. They read shared memory until the wait that follows.
  __device__ __forceinline__ void multiply_unit(Accumulators& acc) {
    ptx::mbarrier_wait(&rings.x.full[x_cursor.stage], x_cursor.parity);
    ptx::mbarrier_wait(&rings.weights.full[weight_cursor.stage], weight_cursor.parity);
    const uint64_t a = ptx::wgmma_descriptor(weights + weight_cursor.stage * kWeightBytes);
    const uint64_t b = ptx::wgmma_descriptor(x + x_cursor.stage * C::kXBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < kUnitDepth / 16; ++k) ptx::wgmma_m64k16<C::kTokens>(acc, a + 2 * k, b + 2 * k);
    ptx::wgmma_commit();
    weight_cursor.advance();
    x_cursor.advance();
  }

  __device__ __forceinline__ void release(uint32_t weight_stage, uint32_t x_stage) const {
    if (threadIdx.x % 32 == 0) {
      ptx::mbarrier_arrive(&rings.weights.empty[weight_stage]);
      ptx::mbarrier_arrive(&rings.x.empty[x_stage]);
    }
  }

  // Sums one piece from zero. Stages are released once the next unit's products have been issued.
  __device__ __forceinline__ void multiply(Accumulators& acc, const PieceCursor& piece) {
#pragma unroll
    for (uint32_t i = 0; i < C::kAccumulators; ++i) acc[i] = 0.0f;
    uint32_t weight_stage = 0;
    uint32_t x_stage = 0;
    const uint32_t first_unit = piece.first_unit();
    const uint32_t end_unit = piece.end_unit();
    for (uint32_t unit = first_unit; unit < end_unit; ++unit) {
      const uint32_t next_weight_stage = weight_cursor.stage;
      const uint32_t next_x_stage = x_cursor.stage;
      multiply_unit(acc);
      ptx::wgmma_wait<1>();
      if (unit != first_unit) release(weight_stage, x_stage);
      weight_stage = next_weight_stage;
      x_stage = next_x_stage;
    }
    ptx::wgmma_wait<0>();
#pragma unroll
    for (uint32_t i = 0; i < C::kAccumulators; ++i) ptx::wgmma_fence_operand(acc[i]);
    release(weight_stage, x_stage);
  }

  // A word that no product can be: how a part that has not arrived reads.
  static constexpr uint32_t kAbsent = 0xFFFFFFFF;

  __device__ __forceinline__ static uint32_t encode(float value) {
    const uint32_t bits = __float_as_uint(value);
    return bits == kAbsent ? 0x7FFFFFFF : bits;
  }

  // Where a block leaves a piece of the tile that it does not start; this thread's share.
  __device__ __forceinline__ uint4* part_of(uint32_t block, uint32_t part) const {
    const size_t at = size_t{block} * (kMaxPieces - 1) + part - 1;
    return reinterpret_cast<uint4*>(p.parts + at * C::kPartFloats) + threadIdx.x;
  }

  __device__ __forceinline__ void give_part(const Accumulators& acc, uint32_t part) const {
    uint4* to = part_of(blockIdx.x, part);
#pragma unroll
    for (uint32_t i = 0; i < C::kAccumulators; i += 4) {
      ptx::st_relaxed_gpu_v4(to + i / 4 * kConsumers,
                             {encode(acc[i]), encode(acc[i + 1]), encode(acc[i + 2]), encode(acc[i + 3])});
    }
  }

  // Adds a piece of a later block and marks its place absent again for the next launch.
  // SYNC expert-part: pairs with give_part. Each word is data and flag in one, so relaxed accesses of gpu scope suffice:
  // nothing but the words themselves crosses. The next launch's writers come after this kernel has finished.
  __device__ __forceinline__ void take_part(Accumulators& sum, uint32_t block, uint32_t part) const {
    uint4* from = part_of(block, part);
#pragma unroll
    for (uint32_t i = 0; i < C::kAccumulators / 4; ++i) {
      uint4* at = from + i * kConsumers;
      uint4 v = ptx::ld_relaxed_gpu_v4(at);
      for (uint32_t polls = 0; v.x == kAbsent || v.y == kAbsent || v.z == kAbsent || v.w == kAbsent; ++polls) {
        if (polls == kMaxPolls) {
          ptx::st_relaxed_sys(p.error, kErrorPartAbsent);
          return;
        }
        v = ptx::ld_relaxed_gpu_v4(at);
      }
      ptx::st_relaxed_gpu_v4(at, {kAbsent, kAbsent, kAbsent, kAbsent});
      sum[4 * i] += __uint_as_float(v.x);
      sum[4 * i + 1] += __uint_as_float(v.y);
      sum[4 * i + 2] += __uint_as_float(v.z);
      sum[4 * i + 3] += __uint_as_float(v.w);
    }
  }

  __device__ __forceinline__ uint32_t row_of(const PieceCursor& piece, uint32_t column) const {
    if (p.columns != nullptr) return __ldcg(p.columns + piece.group_index * C::kTokens + column);
    return column < piece.group.z ? piece.group.y + column : kNoRow;
  }

  // See decode_projection: a transpose across the warp turns products into pairs of neighbouring outputs of one column.
  __device__ __forceinline__ void write_tile(const Accumulators& sum, const PieceCursor& piece) const {
    constexpr uint32_t kHalves = C::kSwiglu ? 1 : 2;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < C::kTokens / 8; ++i) {
      const uint32_t row = row_of(piece, 8 * i + lane / 4);
#pragma unroll
      for (uint32_t half = 0; half < kHalves; ++half) {
        float a = sum[4 * i + 2 * half];
        float b = sum[4 * i + 2 * half + 1];
        if constexpr (C::kSwiglu) {
          a = a / (1.0f + __expf(-a)) * sum[4 * i + 2];
          b = b / (1.0f + __expf(-b)) * sum[4 * i + 3];
        }
        const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
        const uint32_t turned = ptx::movmatrix_trans(*reinterpret_cast<const uint32_t*>(&pair));
        const uint32_t output = piece.tile * C::kTileOutputs + (threadIdx.x / 32 * kHalves + half) * 8 + 2 * (lane % 4);
        // num_outputs is a multiple of 8: a pair is inside or outside.
        if (row != kNoRow && output < p.num_outputs) {
          *reinterpret_cast<uint32_t*>(p.y + size_t{row} * p.num_outputs + output) = turned;
        }
      }
    }
  }

  __device__ __forceinline__ void run() {
    ptx::wait_for_previous_kernel();
    const Range range = Range::of_this_block(p);
    Accumulators sum;
    PieceCursor piece(p, range.begin);
    for (uint32_t index = range.begin; index < range.end; ++index, piece.advance()) {
      Accumulators acc;
      multiply(acc, piece);
      if (index - range.begin < piece.part) {
        give_part(acc, piece.part);
        continue;
      }
#pragma unroll
      for (uint32_t i = 0; i < C::kAccumulators; ++i) sum[i] = piece.part == 0 ? acc[i] : sum[i] + acc[i];
      const uint32_t left = p.pieces_per_tile - 1 - piece.part;
      if (left != 0 && index + 1 < range.end) continue;
      // Only the last tile of a range is shared with later blocks, so that waiting stalls no load.
      for (uint32_t next = 1; next <= left; ++next) take_part(sum, range.block_of(index + next), piece.part + next);
      write_tile(sum, piece);
    }
  }
};

template <class C>
__global__ void __launch_bounds__(kThreads, 2)
    kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ CUtensorMap x_map, const Params p) {
  extern __shared__ uint8_t dynamic[];
  __shared__ Shared<C> rings;
  uint8_t* weights = dynamic + (kSwizzleBytes - ptx::shared_address(dynamic) % kSwizzleBytes) % kSwizzleBytes;
  uint8_t* x = weights + C::kWeightStages * kWeightBytes;

  if (threadIdx.x == kConsumers) {
    ptx::prefetch_tensor_map(&weight_map);
    ptx::prefetch_tensor_map(&x_map);
    rings.weights.init(kConsumers / 32);
    rings.x.init(kConsumers / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (!p.waits_for_groups) ptx::launch_dependents();

  // The shuffle tells the compiler that a warp takes one branch, without which it serialises wgmma.
  const uint32_t warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
  if (warp < kConsumers / 32) {
    Consumer<C>{p, weights, x, rings}.run();
  } else if (threadIdx.x == kConsumers) {
    WeightProducer<C>{p, &weight_map, weights, rings.weights}.run();
  } else if (threadIdx.x == kConsumers + 32) {
    XProducer<C>{p, &x_map, x, rings.x}.run();
  }
}

}  // namespace izar::expert_projection
