// score_tokens: log-probabilities and rank of given tokens, and the likeliest ones in their place.
//   logits    [num_rows, vocab_size]   f32, row stride logits_stride; not changed
//   tokens    [num_rows]               u32, pinned host memory
//   scores    [num_rows]               pinned host memory
//   logprobs  [num_rows, 1 + num_top]  pinned host memory: the token's, then the likeliest ones' in falling order
// A row of logits with a NaN, or without one above -inf, has no score. Grid (7, clusters that are resident at once, or rows),
// 512 threads; clusters and slices as in sample.cu. Exact but for the values (1e-5).
// Bound: bytes = 8 * num_rows * vocab_size, from L2 as far as they fit there.
#include <cuda_runtime.h>

#include <cstdint>

#include "../ptx/grid.cuh"
#include "../sampler/logprobs.cuh"
#include "../sampler/slices.cuh"
#include "../sampler/state.cuh"

// Mirrored by TokenScore.
struct IzarTokenScore {
  uint32_t is_scored;
  uint32_t rank;  // from 1
};

// Mirrored by score_tokens::Args.
struct IzarScoreTokensArgs {
  const float* logits;
  const uint32_t* tokens;
  IzarTokenScore* scores;
  izar::sampler::Logprob* logprobs;
  uint32_t logits_stride;
  uint32_t vocab_size;
  uint32_t num_rows;
  uint32_t num_top;
  uint32_t slice_len;
  uint32_t reserved;
};
static_assert(sizeof(IzarScoreTokensArgs) == 56);

namespace {

using namespace izar::sampler;
namespace ptx = izar::ptx;

// Scores the row in the slices. All blocks of the cluster.
__device__ void run(Block& block, const IzarScoreTokensArgs& a, uint32_t index, uint32_t token) {
  block.is_raw = true;
  const Best best = load(block, nullptr);
  const uint64_t first = all_reduce<Cluster>(block, best.packed(block), Larger{});
  const uint32_t key = static_cast<uint32_t>(first >> 32);
  const bool is_scored = key != kNanKey && key != rising_key(-INFINITY);
  uint32_t rank = 0;
  if (is_scored) {
    Logprob* out = a.logprobs + size_t{index} * (1 + a.num_top);
    rank = write_logprobs(block, {min(a.num_top, min(a.vocab_size, kMaxTop)), a.vocab_size, out}, token);
  }
  __syncthreads();
  request_next(block);
  if (block.rank == 0 && threadIdx.x == 0) a.scores[index] = {is_scored, rank};
}

__global__ void __launch_bounds__(kThreads, 2) kernel(const __grid_constant__ IzarScoreTokensArgs a) {
  extern __shared__ __align__(128) unsigned char memory[];
  Block block = block_of({a.logits, a.logits_stride, a.vocab_size, a.slice_len}, memory);
  init_copies(block);
  ptx::launch_dependents();
  uint32_t token = a.tokens[blockIdx.y];
  ptx::wait_for_previous_kernel();
  copy_slice(block, block.logits);
  sync<Cluster>();  // all blocks are there
  const uint32_t stride = gridDim.y;
  for (uint32_t index = blockIdx.y; index < a.num_rows; index += stride) {
    const bool has_next = index + stride < a.num_rows;
    const float* next_logits = block.logits + size_t{stride} * a.logits_stride;
    block.next_logits = has_next ? next_logits : nullptr;
    const uint32_t present = token;
    token = has_next ? a.tokens[index + stride] : 0;
    run(block, a, index, present);
    block.logits = next_logits;
    __syncthreads();
  }
  sync<Cluster>();  // block 0 may still read the others' lists
}

}  // namespace

extern "C" int32_t izar_score_tokens(const IzarScoreTokensArgs* args, cudaStream_t stream) {
  uint32_t resident = 0;
  const cudaError_t code = resident_clusters(kernel, args->slice_len, &resident);
  if (code != cudaSuccess) return code;
  return launch_clusters(kernel, args->slice_len, min(args->num_rows, max(resident, 1u)), stream, *args);
}
