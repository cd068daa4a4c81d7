// SPDX-License-Identifier: Apache-2.0
// The AVX-512 variant's functions (contracts in simd.h), and what its files share.
//
// Files built for an instruction set must not make out-of-line copies of functions that other files use: the linker
// keeps one copy, and a machine without AVX-512 would run it. So they call nothing of the standard library and of ours
// only what is always inlined or has internal linkage.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/simd/simd.h"

namespace stoch::cpu::avx512 {

// Lanes below n of 16.
__attribute__((always_inline)) inline __mmask16 LaneMask(int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1u);
}

// +1 or -1 for each code, 0 for code 0, whose count is 0.
__attribute__((always_inline)) inline __m512i Signs(__m512i codes) {
  return _mm512_max_epi8(_mm512_min_epi8(codes, _mm512_set1_epi8(1)), _mm512_set1_epi8(-1));
}

// 16-bit sums in unpack order (rows 0..7, 16..23, .. and 8..15, 24..31, ..) to 32-bit sums in row order.
__attribute__((always_inline)) inline void Widen(__m512i low, __m512i high, bool add, int32_t* acc) {
  const __m512i first = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high);
  const __m512i second = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high);
  __m512i sums[4] = {_mm512_cvtepi16_epi32(_mm512_castsi512_si256(first)),
                     _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(first, 1)),
                     _mm512_cvtepi16_epi32(_mm512_castsi512_si256(second)),
                     _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(second, 1))};
  for (int i = 0; i < 4; ++i) {
    if (add) sums[i] = _mm512_add_epi32(sums[i], _mm512_loadu_si512(acc + 16 * i));
    _mm512_storeu_si512(acc + 16 * i, sums[i]);
  }
}

// With VBMI, which only sc_avx512.cc is built for, and without.
void ScBlockVbmi(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t first_dim, int64_t dims,
                 const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc);
void ScBlockBw(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t first_dim, int64_t dims,
               const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc);
extern const PanelLoops kPanelBw, kPanelVbmi;  // panel_avx512.cc
void SumByGates(const GateCall& call);
void ScDequantize(const int32_t* acc, float gain, float scale_a, const float* scale_b, float* y);
uint32_t MaxAbsBits(const float* x, int64_t n);
void Quantize(const float* x, int64_t n, float scale, int q_max, uint8_t* codes);

void DotRows(const float* x, int64_t x_stride, int64_t num_x, const ExactRows& w, int64_t num_w, int64_t cols,
             float* out, int64_t out_stride, bool add);
void WeightedSum(const float* p, int64_t n, const float* const* v, int64_t dims, float* out);
extern const FixedLoops kFixed, kFixedVnni;  // fixed/avx512.cc; fixed/avx512_vnni.cc

}  // namespace stoch::cpu::avx512
