// mma.sync and what feeds it, one instruction per function.
#pragma once
#include <cstdint>

namespace izar::ptx {

// d[16, 8] += a[16, 16] * b[16, 8], bf16 in, f32 out.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit elements; lane i names row i % 8 of matrix i / 8, in shared memory.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&m)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address)
               : "memory");
}

// As above, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&m)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address)
               : "memory");
}

// Stores four 8 x 8 matrices, each transposed; lane i names row i % 8 of matrix i / 8, in shared memory.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t shared_address, const uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address), "r"(m[0]),
               "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
}

}  // namespace izar::ptx
