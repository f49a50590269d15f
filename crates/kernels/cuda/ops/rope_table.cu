// rope_table: cosines and sines of every position's angles.
//   inv_freq       [half]          f32, radians a position
//   cosines, sines [max_len, half] f32: of position * inv_freq[i], times factor
// Grid 1024, 256 threads. Run once, at load.  Bound: HBM bytes = 8 * max_len * half.
#include <cuda_runtime.h>

#include <cstdint>

namespace {

__global__ void kernel(const float* inv_freq, float* cosines, float* sines, uint32_t max_len, uint32_t half,
                       float factor) {
  const uint64_t count = uint64_t{max_len} * half;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float angle = static_cast<float>(i / half) * inv_freq[i % half];
    float sine;
    float cosine;
    sincosf(angle, &sine, &cosine);
    cosines[i] = cosine * factor;
    sines[i] = sine * factor;
  }
}

}  // namespace

extern "C" int32_t izar_rope_table(const float* inv_freq, float* cosines, float* sines, uint32_t max_len, uint32_t half,
                                   float factor, cudaStream_t stream) {
  kernel<<<1024, 256, 0, stream>>>(inv_freq, cosines, sines, max_len, half, factor);
  return cudaGetLastError();
}
