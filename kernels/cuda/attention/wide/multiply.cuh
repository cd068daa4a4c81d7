// SPDX-License-Identifier: Apache-2.0
// A warpgroup of a product of wide tiles: the ring of stages, and codes that it makes thermometers and multiplies.
// Included by products.cu alone.
#pragma once

#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/sc/tensor_core/operand.cuh"
#include "kernels/plan/attention_plan.h"

namespace stoch::cuda::attention_wide {

inline constexpr int kGroups = 2;  // four with a slot each have too few registers to keep products in flight
inline constexpr int kOwn = kWideSlots / kGroups;  // slots of a warpgroup
inline constexpr int kConsumers = 128 * kGroups;
inline constexpr int kThreads = kConsumers + 128;
// What the consumers take beyond the even share of a launch of kThreads, the producer's warpgroup gives back.
inline constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = ((kGroups + 1) * kLaunchRegisters - kProducerRegisters) / kGroups / 8 * 8;

// The ring of stages as one thread walks it.
struct Ring {
  uint32_t base;  // shared address of: full barriers, empty barriers, stages at kWideRingHeader
  int stages;
  int slot = 0;
  uint32_t phase = 0;
  __device__ uint32_t full(int i) const { return base + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t empty(int i) const { return base + 8 * static_cast<uint32_t>(kMaxWideStages + i); }
  __device__ uint32_t stage(int i, int bytes) const {
    return base + kWideRingHeader + static_cast<uint32_t>(i * bytes);
  }
  __device__ void Next() {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

__device__ __forceinline__ void Arrive(uint32_t barrier, bool condition) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(barrier),
      "r"(static_cast<int>(condition))
      : "memory");
}

// Words of a step of codes that are never negative: as StepOperand.
template <int kWords, int kStep>
__device__ __forceinline__ void PositiveOperand(uint32_t (&a)[4], const PackedRanks (&ranks)[2], uint32_t minus_one) {
  const auto word = [&](auto unit, const PackedRanks& packed) {
    constexpr int kWord = unit % kWords;
    const uint32_t rank = packed.template rank<unit / kWords>();
    if constexpr (kWord == 0) return __funnelshift_lc(minus_one, 0u, rank);
    if constexpr (kWord + 1 == kWords)
      return __funnelshift_rc(minus_one, 0u, MultiplyAdd(rank, minus_one, 32 * kWords));
    return __funnelshift_lc(minus_one, 0u,
                            static_cast<uint32_t>(__viaddmax_s32(static_cast<int>(rank), -32 * kWord, 0)));
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    a[i] = word(std::integral_constant<int, 2 * kStep>(), ranks[i]);
    a[2 + i] = word(std::integral_constant<int, 2 * kStep + 1>(), ranks[i]);
  }
}

// kMixed: a row's codes are ranks of its length, or levels of the longest; those of probabilities are always ranks.
template <int kWords, int kColumns, bool kSigned, bool kMixed>
struct Consumer {
  static constexpr int kUnitBytes = kColumns * 16;
  static constexpr int kStageBytes = (4 * kWords + 2) * kUnitBytes;
  static constexpr int kAccumulators = kColumns / 2;
  Ring ring;
  bool releases;  // lane 0 hands stages back for its warp
  uint32_t minus_one;
  int held = -1;  // stage whose products may not be finished
  int32_t acc[kOwn][kAccumulators];
  uint32_t is_level[kMixed && kSigned ? kOwn : 1][2];  // 1 in every byte where the codes of a row are levels

  __device__ __forceinline__ void Release() {
    Arrive(ring.empty(held), releases && held >= 0);
    held = -1;
  }
  __device__ __forceinline__ void Finish() {
    WgmmaWait<0>(acc[0]);
    WgmmaWait<0>(acc[1]);
    Release();
  }
  __device__ void Skip(int stages) {
    for (int i = 0; i < stages; ++i) {
      BarrierWait(ring.full(ring.slot), ring.phase);
      Arrive(ring.empty(ring.slot), releases);
      ring.Next();
    }
  }

  __device__ __forceinline__ PackedRanks RanksOf(uint32_t codes, int own, int i) const {
    if constexpr (!kMixed) return DirectRanks<kWords>(codes);
    if constexpr (!kSigned) return {codes};
    const uint32_t q = codes & 0x7f7f7f7f;
    return {q + ((q >> 6) & is_level[own][i])};
  }

  // Adds one stage to acc, or sets acc; codes: of each slot's two rows. kWords pairs of steps: while one pair
  // multiplies, the next one's operands are made.
  template <bool kFirst>
  __device__ __forceinline__ void Multiply(const uint32_t (&codes)[kOwn][2]) {
    const uint32_t low = Uniform(DescriptorLow<kUnitBytes>(ring.base + kWideRingHeader) +
                                 static_cast<uint32_t>(ring.slot) * (kStageBytes >> 4));
    Unrolled<kOwn>([&](auto own) {
      const PackedRanks ranks[2] = {RanksOf(codes[own][0], own, 0), RanksOf(codes[own][1], own, 1)};
      Unrolled<kWords>([&](auto pair) {
        uint32_t a[2][4];
        if constexpr (kSigned) {
          StepOperand<kWords, 2 * pair>(a[0], codes[own], ranks, minus_one);
          StepOperand<kWords, 2 * pair + 1>(a[1], codes[own], ranks, minus_one);
        } else {
          PositiveOperand<kWords, 2 * pair>(a[0], ranks, minus_one);
          PositiveOperand<kWords, 2 * pair + 1>(a[1], ranks, minus_one);
        }
        Pin(a[0]);
        Pin(a[1]);
        if constexpr (own == 0 && pair == 0) BarrierWait(ring.full(ring.slot), ring.phase);
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          Wgmma<kColumns>::Bits(acc[own], a[i], Descriptor(low + (4 * pair + 2 * i) * (kUnitBytes >> 4)),
                                pair + i > 0 || !kFirst);
        }
        WgmmaCommit();
        WgmmaWait<1>(acc[own]);
        if constexpr (own == 0 && pair == 0 && !kFirst) Release();
      });
      uint32_t a[4];
      if constexpr (kMixed && !kSigned) {
        const uint32_t positive[2] = {0, 0};  // a rank of 128 is no sign
        CorrectionOperand(a, positive, ranks);
      } else {
        CorrectionOperand(a, codes[own], ranks);
      }
      Pin(a);
      WgmmaFence();
      Wgmma<kColumns>::Bytes(acc[own], a, Descriptor(low + 4 * kWords * (kUnitBytes >> 4)));
      WgmmaCommit();
      WgmmaWait<1>(acc[own]);
    });
    held = ring.slot;
    ring.Next();
  }
};

}  // namespace stoch::cuda::attention_wide
