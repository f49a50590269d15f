// Device code of decode_projection; decode_projection.cu says what it computes.
//
// A tile is 64 weight rows over the whole depth, a unit is a tile over 64 of the depth: 8 KB of
// weights in one bulk copy. All units in tile order are cut into one contiguous range per block, so
// that every block reads the same number of bytes whatever the shape. A tile cut by a range's end is
// finished by the block that starts it, which waits for the parts of the blocks after it.
//
// One block an SM: warps 0-3 multiply, warp 4 brings weights and warp 5 activations, each
// through a ring of its own in shared memory. Two blocks fit an SM: the next kernel's block fills its
// weight ring while this kernel's still runs, which is what hides the gap between kernels.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../ptx/grid.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/wgmma.cuh"

namespace izar::decode_projection {

constexpr uint32_t kTileRows = 64;
constexpr uint32_t kUnitDepth = 64;  // one 128-byte swizzled row
constexpr uint32_t kWeightBytes = kTileRows * kUnitDepth * 2;
constexpr uint32_t kConsumers = 128;
constexpr uint32_t kThreads = kConsumers + 64;
constexpr uint32_t kSwizzleBytes = 1024;  // alignment of every ring entry

// A part of a tile that does not come within this many polls (seconds) is an error, not a hang.
constexpr uint32_t kMaxPolls = 1u << 22;
constexpr uint32_t kErrorPartAbsent = 1;

struct Params {
  __nv_bfloat16* y;               // null: outputs are f32
  float* y_f32;                   // null: outputs are bf16
  const __nv_bfloat16* bias;      // null: none
  const __nv_bfloat16* residual;  // null: none; may be y
  float* parts;                   // [num_blocks, 64 * kTokens], all kAbsent between launches
  uint32_t* error;                // receives kErrorPartAbsent
  uint32_t num_tokens;
  uint32_t num_outputs;  // rows of y a token: the weight's rows, half of them with SwiGLU
  uint32_t y_stride;
  uint32_t residual_stride;
  uint32_t units_per_tile;
  uint32_t num_units;
};

// One instantiation: kTokens columns, and how many units of weights and of x are in flight.
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

template <uint32_t kStages>
struct Ring {
  uint64_t full[kStages];
  uint64_t empty[kStages];

  __device__ __forceinline__ void init(uint32_t readers) {
    for (uint32_t i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&full[i], 1);
      ptx::mbarrier_init(&empty[i], readers);
    }
  }
};

// A position in a ring and the parity of its current round.
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

// Units [begin, end) of a block: num_units * block / num_blocks, rounded down.
struct Range {
  uint32_t begin;
  uint32_t end;

  __device__ __forceinline__ static Range of_this_block(const Params& p) {
    return {p.num_units * blockIdx.x / gridDim.x, p.num_units * (blockIdx.x + 1) / gridDim.x};
  }
};

__device__ __forceinline__ uint32_t block_of_unit(const Params& p, uint32_t unit) {
  return ((unit + 1) * gridDim.x - 1) / p.num_units;
}

template <class C>
struct Shared {
  Ring<C::kWeightStages> weights;
  Ring<C::kXStages> x;
};

// Warp 4, one thread. Weights depend on no kernel: the ring is filled before the previous kernel has finished. No more than the
// ring: what is asked into L2 beyond it is taken from the kernels that still run.
template <class C>
struct WeightProducer {
  const Params& p;
  const CUtensorMap* map;
  uint8_t* data;
  Ring<C::kWeightStages>& ring;

  __device__ __forceinline__ void load(uint32_t unit, uint32_t stage) const {
    ptx::mbarrier_arrive_expect_tx(&ring.full[stage], kWeightBytes);
    const int tile = unit / p.units_per_tile;
    const int column = unit % p.units_per_tile * kUnitDepth;
    uint8_t* to = data + stage * kWeightBytes;
    if constexpr (C::kSwiglu) {
      ptx::tma_load_4d(to, map, &ring.full[stage], ptx::kEvictFirst, column, 0, 0, tile * (kTileRows / 16));
    } else {
      ptx::tma_load_2d(to, map, &ring.full[stage], ptx::kEvictFirst, column, tile * kTileRows);
    }
  }

  __device__ __forceinline__ void run() const {
    const Range range = Range::of_this_block(p);
    const uint32_t filled = min(range.end, range.begin + C::kWeightStages);
    for (uint32_t unit = range.begin; unit < filled; ++unit) load(unit, unit - range.begin);
    Cursor<C::kWeightStages> cursor;
    for (uint32_t unit = filled; unit < range.end; ++unit) {
      ptx::mbarrier_wait(&ring.empty[cursor.stage], cursor.parity);
      load(unit, cursor.stage);
      cursor.advance();
    }
  }
};

// Warp 5, one thread. x may be what the previous kernel writes.
template <class C>
struct XProducer {
  const Params& p;
  const CUtensorMap* map;
  uint8_t* data;
  Ring<C::kXStages>& ring;

  __device__ __forceinline__ void run() const {
    const Range range = Range::of_this_block(p);
    ptx::wait_for_previous_kernel();
    // The first round finds every stage empty: a barrier's previous phase counts as complete.
    Cursor<C::kXStages> cursor{0, 1};
    for (uint32_t unit = range.begin; unit < range.end; ++unit) {
      ptx::mbarrier_wait(&ring.empty[cursor.stage], cursor.parity);
      ptx::mbarrier_arrive_expect_tx(&ring.full[cursor.stage], C::kXBytes);
      const int column = unit % p.units_per_tile * kUnitDepth;
      ptx::tma_load_2d(data + cursor.stage * C::kXBytes, map, &ring.full[cursor.stage], ptx::kEvictLast, column, 0);
      cursor.advance();
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

  // Accumulates units [begin, end) of one tile. Stages are released once the next unit's products
  // have been issued, so that the tensor cores do not drain between units.
  __device__ __forceinline__ void multiply(Accumulators& acc, uint32_t begin, uint32_t end) {
#pragma unroll
    for (uint32_t i = 0; i < C::kAccumulators; ++i) acc[i] = 0.0f;
    uint32_t weight_stage = 0;
    uint32_t x_stage = 0;
    for (uint32_t unit = begin; unit < end; ++unit) {
      const uint32_t next_weight_stage = weight_cursor.stage;
      const uint32_t next_x_stage = x_cursor.stage;
      multiply_unit(acc);
      ptx::wgmma_wait<1>();
      if (unit != begin) release(weight_stage, x_stage);
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

  // Where a block leaves its part of the tile that it does not start; this thread's share.
  __device__ __forceinline__ uint4* part_of(uint32_t block) const {
    return reinterpret_cast<uint4*>(p.parts + block * size_t{C::kPartFloats}) + threadIdx.x;
  }

  __device__ __forceinline__ void give_part(const Accumulators& acc) const {
    uint4* to = part_of(blockIdx.x);
#pragma unroll
    for (uint32_t i = 0; i < C::kAccumulators; i += 4) {
      ptx::st_relaxed_gpu_v4(to + i / 4 * kConsumers,
                             {encode(acc[i]), encode(acc[i + 1]), encode(acc[i + 2]), encode(acc[i + 3])});
    }
  }

  // Adds the part of a later block and marks its place absent again for the next launch.
  // SYNC tile-part: pairs with give_part. Each word is data and flag in one, so relaxed accesses of
  // gpu scope suffice: nothing but the words themselves crosses. The next launch's writers come
  // after this kernel has finished.
  __device__ __forceinline__ void take_part(Accumulators& acc, uint32_t block) const {
    uint4* from = part_of(block);
    uint4 v[C::kAccumulators / 4];
    bool absent = true;
    for (uint32_t polls = 0; absent; ++polls) {
      absent = false;
#pragma unroll
      for (uint32_t i = 0; i < C::kAccumulators / 4; ++i) v[i] = ptx::ld_relaxed_gpu_v4(from + i * kConsumers);
#pragma unroll
      for (uint32_t i = 0; i < C::kAccumulators / 4; ++i) {
        absent |= v[i].x == kAbsent || v[i].y == kAbsent || v[i].z == kAbsent || v[i].w == kAbsent;
      }
      if (absent && polls == kMaxPolls) {
        ptx::st_relaxed_sys(p.error, kErrorPartAbsent);
        return;
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < C::kAccumulators / 4; ++i) {
      ptx::st_relaxed_gpu_v4(from + i * kConsumers, {kAbsent, kAbsent, kAbsent, kAbsent});
      acc[4 * i] += __uint_as_float(v[i].x);
      acc[4 * i + 1] += __uint_as_float(v[i].y);
      acc[4 * i + 2] += __uint_as_float(v[i].z);
      acc[4 * i + 3] += __uint_as_float(v[i].w);
    }
  }

  __device__ __forceinline__ float bias_at(uint32_t output) const {
    return p.bias != nullptr && output < p.num_outputs ? __bfloat162float(p.bias[output]) : 0.0f;
  }

  // Of every 8 tokens a thread's products are of 2 (lane % 4), rows lane / 4 and + 8 of its warp's
  // 16. An 8 x 8 transpose across the warp turns that into pairs of neighbouring outputs of one
  // token: pair (half, i) is of token 8 * i + lane / 4. With SwiGLU the first 8 rows are gates, the
  // other 8 their ups, and there is one half.
  static constexpr uint32_t kHalves = C::kSwiglu ? 1 : 2;
  static constexpr uint32_t kTokenBlocks = C::kTokens / 8;
  using Pairs = uint32_t[kHalves][kTokenBlocks];

  __device__ __forceinline__ static uint32_t output_of(uint32_t tile, uint32_t half) {
    return tile * C::kTileOutputs + (threadIdx.x / 32 * kHalves + half) * 8;
  }

  // How many elements of a pair are inside y.
  __device__ __forceinline__ uint32_t valid(uint32_t token, uint32_t output) const {
    return token >= p.num_tokens || output >= p.num_outputs ? 0 : min(p.num_outputs - output, 2);
  }

  // All residuals of a tile are asked for before any is used; y may be the same memory.
  __device__ __forceinline__ void load_residual(Pairs& pairs, uint32_t tile) const {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t half = 0; half < kHalves; ++half) {
#pragma unroll
      for (uint32_t i = 0; i < kTokenBlocks; ++i) {
        const uint32_t token = 8 * i + lane / 4;
        const uint32_t output = output_of(tile, half) + 2 * (lane % 4);
        const uint32_t count = valid(token, output);
        const __nv_bfloat16* from = p.residual + size_t{token} * p.residual_stride + output;
        if (count == 2 && p.residual_stride % 2 == 0) {
          pairs[half][i] = *reinterpret_cast<const uint32_t*>(from);
        } else {
          const uint32_t low = count >= 1 ? __bfloat16_as_ushort(from[0]) : 0;
          const uint32_t high = count == 2 ? __bfloat16_as_ushort(from[1]) : 0;
          pairs[half][i] = low | high << 16;
        }
      }
    }
  }

  __device__ __forceinline__ void store_pair(uint32_t token, uint32_t output, __nv_bfloat162 value) const {
    const uint32_t count = valid(token, output);
    __nv_bfloat16* y = p.y + size_t{token} * p.y_stride + output;
    if (count == 2 && p.y_stride % 2 == 0) {
      *reinterpret_cast<__nv_bfloat162*>(y) = value;
      return;
    }
    if (count >= 1) y[0] = value.x;
    if (count == 2) y[1] = value.y;
  }

  __device__ __forceinline__ void store_pair(uint32_t token, uint32_t output, float2 value) const {
    const uint32_t count = valid(token, output);
    float* y = p.y_f32 + size_t{token} * p.y_stride + output;
    if (count == 2 && p.y_stride % 2 == 0) {
      *reinterpret_cast<float2*>(y) = value;
      return;
    }
    if (count >= 1) y[0] = value.x;
    if (count == 2) y[1] = value.y;
  }

  // A transpose of f32 pairs: of their upper and of their lower halves.
  __device__ __forceinline__ static float2 turn(float a, float b) {
    const uint32_t x = __float_as_uint(a);
    const uint32_t y = __float_as_uint(b);
    const uint32_t low = ptx::movmatrix_trans(__byte_perm(x, y, 0x5410));
    const uint32_t high = ptx::movmatrix_trans(__byte_perm(x, y, 0x7632));
    return {__uint_as_float(__byte_perm(low, high, 0x5410)), __uint_as_float(__byte_perm(low, high, 0x7632))};
  }

  __device__ __forceinline__ static float silu_times(float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; }

  __device__ __forceinline__ void write_tile(const Accumulators& acc, const Pairs& residual, uint32_t tile) const {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t half = 0; half < kHalves; ++half) {
      const float bias = C::kSwiglu ? 0.0f : bias_at(output_of(tile, half) + lane / 4);
#pragma unroll
      for (uint32_t i = 0; i < kTokenBlocks; ++i) {
        float a = acc[4 * i + 2 * half];
        float b = acc[4 * i + 2 * half + 1];
        if constexpr (C::kSwiglu) {
          a = silu_times(a, acc[4 * i + 2]);
          b = silu_times(b, acc[4 * i + 3]);
        } else if (p.y_f32 != nullptr) {
          store_pair(8 * i + lane / 4, output_of(tile, half) + 2 * (lane % 4), turn(a + bias, b + bias));
          continue;
        }
        const __nv_bfloat162 pair = __floats2bfloat162_rn(a + bias, b + bias);
        uint32_t turned = ptx::movmatrix_trans(*reinterpret_cast<const uint32_t*>(&pair));
        __nv_bfloat162 value = *reinterpret_cast<__nv_bfloat162*>(&turned);
        if (p.residual != nullptr) {
          const float2 sum = __bfloat1622float2(value);
          const float2 skip = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&residual[half][i]));
          value = __floats2bfloat162_rn(sum.x + skip.x, sum.y + skip.y);
        }
        store_pair(8 * i + lane / 4, output_of(tile, half) + 2 * (lane % 4), value);
      }
    }
  }

  __device__ __forceinline__ void run() {
    const Range range = Range::of_this_block(p);
    ptx::wait_for_previous_kernel();
    for (uint32_t unit = range.begin; unit < range.end;) {
      const uint32_t tile = unit / p.units_per_tile;
      const uint32_t tile_begin = tile * p.units_per_tile;
      const uint32_t tile_end = tile_begin + p.units_per_tile;
      const uint32_t end = min(range.end, tile_end);
      Accumulators acc;
      multiply(acc, unit, end);
      if (unit != tile_begin) {
        give_part(acc);
      } else {
        Pairs residual = {};
        if (p.residual != nullptr) load_residual(residual, tile);
        // Only the last tile of a range is shared with later blocks, so that waiting stalls no load.
        const uint32_t last = block_of_unit(p, tile_end - 1);
        for (uint32_t block = blockIdx.x + 1; block <= last; ++block) take_part(acc, block);
        write_tile(acc, residual, tile);
      }
      unit = end;
    }
  }
};

// Two blocks fit an SM by their shared memory. Registers are bounded as for three, so that the small kernels and the attention
// between two projections fit beside them: a block that finds no place leaves one to a block that should have run elsewhere.
template <class C>
__global__ void __launch_bounds__(kThreads, 3)
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
  ptx::launch_dependents();

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

}  // namespace izar::decode_projection
