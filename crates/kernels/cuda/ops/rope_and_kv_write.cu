// rope_and_kv_write: finishes the heads of a fused qkv row: optional RMS norm of query and key heads, rotation; queries
// stay in place, keys and values go to the paged cache.
//   qkv        [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim] bf16, row stride qkv_stride; queries are
//              overwritten, keys and values left as they are
//   q_norm, k_norm [head_dim]               bf16, or null: no norm
//   cosines, sines [max_len, rotary_dim / 2] f32
//   positions  [num_tokens]                 u32; a position past the tables makes the token's queries and keys NaN
//   kv_slots   [num_tokens]                 u32, block * 16 + offset; one outside the cache: nothing is written
//   k_cache, v_cache [num_slots, num_kv_heads, head_dim] bf16
// Pairs are (i, i + rotary_dim / 2), or (2 i, 2 i + 1) if interleaved; features from rotary_dim on pass through.
// 8 lanes a head (head_dim / 16 of them at work), 32 heads a block. Requires head_dim % 16 == 0 and <= 128,
// rotary_dim % 16 == 0, 16-byte aligned rows. f32 inside, one rounding.
// Bound: HBM bytes = 2 * num_tokens * head_dim * (2 * num_heads + 4 * num_kv_heads); at decode sizes the latency of
// position, angle, store.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../common/launch.h"
#include "../ptx/grid.cuh"

// Mirrored by rope_and_kv_write::Args.
struct IzarRopeAndKvWriteArgs {
  __nv_bfloat16* qkv;
  const __nv_bfloat16* q_norm;
  const __nv_bfloat16* k_norm;
  const float* cosines;
  const float* sines;
  const uint32_t* positions;
  const uint32_t* kv_slots;
  __nv_bfloat16* k_cache;
  __nv_bfloat16* v_cache;
  uint32_t num_tokens;
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t rotary_dim;
  uint32_t interleaved;
  uint32_t max_len;
  uint32_t num_slots;
  uint32_t qkv_stride;
  float epsilon;
};
static_assert(sizeof(IzarRopeAndKvWriteArgs) == 112);

namespace {

namespace ptx = izar::ptx;

using Args = IzarRopeAndKvWriteArgs;

constexpr uint32_t kThreads = 256;
constexpr uint32_t kLanes = 8;  // a head

// A lane's 16 elements of a head: first[i] and second[i] rotate together.
struct Elements {
  float first[8];
  float second[8];
};

// Where they lie: two runs of 8. With interleaved pairs the two runs are neighbours and hold 4 pairs each.
struct Place {
  uint32_t first;
  uint32_t second;
  bool rotates;
};

__device__ __forceinline__ Place place_of(const Args& a, uint32_t lane) {
  const uint32_t half = a.rotary_dim / 2;
  const bool rotates = 8 * lane < half;
  if (rotates && !a.interleaved) return {8 * lane, half + 8 * lane, true};
  return {16 * lane, 16 * lane + 8, rotates};
}

__device__ __forceinline__ void unpack(float (&to)[8], uint4 words) {
  const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(pairs[i] << 16);
    to[2 * i + 1] = __uint_as_float(pairs[i] & 0xFFFF0000);
  }
}

__device__ __forceinline__ Elements unpack(uint4 low, uint4 high) {
  Elements e;
  unpack(e.first, low);
  unpack(e.second, high);
  return e;
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ uint4 pack(const float (&v)[8]) {
  return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}

__device__ __forceinline__ void normalise(Elements& e, const Elements& weight, uint32_t head_dim, float epsilon) {
  float squares = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) squares += e.first[i] * e.first[i] + e.second[i] * e.second[i];
#pragma unroll
  for (uint32_t offset = kLanes / 2; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xFFFFFFFF, squares, offset);
  const float inverse = rsqrtf(squares / head_dim + epsilon);
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    e.first[i] *= inverse * weight.first[i];
    e.second[i] *= inverse * weight.second[i];
  }
}

__device__ __forceinline__ void turn(float& x, float& y, float cosine, float sine) {
  const float turned = x * cosine - y * sine;
  y = y * cosine + x * sine;
  x = turned;
}

// Angles 8 * lane .. + 8 of the token's position.
__device__ __forceinline__ void rotate(Elements& e, const float (&cosines)[8], const float (&sines)[8],
                                       bool interleaved) {
  if (!interleaved) {
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) turn(e.first[i], e.second[i], cosines[i], sines[i]);
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    turn(e.first[2 * i], e.first[2 * i + 1], cosines[i], sines[i]);
    turn(e.second[2 * i], e.second[2 * i + 1], cosines[4 + i], sines[4 + i]);
  }
}

__device__ __forceinline__ void load8(float (&to)[8], const float* from) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
  to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

__device__ __forceinline__ uint4 load(const __nv_bfloat16* at) { return *reinterpret_cast<const uint4*>(at); }

__device__ __forceinline__ void store(__nv_bfloat16* at, uint4 v) { *reinterpret_cast<uint4*>(at) = v; }

// Two kernels, because a block that waits holds its registers beside the blocks of the kernels before and after it.
template <bool kNorms>
__global__ void __launch_bounds__(kThreads) kernel(const Args a) {
  ptx::launch_dependents();
  const uint32_t heads_per_token = a.num_heads + 2 * a.num_kv_heads;
  const uint32_t item = (blockIdx.x * kThreads + threadIdx.x) / kLanes;
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t token = item / heads_per_token;
  const uint32_t head = item % heads_per_token;
  const bool is_query = head < a.num_heads;
  const bool is_value = head >= a.num_heads + a.num_kv_heads;
  // Lanes past the head or the batch stay for the shuffles.
  const bool active = token < a.num_tokens && 16 * lane < a.head_dim;
  const Place place = is_value ? Place{16 * lane, 16 * lane + 8, false} : place_of(a, lane);
  const __nv_bfloat16* norm = is_value ? nullptr : is_query ? a.q_norm : a.k_norm;
  uint4 low = {};
  uint4 high = {};
  uint4 low_weight = {};
  uint4 high_weight = {};
  if (kNorms && active && norm != nullptr) {
    low_weight = load(norm + place.first);
    high_weight = load(norm + place.second);
  }

  ptx::wait_for_previous_kernel();
  uint32_t position = 0;
  uint32_t kv_slot = 0xFFFFFFFF;
  __nv_bfloat16* row = a.qkv + size_t{token} * a.qkv_stride + head * a.head_dim;
  if (active) {
    position = a.positions[token];
    if (!is_query) kv_slot = a.kv_slots[token];
    low = load(row + place.first);
    high = load(row + place.second);
  }
  Elements e = unpack(low, high);
  // A warp holds heads of every kind, and all its lanes take part in the sums.
  if constexpr (kNorms) {
    Elements normed = e;
    normalise(normed, unpack(low_weight, high_weight), a.head_dim, a.epsilon);
    if (norm != nullptr) e = normed;
  }
  if (!is_value) {
    float cosines[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    float sines[8] = {};
    if (active && place.rotates) {
      const size_t angle = size_t{min(position, a.max_len - 1)} * (a.rotary_dim / 2) + 8 * lane;
      load8(cosines, a.cosines + angle);
      load8(sines, a.sines + angle);
    }
    if (position >= a.max_len) {
#pragma unroll
      for (float& cosine : cosines) cosine = __int_as_float(0x7FFFFFFF);
    }
    rotate(e, cosines, sines, a.interleaved && place.rotates);
    low = pack(e.first);
    high = pack(e.second);
  }
  if (!active) return;
  if (is_query) {
    store(row + place.first, low);
    store(row + place.second, high);
    return;
  }
  if (kv_slot >= a.num_slots) return;
  const uint32_t kv_head = (head - a.num_heads) % a.num_kv_heads;
  __nv_bfloat16* to =
      (is_value ? a.v_cache : a.k_cache) + (size_t{kv_slot} * a.num_kv_heads + kv_head) * a.head_dim;
  store(to + place.first, low);
  store(to + place.second, high);
}

}  // namespace

extern "C" int32_t izar_rope_and_kv_write(const Args* args, cudaStream_t stream) {
  const uint64_t items = uint64_t{args->num_tokens} * (args->num_heads + 2 * args->num_kv_heads);
  const uint32_t blocks = static_cast<uint32_t>((items * kLanes + kThreads - 1) / kThreads);
  auto* const with_or_without = args->q_norm != nullptr || args->k_norm != nullptr ? kernel<true> : kernel<false>;
  return izar::launch_overlapped(with_or_without, blocks, kThreads, 0, stream, *args);
}
