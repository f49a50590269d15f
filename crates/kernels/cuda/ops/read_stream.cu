// read_stream: reads memory once and keeps nothing; its rate is the ceiling that decode kernels are held against.
//   in  [count] 16-byte vectors
//   out [1]     u32, written only if all of in folds to a value it does not have
// Grid 1056, 512 threads, four independent loads in flight a thread.  Bound: HBM bytes = 16 * count.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

__device__ uint32_t fold(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

__global__ void kernel(const uint4* in, uint64_t count, uint32_t* out) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = __ldcs(in + i);
    const uint4 b = __ldcs(in + i + stride);
    const uint4 c = __ldcs(in + i + 2 * stride);
    const uint4 d = __ldcs(in + i + 3 * stride);
    sum ^= fold(a) ^ fold(b) ^ fold(c) ^ fold(d);
  }
  // Keeps the loads: the compiler cannot know that this never holds.
  if (sum == 0x9E3779B9) *out = sum;
}

}  // namespace

extern "C" int32_t izar_read_stream(const void* in, uint64_t bytes, uint32_t* out, cudaStream_t stream) {
  kernel<<<1056, 512, 0, stream>>>(static_cast<const uint4*>(in), bytes / 16, out);
  return cudaGetLastError();
}
