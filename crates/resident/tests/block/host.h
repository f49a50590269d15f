// What device code needs to be compiled by a C++ compiler: qualifiers and the arithmetic intrinsics of elementary.cuh.
#pragma once
#include <cstdint>
#include <cstring>

#define __device__
#define __forceinline__ inline
#define IZAR_DEVICE
#define IZAR_DEVICE_FUNCTION

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __int2float_rn(int32_t x) { return static_cast<float>(x); }
inline float __uint2float_rn(uint32_t x) { return static_cast<float>(x); }
inline int32_t __float2int_rz(float x) { return static_cast<int32_t>(x); }
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline int32_t __float_as_int(float x) { return static_cast<int32_t>(__float_as_uint(x)); }
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
