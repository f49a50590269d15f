// reference_attention: what paged_decode_attention computes, plainly and in f64. The oracle of its tests.
// Shapes as in paged_decode_attention.cu; out [num_seqs, num_heads, head_dim] f64, dense; rows of length 0 are skipped.
// Grid (num_heads, num_seqs), one warp; a lane holds every 32nd dim. Requires head_dim <= 128.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

// Mirrored by ffi::ReferenceAttentionArgs.
struct IzarReferenceAttentionArgs {
  const __nv_bfloat16* q;
  const __nv_bfloat16* k_cache;
  const __nv_bfloat16* v_cache;
  const uint32_t* block_table;
  const uint32_t* seq_lens;
  double* out;
  uint32_t num_seqs;
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t max_blocks_per_seq;
  uint32_t q_stride;
  uint32_t window;
  float scale;
};
static_assert(sizeof(IzarReferenceAttentionArgs) == 80);

namespace {

__global__ void kernel(const IzarReferenceAttentionArgs a) {
  const uint32_t head = blockIdx.x;
  const uint32_t seq = blockIdx.y;
  const uint32_t end = a.seq_lens[seq];
  const uint32_t begin = a.window != 0 && end > a.window ? end - a.window : 0;
  if (end == 0) return;
  const __nv_bfloat16* q = a.q + size_t{seq} * a.q_stride + head * a.head_dim;
  double max = -INFINITY;
  double sum = 0;
  double out[4] = {};
  for (uint32_t position = begin; position < end; ++position) {
    const uint32_t block = a.block_table[size_t{seq} * a.max_blocks_per_seq + position / 16];
    const size_t row = (size_t{block} * 16 + position % 16) * a.num_kv_heads + head / (a.num_heads / a.num_kv_heads);
    double score = 0;
    for (uint32_t d = threadIdx.x; d < a.head_dim; d += 32) {
      score += static_cast<double>(__bfloat162float(q[d])) * __bfloat162float(a.k_cache[row * a.head_dim + d]);
    }
    for (uint32_t offset = 16; offset > 0; offset /= 2) score += __shfl_xor_sync(0xFFFFFFFF, score, offset);
    score *= a.scale;
    const double new_max = fmax(max, score);
    const double shrink = exp(max - new_max);
    const double weight = exp(score - new_max);
    max = new_max;
    sum = sum * shrink + weight;
    for (uint32_t i = 0; i * 32 + threadIdx.x < a.head_dim; ++i) {
      out[i] = out[i] * shrink + weight * __bfloat162float(a.v_cache[row * a.head_dim + i * 32 + threadIdx.x]);
    }
  }
  double* to = a.out + (size_t{seq} * a.num_heads + head) * a.head_dim;
  for (uint32_t i = 0; i * 32 + threadIdx.x < a.head_dim; ++i) to[i * 32 + threadIdx.x] = out[i] / sum;
}

}  // namespace

extern "C" int32_t izar_reference_attention(const IzarReferenceAttentionArgs* args, cudaStream_t stream) {
  kernel<<<dim3(args->num_heads, args->num_seqs), 32, 0, stream>>>(*args);
  return cudaGetLastError();
}
