// fetch_masks: brings the token masks of a step's masked rows from the ring to the device, as far as they are there.
//   rows           see state.cuh: `grammar` and `mask_states` of the masked rows are written
//   sample_rows    [num_grid_samples] u32, the row of each sample
//   sample_tokens  [num_grid_samples] u32, the token that each is drawn after; positions [tokens] u32
//   marks          as step_mark's, or null; mark 1 is set: the logits are there
// num_samples comes from device memory. Grid num_grid_samples, 128 threads: a block a sample, small enough for head and sampler
// to be resident beside it.
// With reads_early it looks before the kernel ahead of it has ended, while logits are still computed, and once more for what
// was not there. Needs then that everything it reads was written by kernels before that one, and that its `rows` are not in use.
// Bound: PCIe, vocab_size / 8 bytes a masked row, and the latency of the flag and of the mask, one after the other. Measured on
// an H200, 152k tokens: nothing without masks; 64 masks 33 us, one 6; behind a head that takes longer 1 masked row 0 to 1 us.
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/launch.h"
#include "../ptx/grid.cuh"
#include "../ptx/memory.cuh"
#include "../sampler/state.cuh"

// Mirrored by FetchMasksArgs.
struct IzarFetchMasksArgs {
  izar::sampler::Rows rows;
  const uint32_t* num_samples;
  const uint32_t* sample_rows;
  const uint32_t* sample_tokens;
  const uint32_t* positions;
  uint64_t* marks;
  uint32_t num_grid_samples;
  uint32_t reads_early;
};
static_assert(sizeof(IzarFetchMasksArgs) == 136);

namespace {

using namespace izar::sampler;
namespace ptx = izar::ptx;

constexpr uint32_t kThreads = 128;
constexpr uint32_t kAhead = 10;  // words of 8 bytes that a thread has under way
constexpr uint32_t kLineWords = 16;  // of 8 bytes
constexpr uint32_t kSamplingMark = 1;
constexpr uint32_t kMaskBuffers = 2;
constexpr uint32_t kMaxDelivered = (1 << 24) - 1;

// Whether the mask of the token after position `end` - 1 is there. One thread.
__device__ uint32_t look(const Row& row, uint32_t end) {
  // A sample behind one that was put off.
  if (end != row.prompt_len + row.num_generated) return kMaskAwaited;
  // SYNC mask-delivered: pairs with the front end's `write_flag` of the mask word. Scope: system. Makes the mask visible
  // before the word that promises it.
  const uint64_t word = ptx::ld_acquire_sys_u64(reinterpret_cast<const uint64_t*>(row.mask_word));
  const uint32_t num_delivered = word & kMaxDelivered;
  if (word >> 32 != row.mask_generation || num_delivered <= row.num_generated) return kMaskAwaited;
  return word >> (24 + row.num_generated % kMaskBuffers) & 1 ? kMaskOpen : kMaskReady;
}

// Copies the row's mask: from words of 8 bytes to words of 4.
__device__ void copy(const IzarFetchMasksArgs& a, const Row& row, uint32_t row_index) {
  const uint32_t num_words = (a.rows.vocab_size + 63) / 64;
  const uint32_t buffer = row.num_generated % kMaskBuffers;
  const uint64_t* from = reinterpret_cast<const uint64_t*>(row.mask_area) + buffer * num_words;
  uint32_t* to = a.rows.grammar + size_t{row_index} * a.rows.mask_words;
  // Warps read whole lines: places count from the start of the first line, those before the mask wrap to none.
  const uint32_t lead = reinterpret_cast<uint64_t>(from) / sizeof(uint64_t) % kLineWords;
  for (uint32_t start = 0; start < lead + num_words; start += kAhead * kThreads) {
    const uint32_t first = start + threadIdx.x - lead;
    uint64_t words[kAhead];
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t at = first + i * kThreads;
      words[i] = at < num_words ? ptx::ld_relaxed_sys_u64(from + at) : 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t at = first + i * kThreads;
      if (at >= num_words) continue;
      to[2 * at] = static_cast<uint32_t>(words[i]);
      if (2 * at + 1 < a.rows.mask_words) to[2 * at + 1] = static_cast<uint32_t>(words[i] >> 32);
    }
  }
}

// Brings the row's mask if it is there, and says so in `mask_states`. All threads.
__device__ uint32_t fetch(const IzarFetchMasksArgs& a, uint32_t row_index, uint32_t end) {
  __shared__ uint32_t found;
  const Row& row = a.rows.rows[row_index];
  if (threadIdx.x == 0) a.rows.mask_states[row_index] = found = look(row, end);
  __syncthreads();
  const uint32_t state = found;
  if (state == kMaskReady) copy(a, row, row_index);
  __syncthreads();  // before `found` is written again
  return state;
}

__global__ void __launch_bounds__(kThreads) kernel(const IzarFetchMasksArgs a) {
  ptx::launch_dependents();
  if (!a.reads_early) ptx::wait_for_previous_kernel();
  // Asked for together; padding names row 0 and token 0.
  const uint32_t num_samples = *a.num_samples;
  const uint32_t row_index = a.sample_rows[blockIdx.x];
  const uint32_t end = a.positions[a.sample_tokens[blockIdx.x]] + 1;
  const bool is_masked = blockIdx.x < num_samples && (a.rows.rows[row_index].flags & kMasked);
  const uint32_t state = is_masked ? fetch(a, row_index, end) : kMaskOpen;
  if (a.reads_early) ptx::wait_for_previous_kernel();
  if (a.marks != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    ptx::st_relaxed_sys_u64(a.marks + kSamplingMark, ptx::global_timer_ns());
  }
  if (a.reads_early && state == kMaskAwaited) fetch(a, row_index, end);
}

}  // namespace

extern "C" int32_t izar_fetch_masks(const IzarFetchMasksArgs* args, cudaStream_t stream) {
  return izar::launch_overlapped(kernel, args->num_grid_samples, kThreads, 0, stream, *args);
}
