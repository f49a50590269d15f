// expand_plan: from a step's plan to the arrays that its kernels read.
//   plan [words] u32: a header of 16 words, entries of 8, then token ids and block tables where the header says
//     header: num_entries, num_tokens, num_decodes, num_samples, step (64 bits), token_ids_at, block_tables_at,
//             blocks_per_row, 7 unused
//     entry:  row, start, num_tokens, first_token, num_blocks, sample (its place among the samples, ~0 for none), 2 unused
//   last_tokens [max_num_seqs] u32: what each row sampled last; the token of a decode
//   marks: as step_mark's, or null; mark 0 is set: the step has started
//   everything else is written, padding included: see StepInputs
// The first num_decodes entries are decodes: one token each. Grid bucket_seqs, 256 threads: a block an entry.
// Bound: latency; bytes = 4 * (4 * bucket_tokens + block tables).
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/launch.h"
#include "../ptx/grid.cuh"
#include "../ptx/memory.cuh"

// Mirrored by ffi::ExpandPlanArgs.
struct IzarExpandPlanArgs {
  const uint32_t* plan;
  const uint32_t* last_tokens;
  uint32_t* meta;
  uint32_t* token_ids;
  uint32_t* positions;
  uint32_t* kv_slots;
  uint32_t* query_starts;
  uint32_t* query_lens;
  uint32_t* seq_lens;
  uint32_t* decode_seq_lens;
  uint32_t* block_tables;
  uint32_t* sample_tokens;
  uint32_t* sample_rows;
  uint64_t* marks;
  uint32_t bucket_tokens;
  uint32_t bucket_seqs;
  uint32_t max_blocks_per_seq;
  uint32_t unused;
};
static_assert(sizeof(IzarExpandPlanArgs) == 128);

namespace {

namespace ptx = izar::ptx;

constexpr uint32_t kThreads = 256;
constexpr uint32_t kBlockSize = 16;
constexpr uint32_t kHeaderWords = 16;
constexpr uint32_t kEntryWords = 8;
constexpr uint32_t kNone = ~0u;

enum Header { kNumEntries, kNumTokens, kNumDecodes, kNumSamples, kStepLow, kStepHigh, kTokenIdsAt, kBlockTablesAt, kBlocksPerRow };
enum Entry { kRow, kStart, kLen, kFirstToken, kNumBlocks, kSample };

__device__ void clear_entry(const IzarExpandPlanArgs& a, uint32_t idx) {
  a.query_starts[idx] = 0;
  a.query_lens[idx] = 0;
  a.seq_lens[idx] = 0;
  a.decode_seq_lens[idx] = 0;
}

__device__ void write_entry(const IzarExpandPlanArgs& a, uint32_t idx) {
  const uint32_t* entry = a.plan + kHeaderWords + idx * kEntryWords;
  const uint32_t end = entry[kStart] + entry[kLen];
  const bool is_decode = idx < a.plan[kNumDecodes];
  a.query_starts[idx] = entry[kFirstToken];
  a.query_lens[idx] = entry[kLen];
  a.seq_lens[idx] = end;
  a.decode_seq_lens[idx] = is_decode ? end : 0;
  if (entry[kSample] != kNone) {
    a.sample_tokens[entry[kSample]] = entry[kFirstToken] + entry[kLen] - 1;
    a.sample_rows[entry[kSample]] = entry[kRow];
  }
}

__device__ void write_tokens(const IzarExpandPlanArgs& a, uint32_t idx) {
  const uint32_t* entry = a.plan + kHeaderWords + idx * kEntryWords;
  const uint32_t* blocks = a.plan + a.plan[kBlockTablesAt] + idx * a.plan[kBlocksPerRow];
  const uint32_t* ids = a.plan + a.plan[kTokenIdsAt];
  const bool is_decode = idx < a.plan[kNumDecodes];
  for (uint32_t i = threadIdx.x; i < entry[kLen]; i += kThreads) {
    const uint32_t token = entry[kFirstToken] + i;
    const uint32_t position = entry[kStart] + i;
    a.token_ids[token] = is_decode ? a.last_tokens[entry[kRow]] : ids[token];
    a.positions[token] = position;
    a.kv_slots[token] = blocks[position / kBlockSize] * kBlockSize + position % kBlockSize;
  }
  uint32_t* table = a.block_tables + size_t{idx} * a.max_blocks_per_seq;
  for (uint32_t i = threadIdx.x; i < entry[kNumBlocks]; i += kThreads) table[i] = blocks[i];
}

__global__ void __launch_bounds__(kThreads) kernel(const IzarExpandPlanArgs a) {
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  const uint32_t idx = blockIdx.x;
  if (a.marks != nullptr && idx == 0 && threadIdx.x == 0) ptx::st_relaxed_sys_u64(a.marks, ptx::global_timer_ns());
  const uint32_t num_samples = a.plan[kNumSamples];
  if (threadIdx.x == 0) {
    if (idx < a.plan[kNumEntries]) {
      write_entry(a, idx);
    } else {
      clear_entry(a, idx);
    }
    if (idx >= num_samples) a.sample_tokens[idx] = a.sample_rows[idx] = 0;
  }
  if (idx == 0 && threadIdx.x < 16) a.meta[threadIdx.x] = threadIdx.x <= kStepHigh ? a.plan[threadIdx.x] : 0;
  if (idx < a.plan[kNumEntries]) write_tokens(a, idx);
  const uint32_t first_padding = a.plan[kNumTokens] + idx * kThreads + threadIdx.x;
  for (uint32_t token = first_padding; token < a.bucket_tokens; token += gridDim.x * kThreads) {
    a.token_ids[token] = 0;
    a.positions[token] = 0;
    a.kv_slots[token] = kNone;
  }
}

}  // namespace

extern "C" int32_t izar_expand_plan(const IzarExpandPlanArgs* args, cudaStream_t stream) {
  return izar::launch_overlapped(kernel, args->bucket_seqs, kThreads, 0, stream, *args);
}
