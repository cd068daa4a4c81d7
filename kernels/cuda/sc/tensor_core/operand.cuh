// SPDX-License-Identifier: Apache-2.0
// Weights as operand A of binary tensor core products, made in registers from codes: a weight of rank r becomes a
// thermometer, r ones followed by zeros, complemented if the weight is negative. The int8 factors of the sign
// correction are made here, too.
//
// Let W be a weight's thermometer and X an activation's stream, s_w and s_x their signs, W' and X' the same bits
// complemented if the sign is negative, u = [s_x < 0], v = [s_w < 0], pop the number of ones. Then
//   pop(W' & X') = s_w s_x pop(W & X) + u s_w r + v pop(X')
// so the signed count s_w s_x pop(W & X) is pop(W' & X') + u * (-s_w r - v) + v * (u - pop(X')). An int8 product adds
// the last two terms; each of their factors fits in a signed byte.
// Source: docs/fast-kernels.md#prompts.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/device/mma.cuh"

namespace stoch::cuda {

// The ranks of four codes.
struct PackedRanks {
  uint32_t packed;  // one rank a byte
  // The rank in byte kByte, extracted by dp4a on the multiply pipe because shifts of thermometers load the ALU pipe.
  template <int kByte>
  __device__ __forceinline__ uint32_t rank() const {
    return __dp4a(packed, 1u << (8 * kByte), 0u);
  }
};

// The ranks of four sign-magnitude codes by a formula, without a table. `block` is the index in its chunk of the block
// of 16 dimensions that the codes belong to.
// Requires: stoc_len = 32 * kWords and RanksAreDirect (kernels/plan/sc_traits.h).
// Reason: of the 128 positions in ascending order of source values, the first 32 cycles hold every fourth, the first 64
// cycles every second, and the first 96 cycles every second and another fourth of all. The scrambling of the dimension
// decides which fourth.
template <int kWords>
__device__ __forceinline__ PackedRanks DirectRanks(uint32_t codes, [[maybe_unused]] int block = 0) {
  static_assert(kWords >= 1 && kWords <= 4);
  const uint32_t q = codes & 0x7f7f7f7f;
  const uint32_t rank = q + ((q >> 6) & 0x01010101);
  if constexpr (kWords == 4) return {rank};
  // 2 in every byte if the block's dimensions have masks 32 to 63, else 0.
  const uint32_t scrambled = (static_cast<uint32_t>(block) & 2) * 0x01010101u;
  if constexpr (kWords == 1) return {(rank + 0x03030303 - scrambled) >> 2 & 0x3f3f3f3f};
  const uint32_t half = (rank + 0x01010101) >> 1 & 0x7f7f7f7f;
  if constexpr (kWords == 2) return {half};
  return {half + ((rank + scrambled) >> 2 & 0x3f3f3f3f)};
}

// a * b + c as one integer multiply-add on the FMA pipe, which is idle while the ALU pipe makes thermometers. `b` is
// ~0u in a variable: with a constant the compiler would emit an add on the ALU pipe.
__device__ __forceinline__ uint32_t MultiplyAdd(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("mad.lo.u32 %0, %1, %2, %3;\n" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

// Word kWord of kWords of the thermometer of the code in byte kByte of `codes`, complemented if the code is negative.
// One clamped funnel shift makes the ones and the complement; the high register of its pair is `sign` (0 or ~0), the
// low register ~sign.
// minus_one: ~0u, as a value that the compiler does not know to be constant (MultiplyAdd).
template <int kByte, int kWord, int kWords, typename Ranks>
__device__ __forceinline__ uint32_t ThermometerWord(uint32_t codes, const Ranks& ranks, uint32_t minus_one) {
  const uint32_t sign = static_cast<uint32_t>(__dp4a(static_cast<int>(ByteSigns(codes)), 1 << (8 * kByte), 0));
  const uint32_t rank = ranks.template rank<kByte>();
  const uint32_t rest = MultiplyAdd(sign, minus_one, minus_one);  // ~sign, as -sign - 1
  if constexpr (kWord == 0) return __funnelshift_lc(rest, sign, rank);
  // The last word is shifted in from the other end, by 32 * kWords - rank. That is never negative, as ranks are at most
  // 32 * kWords, so no clamp at 0 is needed.
  if constexpr (kWord + 1 == kWords) return __funnelshift_rc(rest, sign, MultiplyAdd(rank, minus_one, 32 * kWords));
  return __funnelshift_lc(rest, sign, static_cast<uint32_t>(__viaddmax_s32(static_cast<int>(rank), -32 * kWord, 0)));
}

// a = a lane's fragment of operand A, 16 weight rows, for step kStep of the inner dimension: units 2 kStep and 2 kStep
// + 1 (streams.h). codes[0] and ranks[0] are of row lane / 4, codes[1] and ranks[1] of row 8 + lane / 4.
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

// The factors -s_w r - v of u = [x < 0] in the sign correction (top of this file), a signed byte for each of four
// codes: r - 1 for a negative weight, its complement -r for others. r - 1 is computed as (r + 127) ^ 128, which carries
// into no other byte because r <= 128.
__device__ __forceinline__ uint32_t CorrectionRanks(uint32_t signs, uint32_t ranks) {
  return ((ranks + 0x7f7f7f7f) ^ 0x80808080) ^ ~signs;
}
// a = a lane's fragment of operand A of the int8 product that corrects signs: CorrectionRanks for unit 4 * words of the
// activations (streams.h), v = [w < 0] for unit 4 * words + 1. `codes` and `ranks` are those of StepOperand.
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

// Calls f(std::integral_constant<int, i>()) for i = 0..kCount - 1: a loop whose index is known at compile time.
template <int kCount, typename F>
__device__ __forceinline__ void Unrolled(const F& f) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) { (f(std::integral_constant<int, kIndex>()), ...); }
  (std::make_integer_sequence<int, kCount>());
}

}  // namespace stoch::cuda
