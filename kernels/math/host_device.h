// SPDX-License-Identifier: Apache-2.0
// STOCH_HD marks a function that host and device compile from the same source; the IEEE primitives both have.
//
// Always inlined on the host: files of one binary are compiled for different instruction sets, and an out-of-line copy
// chosen by the linker from an AVX-512 file would fault on a machine without it.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define STOCH_HD __host__ __device__ __forceinline__
#else
#define STOCH_HD __attribute__((always_inline)) inline
#endif

namespace stoch {

#if defined(__CUDA_ARCH__)
STOCH_HD float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
STOCH_HD double Fma(double a, double b, double c) { return __fma_rn(a, b, c); }
STOCH_HD float Rint(float x) { return rintf(x); }
STOCH_HD double Rint(double x) { return rint(x); }
STOCH_HD float Sqrt(float x) { return __fsqrt_rn(x); }
STOCH_HD uint64_t MulHigh(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
#else
// One rounding each; round half to even (the default rounding mode, which nothing in this project changes).
STOCH_HD float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
STOCH_HD double Fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
STOCH_HD float Rint(float x) { return __builtin_rintf(x); }
STOCH_HD double Rint(double x) { return __builtin_rint(x); }
STOCH_HD float Sqrt(float x) { return __builtin_sqrtf(x); }
// The upper half of a 128-bit product.
STOCH_HD uint64_t MulHigh(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}
#endif

}  // namespace stoch
