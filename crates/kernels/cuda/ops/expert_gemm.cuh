// Device code of expert_gemm; expert_gemm.cu says what it computes.
//
// A tile is kRows weight rows of a group's expert over the whole depth, times all columns of the group: 64 weight rows a
// warpgroup, and as many columns as the group has, in steps of 32. A stage of the ring holds 64 of the depth of both. One
// warpgroup brings them, the others multiply. Tiles are dealt out in turn, a group's one after another, so that blocks
// that run together read the same rows of x.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../ptx/grid.cuh"
#include "../ptx/mbarrier.cuh"
#include "../ptx/mma.cuh"
#include "../ptx/tma.cuh"
#include "../ptx/warpgroup.cuh"
#include "../ptx/wgmma.cuh"
#include "decode_projection.cuh"

namespace izar::expert_gemm {

using decode_projection::Cursor;
using decode_projection::kSwizzleBytes;
using decode_projection::kUnitDepth;
using decode_projection::Ring;

constexpr uint32_t kWarpgroup = 128;
constexpr uint32_t kWarpgroupRows = 64;
constexpr uint32_t kColumns = 32;  // that a group's columns are rounded up to
constexpr uint32_t kColumnsBytes = kColumns * kUnitDepth * 2;
constexpr uint32_t kStagedColumns = 64;  // of results that a warpgroup turns at a time

struct Params {
  __nv_bfloat16* y;        // [sorted rows, num_outputs], dense
  const uint4* groups;     // expert, first sorted row, rows, 0
  const uint32_t* counts;  // [0]: how many groups
  uint32_t num_outputs;
  uint32_t tiles_per_group;
  uint32_t num_units;        // of a tile: depths of kUnitDepth
  uint32_t rows_per_expert;  // where an expert's weights start: in rows, or in blocks of 8 rows with SwiGLU
};

template <bool kSwiglu_>
struct Config {
  static constexpr bool kSwiglu = kSwiglu_;
  // Measured at 2048 tokens: 2 warpgroups that multiply, 192 columns and 5 stages 478 us, 256 columns and 4 stages 500;
  // 3 warpgroups, 192 columns, 4 stages 487.
  static constexpr uint32_t kWarpgroups = 2;
  static constexpr uint32_t kMaxColumns = 192;
  static constexpr uint32_t kStages = 5;

  static constexpr uint32_t kThreads = (kWarpgroups + 1) * kWarpgroup;
  static constexpr uint32_t kRows = kWarpgroups * kWarpgroupRows;
  static constexpr uint32_t kWarpgroupOutputs = kSwiglu ? kWarpgroupRows / 2 : kWarpgroupRows;
  static constexpr uint32_t kOutputs = kWarpgroups * kWarpgroupOutputs;
  static constexpr uint32_t kWeightBytes = kRows * kUnitDepth * 2;
  static constexpr uint32_t kStageBytes = kWeightBytes + kMaxColumns / kColumns * kColumnsBytes;
  // 16 bytes more, so that 8 columns lie in different banks.
  static constexpr uint32_t kStagedPitch = kWarpgroupOutputs * 2 + 16;
  static constexpr uint32_t kStagedBytes = kStagedColumns * kStagedPitch;
  static constexpr uint32_t kSharedBytes = kStages * kStageBytes + kWarpgroups * kStagedBytes + kSwizzleBytes;
};

// One group's columns times one run of weight rows.
struct Tile {
  uint4 group;
  uint32_t index;  // of the group's

  __device__ __forceinline__ static Tile at(const Params& p, uint32_t tile) {
    return {__ldg(p.groups + tile / p.tiles_per_group), tile % p.tiles_per_group};
  }

  __device__ __forceinline__ uint32_t num_steps() const { return (group.z + kColumns - 1) / kColumns; }
};

template <class C>
struct Producer {
  const Params& p;
  const CUtensorMap* weight_map;
  const CUtensorMap* x_map;
  uint8_t* data;
  Ring<C::kStages>& ring;

  __device__ __forceinline__ void load(const Tile& tile, uint32_t unit, uint32_t stage) const {
    const uint32_t num_steps = tile.num_steps();
    uint64_t* full = &ring.full[stage];
    uint8_t* weights = data + stage * C::kStageBytes;
    ptx::mbarrier_arrive_expect_tx(full, C::kWeightBytes + num_steps * kColumnsBytes);
    const int column = unit * kUnitDepth;
    const int expert_row = tile.group.x * p.rows_per_expert;
    if constexpr (C::kSwiglu) {
      ptx::tma_load_4d(weights, weight_map, full, ptx::kEvictNormal, column, 0, 0,
                       expert_row + tile.index * (C::kRows / 16));
    } else {
      ptx::tma_load_2d(weights, weight_map, full, ptx::kEvictNormal, column, expert_row + tile.index * C::kRows);
    }
    uint8_t* x = weights + C::kWeightBytes;
    for (uint32_t step = 0; step < num_steps; ++step) {
      ptx::tma_load_2d(x + step * kColumnsBytes, x_map, full, ptx::kEvictNormal, column, tile.group.y + step * kColumns);
    }
  }

  __device__ __forceinline__ void run(uint32_t num_tiles) const {
    Cursor<C::kStages> cursor{0, 1};
    for (uint32_t index = blockIdx.x; index < num_tiles; index += gridDim.x) {
      const Tile tile = Tile::at(p, index);
      for (uint32_t unit = 0; unit < p.num_units; ++unit) {
        ptx::mbarrier_wait(&ring.empty[cursor.stage], cursor.parity);
        load(tile, unit, cursor.stage);
        cursor.advance();
      }
    }
  }
};

// Sums of 64 weight rows by kSteps * 32 columns, by the widest products that make that up.
template <uint32_t kSteps>
struct Sums {
  static constexpr uint32_t kWide = kSteps / 4;
  static constexpr uint32_t kMiddle = kSteps % 4 / 2;
  static constexpr uint32_t kNarrow = kSteps % 2;

  float wide[kWide == 0 ? 1 : kWide][64];
  float middle[32];
  float narrow[16];

  // A loop over whatever there is.
  template <class Do>
  __device__ __forceinline__ void for_each(Do each) {
    if constexpr (kWide != 0) {
#pragma unroll
      for (uint32_t w = 0; w < kWide; ++w) {
#pragma unroll
        for (uint32_t i = 0; i < 64; ++i) each(wide[w][i]);
      }
    }
    if constexpr (kMiddle != 0) {
#pragma unroll
      for (uint32_t i = 0; i < 32; ++i) each(middle[i]);
    }
    if constexpr (kNarrow != 0) {
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) each(narrow[i]);
    }
  }

  // += 64 of the depth.
  __device__ __forceinline__ void multiply(const uint8_t* weights, const uint8_t* x) {
    const uint64_t a = ptx::wgmma_descriptor(weights);
    const uint64_t b = ptx::wgmma_descriptor(x);
    constexpr uint64_t kStep = kColumnsBytes / 16;
#pragma unroll
    for (uint32_t k = 0; k < kUnitDepth / 16; ++k) {
      if constexpr (kWide != 0) {
#pragma unroll
        for (uint32_t w = 0; w < kWide; ++w) ptx::wgmma_m64n128k16<1>(wide[w], a + 2 * k, b + 2 * k + w * 4 * kStep);
      }
      if constexpr (kMiddle != 0) ptx::wgmma_m64n64k16(middle, a + 2 * k, b + 2 * k + kWide * 4 * kStep);
      if constexpr (kNarrow != 0) ptx::wgmma_m64n32k16(narrow, a + 2 * k, b + 2 * k + (kSteps - 1) * kStep);
    }
  }

  // The i-th of a step of 32 columns; see wgmma for whose it is.
  template <uint32_t kStep>
  __device__ __forceinline__ float at(uint32_t i) const {
    if constexpr (kStep < 4 * kWide) return wide[kStep / 4][kStep % 4 * 16 + i];
    if constexpr (kStep >= 4 * kWide && kStep < 4 * kWide + 2 * kMiddle) return middle[(kStep - 4 * kWide) * 16 + i];
    if constexpr (kStep >= 4 * kWide + 2 * kMiddle) return narrow[i];
  }
};

template <class C>
struct Consumer {
  const Params& p;
  const uint8_t* data;
  uint8_t* staged;
  Ring<C::kStages>& ring;
  uint32_t warpgroup;
  Cursor<C::kStages> cursor = {};

  __device__ __forceinline__ static uint32_t thread() { return threadIdx.x % kWarpgroup; }

  template <uint32_t kSteps>
  __device__ __forceinline__ void multiply(Sums<kSteps>& sums) {
    sums.for_each([](float& sum) { sum = 0.0f; });
    uint32_t before = 0;
    for (uint32_t unit = 0; unit < p.num_units; ++unit) {
      ptx::mbarrier_wait(&ring.full[cursor.stage], cursor.parity);
      const uint8_t* stage = data + cursor.stage * C::kStageBytes;
      ptx::wgmma_fence();
      sums.multiply(stage + warpgroup * kWarpgroupRows * kUnitDepth * 2, stage + C::kWeightBytes);
      ptx::wgmma_commit();
      // The stage before is free once its products are done; this one's go on meanwhile.
      ptx::wgmma_wait<1>();
      if (unit != 0) release(before);
      before = cursor.stage;
      cursor.advance();
    }
    ptx::wgmma_wait<0>();
    sums.for_each([](float& sum) { ptx::wgmma_fence_operand(sum); });
    release(before);
  }

  __device__ __forceinline__ void release(uint32_t stage) const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&ring.empty[stage]);
  }

  __device__ __forceinline__ static uint32_t pack(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }

  __device__ __forceinline__ static float silu_times(float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; }

  // Turns a step's 32 columns into rows of outputs in shared memory.
  template <uint32_t kStep, uint32_t kSteps>
  __device__ __forceinline__ void stage_step(const Sums<kSteps>& sums) const {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t matrix = lane / 8;
    uint8_t* to = staged + (kStep * kColumns % kStagedColumns + lane % 8) * C::kStagedPitch;
    if constexpr (C::kSwiglu) {
      uint32_t words[4];
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const float a = silu_times(sums.template at<kStep>(4 * i), sums.template at<kStep>(4 * i + 2));
        const float b = silu_times(sums.template at<kStep>(4 * i + 1), sums.template at<kStep>(4 * i + 3));
        words[i] = pack(a, b);
      }
      ptx::stmatrix_x4_trans(ptx::shared_address(to + 8 * matrix * C::kStagedPitch + thread() / 32 * 16), words);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 4; i += 2) {
        uint32_t words[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; ++j) {
          const uint32_t at = 4 * (i + j / 2) + 2 * (j % 2);
          words[j] = pack(sums.template at<kStep>(at), sums.template at<kStep>(at + 1));
        }
        uint8_t* place = to + 8 * (i + matrix / 2) * C::kStagedPitch + thread() / 32 * 32 + matrix % 2 * 16;
        ptx::stmatrix_x4_trans(ptx::shared_address(place), words);
      }
    }
  }

  // Brings what is staged, from a column on, to y.
  __device__ __forceinline__ void flush(const Tile& tile, uint32_t first_column) const {
    ptx::named_barrier(1 + warpgroup, kWarpgroup);
    constexpr uint32_t kThreadsPerColumn = C::kWarpgroupOutputs / 8;
    const uint32_t piece = thread() % kThreadsPerColumn;
    const uint32_t output = tile.index * C::kOutputs + warpgroup * C::kWarpgroupOutputs + 8 * piece;
#pragma unroll
    for (uint32_t i = 0; i < kStagedColumns; i += kWarpgroup / kThreadsPerColumn) {
      const uint32_t column = i + thread() / kThreadsPerColumn;
      if (first_column + column >= tile.group.z || output >= p.num_outputs) continue;
      const uint4 words = *reinterpret_cast<const uint4*>(staged + column * C::kStagedPitch + 16 * piece);
      const size_t row = tile.group.y + first_column + column;
      *reinterpret_cast<uint4*>(p.y + row * p.num_outputs + output) = words;
    }
    ptx::named_barrier(1 + warpgroup, kWarpgroup);
  }

  template <uint32_t kStep, uint32_t kSteps>
  __device__ __forceinline__ void write_from(const Sums<kSteps>& sums, const Tile& tile) const {
    if constexpr (kStep < kSteps) {
      stage_step<kStep>(sums);
      constexpr uint32_t kEnd = (kStep + 1) * kColumns;
      if constexpr (kEnd % kStagedColumns == 0 || kStep + 1 == kSteps) {
        flush(tile, kStep * kColumns / kStagedColumns * kStagedColumns);
      }
      write_from<kStep + 1>(sums, tile);
    }
  }

  template <uint32_t kSteps>
  __device__ __forceinline__ void compute(const Tile& tile) {
    if constexpr (kSteps > 1) {
      if (tile.num_steps() < kSteps) return compute<kSteps - 1>(tile);
    }
    Sums<kSteps> sums;
    multiply(sums);
    write_from<0>(sums, tile);
  }

  __device__ __forceinline__ void run(uint32_t num_tiles) {
    for (uint32_t index = blockIdx.x; index < num_tiles; index += gridDim.x) {
      compute<C::kMaxColumns / kColumns>(Tile::at(p, index));
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    kernel(const __grid_constant__ CUtensorMap weight_map, const __grid_constant__ CUtensorMap x_map,
           const __grid_constant__ Params p) {
  extern __shared__ uint8_t dynamic[];
  __shared__ Ring<C::kStages> ring;
  uint8_t* data = dynamic + (kSwizzleBytes - ptx::shared_address(dynamic) % kSwizzleBytes) % kSwizzleBytes;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&weight_map);
    ptx::prefetch_tensor_map(&x_map);
    ring.init(C::kWarpgroups * 4);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const uint32_t num_tiles = __ldg(p.counts) * p.tiles_per_group;

  // The shuffle tells the compiler that a warp takes one branch, without which it serialises wgmma.
  const uint32_t warpgroup = __shfl_sync(0xFFFFFFFF, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == C::kWarpgroups) {
    ptx::give_registers<40>();
    if (threadIdx.x == C::kWarpgroups * kWarpgroup) {
      Producer<C>{p, &weight_map, &x_map, data, ring}.run(num_tiles);
    }
  } else {
    ptx::take_registers<232>();
    uint8_t* staged = data + C::kStages * C::kStageBytes + warpgroup * C::kStagedBytes;
    Consumer<C>{p, data, staged, ring, warpgroup}.run(num_tiles);
  }
}

}  // namespace izar::expert_gemm
