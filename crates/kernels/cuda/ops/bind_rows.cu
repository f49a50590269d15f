// bind_rows: rows of the sampler change hands.
//   arena    pinned host memory, u32 words: `count` IzarRowBinding, then what they refer to
//   rows     see state.cuh
// Grid count, 512 threads: a block binds one row. Rows of one launch are distinct. The caller has checked every id.
// Bound: the latency of two reads across PCIe; a history of n tokens adds 4 n bytes at PCIe's rate.
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/launch.h"
#include "../ptx/grid.cuh"
#include "../sampler/state.cuh"

// Mirrored by BindingRecord.
struct IzarRowBinding {
  izar::sampler::Row state;
  uint32_t row;
  // Places are in words from the start of the arena.
  uint32_t lists_at;
  uint32_t num_list_words;
  uint32_t mask_at;  // mask_words of them, if the state has a mask
  uint32_t prompt_at;
  uint32_t num_prompt;  // tokens to mark as seen
  uint32_t generated_at;
  uint32_t num_generated;  // tokens to count
  uint32_t recent_at;
  uint32_t num_recent;  // the last ones generated
  uint32_t last_token;
  uint32_t reserved[5];
};
static_assert(sizeof(IzarRowBinding) == 192);

namespace {

using izar::sampler::Rows;
namespace ptx = izar::ptx;

constexpr uint32_t kThreads = 512;

__device__ void copy(uint32_t* to, const uint32_t* from, uint32_t len) {
  for (uint32_t i = threadIdx.x; i < len; i += kThreads) to[i] = from[i];
}

__device__ void mark(uint32_t* seen, uint32_t* counts, const uint32_t* tokens, uint32_t len) {
  for (uint32_t i = threadIdx.x; i < len; i += kThreads) {
    const uint32_t token = tokens[i];
    atomicOr(&seen[token / 32], 1u << token % 32);
    counts[token] = 0;
  }
}

__global__ void __launch_bounds__(kThreads) kernel(const uint32_t* arena, const Rows rows) {
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const IzarRowBinding& binding = reinterpret_cast<const IzarRowBinding*>(arena)[blockIdx.x];
  const size_t row = binding.row;
  uint32_t* seen = rows.seen + row * rows.mask_words;
  uint32_t* counts = rows.counts + row * rows.vocab_size;
  copy(reinterpret_cast<uint32_t*>(rows.rows + row), reinterpret_cast<const uint32_t*>(&binding.state),
       sizeof(binding.state) / 4);
  copy(rows.lists + row * rows.list_capacity, arena + binding.lists_at, binding.num_list_words);
  if (threadIdx.x == 0) rows.last_tokens[row] = binding.last_token;
  const uint32_t flags = binding.state.flags;
  if (flags & izar::sampler::kHasMask) {
    copy(rows.masks + row * rows.mask_words, arena + binding.mask_at, rows.mask_words);
  }
  const uint32_t num_recent = binding.num_recent;
  const uint32_t first = binding.state.num_generated - num_recent;
  for (uint32_t i = threadIdx.x; i < num_recent; i += kThreads) {
    rows.recent[row * rows.list_capacity + (first + i) % rows.list_capacity] = arena[binding.recent_at + i];
  }
  if (!(flags & (izar::sampler::kCountsPrompt | izar::sampler::kCountsGenerated))) return;
  for (uint32_t i = threadIdx.x; i < rows.mask_words; i += kThreads) seen[i] = 0;
  __syncthreads();
  mark(seen, counts, arena + binding.prompt_at, binding.num_prompt);
  const uint32_t* generated = arena + binding.generated_at;
  const uint32_t num_generated = binding.num_generated;
  mark(seen, counts, generated, num_generated);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < num_generated; i += kThreads) atomicAdd(&counts[generated[i]], 1u);
}

}  // namespace

extern "C" int32_t izar_bind_rows(const void* arena, uint32_t count, const Rows* rows, cudaStream_t stream) {
  return izar::launch_overlapped(kernel, count, kThreads, 0, stream, static_cast<const uint32_t*>(arena), *rows);
}
