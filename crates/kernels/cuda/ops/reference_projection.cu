// reference_projection: what decode_projection computes, plainly and in f64. The oracle of its tests, not a fast path.
//   weight [num_rows, depth] bf16; x [num_tokens, depth] bf16, row stride x_stride
//   y      [num_tokens, num_rows] f64, dense; with swiglu [num_tokens, num_rows / 2]
// Grid (outputs / 128, num_tokens), 128 threads, one output a thread.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

struct Args {
  const __nv_bfloat16* weight;
  const __nv_bfloat16* x;
  double* y;
  uint32_t num_rows;
  uint32_t depth;
  uint32_t num_tokens;
  uint32_t x_stride;
  uint32_t swiglu;
};

__device__ double dot(const __nv_bfloat16* a, const __nv_bfloat16* b, uint32_t depth) {
  double sum = 0;
  for (uint32_t k = 0; k < depth; ++k) sum += static_cast<double>(__bfloat162float(a[k])) * __bfloat162float(b[k]);
  return sum;
}

__global__ void kernel(const Args a) {
  const uint32_t outputs = a.swiglu ? a.num_rows / 2 : a.num_rows;
  const uint32_t output = blockIdx.x * blockDim.x + threadIdx.x;
  if (output >= outputs) return;
  const __nv_bfloat16* x = a.x + size_t{blockIdx.y} * a.x_stride;
  double value = dot(a.weight + size_t{output} * a.depth, x, a.depth);
  if (a.swiglu) value = value / (1 + exp(-value)) * dot(a.weight + size_t{output + outputs} * a.depth, x, a.depth);
  a.y[size_t{blockIdx.y} * outputs + output] = value;
}

}  // namespace

extern "C" int32_t izar_reference_projection(const void* weight, const void* x, void* y, uint32_t num_rows, uint32_t depth,
                                             uint32_t num_tokens, uint32_t x_stride, uint32_t swiglu, cudaStream_t stream) {
  const Args args = {static_cast<const __nv_bfloat16*>(weight),
                     static_cast<const __nv_bfloat16*>(x),
                     static_cast<double*>(y),
                     num_rows,
                     depth,
                     num_tokens,
                     x_stride,
                     swiglu};
  const uint32_t outputs = swiglu ? num_rows / 2 : num_rows;
  kernel<<<dim3((outputs + 127) / 128, num_tokens), 128, 0, stream>>>(args);
  return cudaGetLastError();
}
