// gather_rows: y[i] = table[rows[i]]: token embeddings, and the hidden states that sample.
//   table [num_rows, width]    bf16, row stride table_stride
//   rows  [num_outputs]        u32; a row outside the table reads as NaN
//   y     [num_outputs, width] bf16, row stride y_stride
// Grid num_outputs, 128 threads. Requires width % 8 == 0 and 16-byte aligned rows.
// Bound: HBM bytes = 4 * num_outputs * width; at decode sizes the latency of two dependent loads.
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/launch.h"
#include "../ptx/grid.cuh"

// Mirrored by gather_rows::Args.
struct IzarGatherRowsArgs {
  const uint16_t* table;
  const uint32_t* rows;
  uint16_t* y;
  uint32_t num_rows;
  uint32_t num_outputs;
  uint32_t width;
  uint32_t table_stride;
  uint32_t y_stride;
};
static_assert(sizeof(IzarGatherRowsArgs) == 48);

namespace {

namespace ptx = izar::ptx;

constexpr uint32_t kThreads = 128;
constexpr uint32_t kNanPair = 0x7FFF7FFF;

__global__ void __launch_bounds__(kThreads) kernel(const IzarGatherRowsArgs a) {
  // In this order: whatever starts after the embeddings of a step finds the step's inputs complete, also
  // before its own wait. paged_decode_attention's reads_early relies on it.
  ptx::wait_for_previous_kernel();
  ptx::launch_dependents();
  const uint32_t row = a.rows[blockIdx.x];
  const uint4* from = reinterpret_cast<const uint4*>(a.table + size_t{row} * a.table_stride);
  uint4* to = reinterpret_cast<uint4*>(a.y + size_t{blockIdx.x} * a.y_stride);
  const bool inside = row < a.num_rows;
  for (uint32_t i = threadIdx.x; i < a.width / 8; i += kThreads) {
    to[i] = inside ? from[i] : make_uint4(kNanPair, kNanPair, kNanPair, kNanPair);
  }
}

}  // namespace

extern "C" int32_t izar_gather_rows(const IzarGatherRowsArgs* args, cudaStream_t stream) {
  return izar::launch_overlapped(kernel, args->num_outputs, kThreads, 0, stream, *args);
}
