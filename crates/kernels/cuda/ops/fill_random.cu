// fill_random: dummy weights and test inputs, uniform in [-scale / 2, scale / 2).
//   out [count] bf16
// Grid 1024, 256 threads. Element i depends on seed and i alone. Bound: HBM bytes = 2 * count.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

// A finaliser of 32 bits: every input bit flips half the output bits.
__device__ uint32_t mix(uint32_t h) {
  h = (h ^ h >> 16) * 0x7feb352d;
  h = (h ^ h >> 15) * 0x846ca68b;
  return h ^ h >> 16;
}

__global__ void kernel(__nv_bfloat16* out, uint64_t count, uint32_t seed, float scale) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint32_t h = mix(mix(static_cast<uint32_t>(i) ^ seed * 0x9E3779B9u) ^ static_cast<uint32_t>(i >> 32));
    out[i] = __float2bfloat16(((h >> 8) * 0x1p-24f - 0.5f) * scale);
  }
}

}  // namespace

extern "C" int32_t izar_fill_random(void* out, uint64_t count, uint32_t seed, float scale, cudaStream_t stream) {
  kernel<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(out), count, seed, scale);
  return cudaGetLastError();
}
