// sample: from rows of logits and the state of their sequences to the next tokens.
//   logits       [num_samples, vocab_size]  f32, row stride logits_stride; not changed
//   sample_rows  [num_samples]              u32, the row of the sampler's state; distinct
//   last_tokens  [max_num_seqs]             u32, by row: what was sampled
//   records      [2, max_samples]           pinned host memory; half step % 2 is written
//   logprobs     [2, max_samples, 1 + 128]  pinned host memory
// num_samples and the step's number come from device memory; blocks of samples beyond it do nothing.
// Grid (cluster size, bucket's samples), 512 threads; a cluster samples a row, a slice of it in the shared memory of each
// block: logits are read once, twice for rows with logprobs. Requires at most 8 * 54,784 tokens. Bit for bit the
// definition in the module `sampling` of the crate izar-engine, but for the values of logprobs (1e-5).
// Bound: bytes = 4 * num_samples * vocab_size, from L2 as far as they fit there.
#include <cuda_runtime.h>

#include <cstdint>

#include "../ptx/grid.cuh"
#include "../ptx/memory.cuh"
#include "../sampler/block.cuh"
#include "../sampler/cut.cuh"
#include "../sampler/edit.cuh"
#include "../sampler/logprobs.cuh"
#include "../sampler/race.cuh"
#include "../sampler/state.cuh"

// Mirrored by ffi::SampleArgs.
struct IzarSampleArgs {
  izar::sampler::Rows rows;
  const float* logits;
  const uint32_t* num_samples;
  const uint64_t* step;
  const uint32_t* sample_rows;
  const uint32_t* eos_ids;
  uint32_t* last_tokens;
  izar::sampler::Record* records;
  izar::sampler::Logprob* logprobs;
  uint32_t logits_stride;
  uint32_t num_eos_ids;
  uint32_t max_model_len;
  uint32_t max_samples;
  uint32_t slice_len;  // tokens of a block, a multiple of 128
  uint32_t num_grid_samples;
  uint32_t num_blocks;  // of a cluster
  uint32_t reserved;
};
static_assert(sizeof(IzarSampleArgs) == 160);

namespace {

using namespace izar::sampler;
namespace ptx = izar::ptx;

constexpr uint32_t kSharedBytes = (sizeof(Shared) + 15) / 16 * 16;

struct Sampled {
  uint32_t token;
  uint32_t status;  // kToken, or why there is none
};

// What a row's blocks share.
struct Sample {
  const IzarSampleArgs& args;
  const Row& row;  // this block's copy
  Lists lists;
  uint32_t row_index;
  uint32_t place;  // among the records
  uint64_t step;
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

// Why no token is left: the model's logits, if they had none either or that was not looked at.
__device__ uint32_t nothing_left(Block& block, const Sample& sample, const Best& raw) {
  const Row& row = sample.row;
  const uint64_t raw_max = all_reduce(block, rising_key(raw.max), Larger{});
  const bool was_seen = row.num_top_logprobs >= 0 || (row.flags & kHasMask) || row.num_bad_words > 0 ||
                        masks_stop_ids(row, sample.lists);
  return was_seen && raw_max > rising_key(-INFINITY) ? kNothingAllowed : kNonFinite;
}

__device__ uint32_t sample_scaled(Block& block, const Row& row, float max, uint32_t likely, uint32_t vocab_size) {
  scale(block, max, row.scale);
  uint32_t max_key = row.max_key;
  if (row.top_k > 0 && row.top_k < vocab_size) max_key = cut_scaled<Counts>(block, max_key, row.top_k);
  if (row.top_p < 1.0f) max_key = cut_scaled<Masses>(block, max_key, row.top_p);
  return race(block, row, max_key, likely);
}

__device__ Sampled choose(Block& block, const Sample& sample) {
  const Row& row = sample.row;
  const bool has_mask = row.flags & kHasMask;
  const uint32_t* mask =
      sample.args.rows.masks + size_t{sample.row_index} * sample.args.rows.mask_words + block.begin / 32;
  const Best raw = load(block, has_mask ? mask : nullptr);
  Best best = raw;
  const bool has_sparse = has_sparse_edits(row, sample.lists);
  if (has_sparse) apply_sparse_edits(block, row, sample.lists);
  if (has_sparse || has_mask) {
    best = look(block);
    best.max_or_nan = larger_or_nan(best.max_or_nan, raw.max_or_nan);
  }
  ptx::cluster_wait_acquire();  // all blocks are there
  const uint64_t first = all_reduce(block, best.packed(block), Larger{});
  const uint32_t key = static_cast<uint32_t>(first >> 32);
  const uint32_t likely = ~static_cast<uint32_t>(first);
  if (key == kNanKey) return {0, kNonFinite};
  if (key == rising_key(-INFINITY)) return {0, nothing_left(block, sample, raw)};
  if (row.flags & kGreedy) return {likely, kToken};
  float max = value_of_rising_key(key);
  if (max == INFINITY) {
    level_infinite(block);
    max = 0;
  }
  return {sample_scaled(block, row, max, likely, sample.args.rows.vocab_size), kToken};
}

// Whether the token ends the sequence. All threads of block 0 call it.
__device__ uint32_t check_stop(const Sample& sample, uint32_t token) {
  const Row& row = sample.row;
  const Lists& lists = sample.lists;
  bool is_eos = false, is_stop = false;
  for (uint32_t i = threadIdx.x; i < lists.num_eos_ids; i += kThreads) is_eos |= lists.eos_ids[i] == token;
  for (uint32_t i = threadIdx.x; i < row.num_stop_ids; i += kThreads) is_stop |= lists.stop_ids[i] == token;
  is_eos = __syncthreads_or(is_eos);
  is_stop = __syncthreads_or(is_stop);
  const uint32_t num_generated = row.num_generated + 1;
  if (num_generated >= row.min_tokens) {
    if (is_eos && !(row.flags & kIgnoreEos)) return kEos;
    if (is_stop) return kStopToken;
  }
  if (num_generated >= row.max_tokens) return kMaxTokens;
  return uint64_t{row.prompt_len} + num_generated >= sample.args.max_model_len ? kContextEnd : kToken;
}

// Records the token in the state of its row.
__device__ void push(const Sample& sample, uint32_t token) {
  const Rows& rows = sample.args.rows;
  const size_t index = sample.row_index;
  const Row& row = sample.row;
  rows.rows[index].num_generated = row.num_generated + 1;
  rows.recent[index * rows.list_capacity + row.num_generated % rows.list_capacity] = token;
  sample.args.last_tokens[index] = token;
  if (!(row.flags & kCountsGenerated)) return;
  uint32_t& word = rows.seen[index * rows.mask_words + token / 32];
  uint32_t& count = rows.counts[index * rows.vocab_size + token];
  const uint32_t bit = 1u << token % 32;
  count = word & bit ? count + 1 : 1;
  word |= bit;
}

__device__ void publish(const Sample& sample, const Sampled& sampled, uint32_t rank, uint32_t num_logprobs) {
  Record& record = sample.args.records[sample.place];
  record.device_ns = ptx::global_timer_ns();
  record.token = sampled.token;
  record.status = sampled.status;
  record.rank = rank;
  record.num_logprobs = num_logprobs;
  // SYNC sample-ready: pairs with the acquire load in `DeviceSampler::is_ready`. Scope: system. Other threads' logprobs
  // were ordered before by the block's barrier.
  ptx::st_release_sys_u64(&record.ready, sample.step + 1);
}

// Writes the logprobs of the sampled token and of the likeliest ones; returns how many, and the rank.
__device__ uint32_t write_logprobs(Block& block, const Sample& sample, uint32_t token, uint32_t& rank) {
  const uint32_t vocab_size = sample.args.rows.vocab_size;
  const uint32_t num_top = min(static_cast<uint32_t>(sample.row.num_top_logprobs), min(vocab_size, kMaxTop));
  const float* row_logits = block.logits - block.begin;
  const float logit = row_logits[token];
  const float max = reload(block);
  const Normaliser normaliser = normalise(block, max, logit, rank);
  if (num_top > 0) list_top(block, max, num_top, vocab_size);
  if (block.rank != 0) return 0;
  Logprob* out = sample.args.logprobs + size_t{sample.place} * (1 + kMaxTop);
  if (threadIdx.x == 0) out[0] = {token, normaliser.logprob(logit)};
  write_top(block, row_logits, num_top, normaliser, out + 1);
  __syncthreads();
  return 1 + num_top;
}

__device__ void finish(Block& block, const Sample& sample, Sampled sampled) {
  uint32_t rank = 0, num_logprobs = 0;
  if (sampled.status == kToken && sample.row.num_top_logprobs >= 0) {
    num_logprobs = write_logprobs(block, sample, sampled.token, rank);
  }
  if (block.rank != 0) return;
  if (sampled.status == kToken) {
    sampled.status = check_stop(sample, sampled.token);
    if (threadIdx.x == 0) push(sample, sampled.token);
  }
  if (threadIdx.x == 0) publish(sample, sampled, rank, num_logprobs);
}

__device__ Block block_of(const IzarSampleArgs& a, unsigned char* memory) {
  const uint32_t rank = ptx::cluster_rank();
  const uint32_t begin = min(rank * a.slice_len, a.rows.vocab_size);
  const uint32_t num_tokens = min(a.slice_len, a.rows.vocab_size - begin);
  const float* row_logits = a.logits + size_t{blockIdx.y} * a.logits_stride;
  return {*reinterpret_cast<Shared*>(memory),
          reinterpret_cast<float*>(memory + kSharedBytes),
          row_logits + begin,
          rank,
          ptx::cluster_size(),
          begin,
          (num_tokens + 3) / 4,
          num_tokens,
          a.logits_stride % 4 == 0,
          0,
          0};
}

__global__ void __launch_bounds__(kThreads, 2) kernel(const __grid_constant__ IzarSampleArgs a) {
  extern __shared__ __align__(128) unsigned char memory[];
  Block block = block_of(a, memory);
  Shared& shared = block.shared;
  ptx::launch_dependents();
  ptx::wait_for_previous_kernel();
  // Asked for together; padding names row 0.
  const uint32_t num_samples = *a.num_samples;
  const uint32_t row_index = a.sample_rows[blockIdx.y];
  const uint64_t step = *a.step;
  if (blockIdx.y >= num_samples) return;
  request(block);
  ptx::cluster_arrive_release();
  if (threadIdx.x < sizeof(Row) / 4) {
    reinterpret_cast<uint32_t*>(&shared.row)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(&a.rows.rows[row_index])[threadIdx.x];
  }
  for (uint32_t i = threadIdx.x; i < 4 * kBins; i += kThreads) (&shared.bins[0][0][0])[i] = 0;
  __syncthreads();
  const uint32_t place = static_cast<uint32_t>(step % 2) * a.max_samples + blockIdx.y;
  const Sample sample = {a, shared.row, lists_of(a, shared.row, row_index), row_index, place, step};
  if (shared.row.flags & kBroken) {
    load(block, nullptr);  // a block must outlive its copies
    ptx::cluster_wait_acquire();
    if (block.rank == 0 && threadIdx.x == 0) publish(sample, {0, kRowBroken}, shared.row.error, 0);
    return;
  }
  finish(block, sample, choose(block, sample));
}

}  // namespace

extern "C" int32_t izar_sample(const IzarSampleArgs* args, cudaStream_t stream) {
  const uint32_t bytes = kSharedBytes + 4 * args->slice_len;
  // Costs nothing after the first call; also while a graph is captured.
  const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (code != cudaSuccess) return code;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {args->num_blocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args->num_blocks, args->num_grid_samples);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, *args);
}
