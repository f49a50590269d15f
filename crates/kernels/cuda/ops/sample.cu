// sample: from rows of logits and the state of their sequences to the next tokens.
//   logits       [num_samples, vocab_size]  f32, row stride logits_stride; not changed
//   sample_rows  [num_samples]              u32, the row of the sampler's state; distinct
//   rows         see state.cuh; a masked row whose mask is not there is deferred: it samples and changes nothing
//   records      [2, max_samples]           pinned host memory; half step % 2 is written
//   logprobs     [2, max_samples, 1 + 128]  pinned host memory
// num_samples and the step's number come from device memory; blocks of samples beyond it do nothing.
// Grid (7, clusters that are resident at once, or the bucket's samples), 512 threads; a cluster samples row after row, a
// slice of it in the shared memory of each block: logits are read once, twice for rows with logprobs. Requires at most 7 * 51,200 tokens. Bit for bit the
// definition in the module `sampling` of the crate izar-engine, but for the values of logprobs (1e-5).
// Bound: bytes = 4 * num_samples * vocab_size, from L2 as far as they fit there. Measured on an H200, 152k tokens, 64 rows:
// greedy 18.4 us, all but logprobs 41 us (floor 8.4).
#include <cuda_runtime.h>

#include <cstdint>

#include "../ptx/grid.cuh"
#include "../ptx/memory.cuh"
#include "../sampler/choose.cuh"
#include "../sampler/logprobs.cuh"
#include "../sampler/slices.cuh"
#include "../sampler/state.cuh"

// Mirrored by ffi::SampleArgs.
struct IzarSampleArgs {
  izar::sampler::Rows rows;
  const float* logits;
  const uint32_t* num_samples;
  const uint64_t* step;
  const uint32_t* sample_rows;
  const uint32_t* eos_ids;
  izar::sampler::Record* records;
  izar::sampler::Logprob* logprobs;
  uint32_t logits_stride;
  uint32_t num_eos_ids;
  uint32_t max_model_len;
  uint32_t max_samples;
  uint32_t slice_len;  // tokens of a block, a multiple of 128
  uint32_t num_grid_samples;
  uint32_t max_clusters;  // that are resident at once
  uint32_t reserved;
};
static_assert(sizeof(IzarSampleArgs) == 176);

namespace {

using namespace izar::sampler;
namespace ptx = izar::ptx;

constexpr uint32_t kRowWords = sizeof(Row) / 4;

// One sample of the step, as a block sees it.
struct Sample {
  const IzarSampleArgs& args;
  Request request;
  uint32_t row_index;
  uint32_t place;  // among the records
  uint64_t step;
  uint32_t eos_id;  // the thread's part of both lists, asked for early; kNoToken: none
  uint32_t stop_id;
};

__device__ Lists lists_of(const IzarSampleArgs& a, const Row& row, size_t index) {
  const uint32_t* words = a.rows.lists + index * a.rows.list_capacity;
  const uint32_t* biases = words + row.num_stop_ids;
  const uint32_t* bad_words = biases + 2 * row.num_biases;
  return {words,
          reinterpret_cast<const Bias*>(biases),
          reinterpret_cast<const BadWord*>(bad_words),
          words,
          a.rows.recent + index * a.rows.list_capacity,
          a.rows.list_capacity,
          a.eos_ids,
          a.num_eos_ids,
          a.rows.seen + index * a.rows.mask_words,
          a.rows.counts + index * a.rows.vocab_size};
}

// Whether the token ends the sequence. The first warp of block 0 calls it.
__device__ uint32_t check_stop(const Sample& sample, uint32_t token) {
  const Row& row = sample.request.row;
  const Lists& lists = sample.request.lists;
  bool is_eos = sample.eos_id == token, is_stop = sample.stop_id == token;
  for (uint32_t i = 32 + threadIdx.x; i < lists.num_eos_ids; i += 32) is_eos |= lists.eos_ids[i] == token;
  for (uint32_t i = 32 + threadIdx.x; i < row.num_stop_ids; i += 32) is_stop |= lists.stop_ids[i] == token;
  is_eos = __any_sync(kWholeWarp, is_eos);
  is_stop = __any_sync(kWholeWarp, is_stop);
  const uint32_t num_generated = row.num_generated + 1;
  if (num_generated >= row.min_tokens) {
    if (is_eos && !(row.flags & kIgnoreEos)) return kEos;
    if (is_stop) return kStopToken;
  }
  if (num_generated >= row.max_tokens) return kMaxTokens;
  return uint64_t{row.prompt_len} + num_generated >= sample.args.max_model_len ? kContextEnd : kToken;
}

// Records the token in the state of its row. One thread.
__device__ void push(const Sample& sample, uint32_t token) {
  const Rows& rows = sample.args.rows;
  const size_t index = sample.row_index;
  const Row& row = sample.request.row;
  rows.rows[index].num_generated = row.num_generated + 1;
  rows.recent[index * rows.list_capacity + row.num_generated % rows.list_capacity] = token;
  rows.last_tokens[index] = token;
  if (!(row.flags & kCountsGenerated)) return;
  uint32_t& word = rows.seen[index * rows.mask_words + token / 32];
  uint32_t& count = rows.counts[index * rows.vocab_size + token];
  const uint32_t bit = 1u << token % 32;
  count = word & bit ? count + 1 : 1;
  word |= bit;
}

// Tells the host. One thread; logprobs that others wrote were ordered before by the block's barrier.
__device__ void publish(const Sample& sample, const Sampled& sampled, uint32_t rank, uint32_t num_logprobs) {
  Record& record = sample.args.records[sample.place];
  const uint64_t head = (sample.step + 1) << 40 | uint64_t{sampled.status} << 32 | sampled.token;
  // SYNC sample-ready: pairs with the acquire load in `DeviceRows::result`. Scope: system. A record without details is one
  // word and needs no order.
  if (rank == 0 && num_logprobs == 0) {
    ptx::st_relaxed_sys_u64(&record.head, head);
    return;
  }
  record.rank = rank;
  record.num_logprobs = num_logprobs;
  ptx::st_release_sys_u64(&record.head, head | uint64_t{kHasDetails} << 32);
}

// Samples a row and tells the host. All blocks of the cluster.
__device__ void run(Block& block, const Sample& sample) {
  const Row& row = sample.request.row;
  Sampled sampled = choose(block, sample.request);
  const bool has_token = sampled.status == kToken;
  uint32_t rank = sampled.status == kRowBroken ? row.error : 0;
  uint32_t num_logprobs = 0;
  if (has_token && row.num_top_logprobs >= 0) {
    const uint32_t vocab_size = sample.request.vocab_size;
    const uint32_t num_top = min(static_cast<uint32_t>(row.num_top_logprobs), min(vocab_size, kMaxTop));
    Logprob* out = sample.args.logprobs + size_t{sample.place} * (1 + kMaxTop);
    rank = write_logprobs(block, {num_top, vocab_size, out}, sampled.token);
    num_logprobs = 1 + num_top;
  }
  __syncthreads();
  request_next(block);
  if (block.rank != 0 || threadIdx.x >= 32) return;
  if (has_token) sampled.status = check_stop(sample, sampled.token);
  if (threadIdx.x != 0) return;
  if (has_token) push(sample, sampled.token);
  publish(sample, sampled, rank, num_logprobs);
}

// The thread's word of a row's state; the one after it is the state of its mask.
__device__ __forceinline__ uint32_t word_of(const IzarSampleArgs& a, uint32_t row_index) {
  if (threadIdx.x == kRowWords) return a.rows.mask_states[row_index];
  return threadIdx.x < kRowWords ? reinterpret_cast<const uint32_t*>(&a.rows.rows[row_index])[threadIdx.x] : 0;
}

__device__ __forceinline__ void put_word(Shared& shared, uint32_t word) {
  if (threadIdx.x < kRowWords) reinterpret_cast<uint32_t*>(&shared.row)[threadIdx.x] = word;
  if (threadIdx.x == kRowWords) shared.mask_state = word;
}

__device__ Sample sample_of(const IzarSampleArgs& a, const Block& block, uint32_t index, uint32_t row_index,
                            uint64_t step) {
  const Row& row = block.shared.row;
  const Lists lists = lists_of(a, row, row_index);
  const size_t mask_at = size_t{row_index} * a.rows.mask_words + block.begin / 32;
  const bool is_masked = row.flags & kMasked;
  const uint32_t mask_state = block.shared.mask_state;
  return {a,
          {row, lists, row.flags & kHasMask ? a.rows.masks + mask_at : nullptr,
           is_masked && mask_state == kMaskReady ? a.rows.grammar + mask_at : nullptr, a.rows.vocab_size,
           is_masked && mask_state == kMaskAwaited},
          row_index,
          static_cast<uint32_t>(step % 2) * a.max_samples + index,
          step,
          threadIdx.x < min(32, lists.num_eos_ids) ? lists.eos_ids[threadIdx.x] : kNoToken,
          threadIdx.x < min(32, row.num_stop_ids) ? lists.stop_ids[threadIdx.x] : kNoToken};
}

__global__ void __launch_bounds__(kThreads, 2) kernel(const __grid_constant__ IzarSampleArgs a) {
  extern __shared__ __align__(128) unsigned char memory[];
  Block block = block_of({a.logits, a.logits_stride, a.rows.vocab_size, a.slice_len}, memory);
  init_copies(block);
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  // Asked for together; padding names row 0. Rows are asked for two samples ahead, their states one.
  const uint32_t stride = gridDim.y;
  const uint32_t num_samples = *a.num_samples;
  const auto row_at = [&a](uint32_t index) { return index < a.num_grid_samples ? a.sample_rows[index] : 0; };
  uint32_t row_index = row_at(blockIdx.y), next_row = row_at(blockIdx.y + stride);
  const uint64_t step = *a.step;
  if (blockIdx.y >= num_samples) return;
  copy_slice(block, block.logits);
  ptx::cluster_arrive_release();
  uint32_t word = word_of(a, row_index);
  for (uint32_t index = blockIdx.y; index < num_samples; index += stride) {
    put_word(block.shared, word);
    const bool has_next = index + stride < num_samples;
    const float* next_logits = block.logits + size_t{stride} * a.logits_stride;
    block.next_logits = has_next ? next_logits : nullptr;
    const uint32_t present_row = row_index;
    row_index = next_row;
    next_row = row_at(index + 2 * stride);
    word = has_next ? word_of(a, row_index) : 0;
    __syncthreads();
    if (index == blockIdx.y) ptx::cluster_wait_acquire();  // all blocks are there
    run(block, sample_of(a, block, index, present_row, step));
    block.logits = next_logits;
    __syncthreads();
  }
  sync<Cluster>();  // block 0 may still read the others' lists
}

}  // namespace

extern "C" int32_t izar_sample_clusters(uint32_t slice_len, uint32_t* count) {
  return resident_clusters(kernel, slice_len, count);
}

extern "C" int32_t izar_sample(const IzarSampleArgs* args, cudaStream_t stream) {
  return launch_clusters(kernel, args->slice_len, min(args->num_grid_samples, args->max_clusters), stream, *args);
}
