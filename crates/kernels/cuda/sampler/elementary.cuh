// exp, ln, the Gumbel transform and Philox, bit for bit those of the engine's CPU sampler.
//
// Every function is a fixed sequence of correctly rounded single-precision operations and of integer operations; the
// intrinsics keep the compiler from contracting a product and a sum into one rounding. The definition is the module
// `sampling` of the crate izar-engine: change both or neither.
#pragma once
#include <cstdint>

namespace izar::sampler {

__device__ __forceinline__ float times_plus(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }

// e^z for z <= 0; e^-87 below that.
__device__ __forceinline__ float exp_nonpositive(float z) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  z = z > -87.0f ? z : -87.0f;
  const float rounded = times_plus(z, 1.44269504088896340736f, kRound);
  const float n = __fsub_rn(rounded, kRound);
  float r = __fsub_rn(z, __fmul_rn(n, 0.6933594f));
  r = __fsub_rn(r, __fmul_rn(n, -2.1219444e-4f));
  float p = 1.3926184e-3f;
  p = times_plus(p, r, 8.363179e-3f);
  p = times_plus(p, r, 4.1666556e-2f);
  p = times_plus(p, r, 1.6666576e-1f);
  p = times_plus(p, r, 0.5f);
  float mantissa = __fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r);
  mantissa = __fadd_rn(mantissa, 1.0f);
  const uint32_t power = (__float_as_uint(rounded) << 23) + 0x3F800000u;
  return __fmul_rn(mantissa, __uint_as_float(power));
}

// e^z in units of 2^-30, rounded.
__device__ __forceinline__ uint32_t mass(float z) {
  return static_cast<uint32_t>(__float2int_rz(times_plus(exp_nonpositive(z), 1073741824.0f, 0.5f)));
}

// 2 atanh(s) for |s| <= 1/3.
__device__ __forceinline__ float twice_atanh(float s) {
  const float t = __fmul_rn(s, s);
  float p = 1.1612461e-1f;
  p = times_plus(p, t, 1.0853231e-1f);
  p = times_plus(p, t, 1.4296183e-1f);
  p = times_plus(p, t, 1.9999853e-1f);
  p = times_plus(p, t, 3.3333334e-1f);
  const float s2 = __fadd_rn(s, s);
  return __fadd_rn(s2, __fmul_rn(s2, __fmul_rn(t, p)));
}

// ln(x) for positive normal x.
__device__ __forceinline__ float ln_positive(float x) {
  constexpr uint32_t kThreeQuarters = 0x3F400000;
  const uint32_t above = __float_as_uint(x) - kThreeQuarters;
  const float n = __int2float_rn(static_cast<int32_t>(above) >> 23);
  const float m = __uint_as_float((above & 0x007FFFFF) + kThreeQuarters);
  const float s = __fdiv_rn(__fsub_rn(m, 1.0f), __fadd_rn(m, 1.0f));
  return __fadd_rn(__fadd_rn(__fmul_rn(n, -2.1219444e-4f), twice_atanh(s)), __fmul_rn(n, 0.6933594f));
}

constexpr float kMaxGumbel = 22.9f;

__device__ __forceinline__ float gumbel(uint32_t word) {
  constexpr float kWord = 1.0f / 4294967296.0f;
  constexpr float kHalfWord = 1.0f / 8589934592.0f;
  float exponential;
  if (word < 1u << 31) {
    const float v = times_plus(__uint2float_rn(word), kWord, kHalfWord);
    exponential = twice_atanh(__fdiv_rn(v, __fsub_rn(2.0f, v)));
  } else {
    exponential = -ln_positive(times_plus(__uint2float_rn(~word), kWord, kHalfWord));
  }
  return -ln_positive(exponential);
}

// At least gumbel(word): the bits of a float read as an integer are a lower bound of its base-2 logarithm.
__device__ __forceinline__ float gumbel_upper_bound(uint32_t word) {
  constexpr float kLn2 = 0.69314718055994530942f;
  const float half = __int2float_rn(static_cast<int32_t>(word >> 1));
  const float bits = __int2float_rn(__float_as_int(half));
  return times_plus(bits, -kLn2 / 8388608.0f, 158.0f * kLn2 + 1e-4f);
}

// Philox4x32-10: the words of tokens 4 * counter to 4 * counter + 3 at `position`.
__device__ __forceinline__ void philox(uint32_t counter, uint32_t position, uint32_t key0, uint32_t key1,
                                       uint32_t (&words)[4]) {
  uint32_t a = counter, b = position, c = 0, d = 0;
#pragma unroll
  for (uint32_t round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{a} * 0xD2511F53u;
    const uint64_t q = uint64_t{c} * 0xCD9E8D57u;
    a = static_cast<uint32_t>(q >> 32) ^ b ^ key0;
    b = static_cast<uint32_t>(q);
    c = static_cast<uint32_t>(p >> 32) ^ d ^ key1;
    d = static_cast<uint32_t>(p);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  words[0] = a;
  words[1] = b;
  words[2] = c;
  words[3] = d;
}

// Keys that order floats as unsigned integers do; both zeros are the same. No float but NaN reaches kNanKey.
constexpr uint32_t kNanKey = 0xFFFFFFFF;

__device__ __forceinline__ uint32_t rising_key(float x) {
  const uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ float value_of_rising_key(uint32_t key) {
  return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

}  // namespace izar::sampler
