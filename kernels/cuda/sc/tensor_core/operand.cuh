// SPDX-License-Identifier: Apache-2.0
// Weights as tensor core operands, made in registers: thermometers, complemented where negative, and the int8 factors
// of the sign correction.
//
// With ' for "complemented where negative", r the weight's rank, X and W the bits, u = [x < 0], v = [w < 0]:
//   pop(W' & X') = s_w s_x pop(W & X) + u s_w r + v pop(X')
// so the signed count is pop(W' & X') + u * (-s_w r - v) + v * (u - pop(X')); every factor fits in a signed byte.
// Source: docs/fast-kernels.md#prompts.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/device/mma.cuh"

namespace stoch::cuda {

// Ranks of four codes, in the bytes of a word.
struct PackedRanks {
  uint32_t packed;
  // By the multiply pipe, as far as it goes: the ALU pipe has the shifts to do.
  template <int kByte>
  __device__ __forceinline__ uint32_t rank() const {
    return __dp4a(packed, 1u << (8 * kByte), 0u);
  }
};

// Ranks of four sign-magnitude codes where stoc_len is 32 * kWords and RanksAreDirect (kernels/plan/sc_traits.h), of the
// block of 16 dimensions that is `block` of its chunk. Of the ranks of 128 cycles the first 32 have every fourth, the first
// 64 every second, the first 96 those and a fourth more; which fourth follows from the scrambling of the dimension.
template <int kWords>
__device__ __forceinline__ PackedRanks DirectRanks(uint32_t codes, [[maybe_unused]] int block = 0) {
  static_assert(kWords >= 1 && kWords <= 4);
  const uint32_t q = codes & 0x7f7f7f7f;
  const uint32_t rank = q + ((q >> 6) & 0x01010101);
  if constexpr (kWords == 4) return {rank};
  const uint32_t scrambled = (static_cast<uint32_t>(block) & 2) * 0x01010101u;  // of masks 32 to 63
  if constexpr (kWords == 1) return {(rank + 0x03030303 - scrambled) >> 2 & 0x3f3f3f3f};
  const uint32_t half = (rank + 0x01010101) >> 1 & 0x7f7f7f7f;
  if constexpr (kWords == 2) return {half};
  return {half + ((rank + scrambled) >> 2 & 0x3f3f3f3f)};
}

// a * b + c by an IMAD: on the FMA pipe, which is idle while the ALU pipe makes thermometers. With a `b` known at
// compile time the compiler would make it an add on the ALU pipe.
__device__ __forceinline__ uint32_t MultiplyAdd(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("mad.lo.u32 %0, %1, %2, %3;\n" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

// Word kWord of kWords of the thermometer of code kByte. A clamped funnel shift of (~sign : sign) makes the ones and
// the complement in one instruction. minus_one: ~0, opaque to the compiler.
template <int kByte, int kWord, int kWords, typename Ranks>
__device__ __forceinline__ uint32_t ThermometerWord(uint32_t codes, const Ranks& ranks, uint32_t minus_one) {
  const uint32_t sign = static_cast<uint32_t>(__dp4a(static_cast<int>(ByteSigns(codes)), 1 << (8 * kByte), 0));
  const uint32_t rank = ranks.template rank<kByte>();
  const uint32_t rest = MultiplyAdd(sign, minus_one, minus_one);  // ~sign
  if constexpr (kWord == 0) return __funnelshift_lc(rest, sign, rank);
  // The last word from the top: ranks never exceed 32 * kWords, so nothing is to be clamped at 0.
  if constexpr (kWord + 1 == kWords) return __funnelshift_rc(rest, sign, MultiplyAdd(rank, minus_one, 32 * kWords));
  return __funnelshift_lc(rest, sign, static_cast<uint32_t>(__viaddmax_s32(static_cast<int>(rank), -32 * kWord, 0)));
}

// The four registers of step kStep of a 16-row operand: units 2 * kStep and 2 * kStep + 1 (streams.h) of rows g, g
// + 8.
template <int kWords, int kStep, typename Ranks>
__device__ __forceinline__ void StepOperand(uint32_t (&a)[4], const uint32_t (&codes)[2], const Ranks (&ranks)[2],
                                            uint32_t minus_one) {
  constexpr int kFirst = 2 * kStep, kSecond = 2 * kStep + 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    a[i] = ThermometerWord<kFirst / kWords, kFirst % kWords, kWords>(codes[i], ranks[i], minus_one);
    a[2 + i] = ThermometerWord<kSecond / kWords, kSecond % kWords, kWords>(codes[i], ranks[i], minus_one);
  }
}

// Factors of u = [x < 0]: -s_w r - v, four bytes. r - 1 is (r + 127) ^ 128 in bytes that cannot carry (r <= 128).
__device__ __forceinline__ uint32_t CorrectionRanks(uint32_t signs, uint32_t ranks) {
  return ((ranks + 0x7f7f7f7f) ^ 0x80808080) ^ ~signs;
}
// The byte operand of the sign correction: CorrectionRanks against unit 4 * words, v against unit 4 * words + 1.
template <typename Ranks>
__device__ __forceinline__ void CorrectionOperand(uint32_t (&a)[4], const uint32_t (&codes)[2],
                                                  const Ranks (&ranks)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t signs = ByteSigns(codes[i]);
    a[i] = CorrectionRanks(signs, ranks[i].packed);
    a[2 + i] = signs & 0x01010101;
  }
}

// f(std::integral_constant<int, i>) for i = 0..kCount-1.
template <int kCount, typename F>
__device__ __forceinline__ void Unrolled(const F& f) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) { (f(std::integral_constant<int, kIndex>()), ...); }
  (std::make_integer_sequence<int, kCount>());
}

}  // namespace stoch::cuda
