// SPDX-License-Identifier: Apache-2.0
// Code of the consumer warpgroups of products.cu: they take stages from the ring in shared memory, turn codes into
// thermometers and multiply by wgmma. A slot is one (tile, head) pair, 64 rows. Included by products.cu alone.
#pragma once

#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/sc/tensor_core/operand.cuh"
#include "kernels/plan/attention/plan.h"

namespace stoch::cuda::attention_wide {

// Consumer warpgroups per block. Four of them, with one slot each, would have too few registers per thread to keep
// products in flight.
inline constexpr int kGroups = 2;
inline constexpr int kOwn = kWideSlots / kGroups;  // slots of a warpgroup
inline constexpr int kConsumers = 128 * kGroups;
inline constexpr int kThreads = kConsumers + 128;
// Registers per thread. The producer's warpgroup gives up most of its even share, and the consumers' warpgroups take
// it.
inline constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = ((kGroups + 1) * kLaunchRegisters - kProducerRegisters) / kGroups / 8 * 8;

// The ring of stages in shared memory, and one thread's position in it: stage `slot`, and the parity `phase` of its
// barriers.
struct Ring {
  // Shared-memory address of the ring: first the full barriers, then the empty barriers, and from kWideRingHeader on
  // the stages.
  uint32_t base;
  int stages;
  int slot = 0;
  uint32_t phase = 0;
  // Addresses of barriers and memory of stage i. A copy fills a stage and completes `full`; consumers arrive at
  // `empty`.
  __device__ uint32_t full(int i) const { return base + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t empty(int i) const { return base + 8 * static_cast<uint32_t>(kMaxWideStages + i); }
  __device__ uint32_t stage(int i, int bytes) const {
    return base + kWideRingHeader + static_cast<uint32_t>(i * bytes);
  }
  // Advances to the next stage.
  __device__ void Next() {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// Makes word kWord (of kWords) of the thermometers of four codes, none negative, of rows `row` and `row` + 8, as
// operands A of two wgmma steps: a[0] has codes 0 and 1, a[1] codes 2 and 3.
template <int kWord, int kWords>
__device__ __forceinline__ void PositiveOperands(uint32_t (&a)[2][4], const PackedRanks (&ranks)[2],
                                                 uint32_t minus_one) {
  const auto word = [&](uint32_t rank) {
    if constexpr (kWord == 0) return __funnelshift_lc(minus_one, 0u, rank);
    if constexpr (kWord + 1 == kWords)
      return __funnelshift_rc(minus_one, 0u, MultiplyAdd(rank, minus_one, 32 * kWords));
    return __funnelshift_lc(minus_one, 0u,
                            static_cast<uint32_t>(__viaddmax_s32(static_cast<int>(rank), -32 * kWord, 0)));
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    a[0][i] = word(ranks[i].template rank<0>());
    a[0][2 + i] = word(ranks[i].template rank<1>());
    a[1][i] = word(ranks[i].template rank<2>());
    a[1][2 + i] = word(ranks[i].template rank<3>());
  }
}

// State of a consumer thread in either product: its place in the ring and the accumulators of its slots. A stage
// consists of units, each of kColumns columns x 16 bytes.
template <int kColumns>
struct Consumer {
  static constexpr int kUnitBytes = kColumns * 16;
  static constexpr int kAccumulators = kColumns / 2;
  Ring ring;
  bool releases;  // true in lane 0, which arrives at the empty barriers for its warp
  uint32_t minus_one;
  int held = -1;  // stage whose products may still be in flight; -1: none
  int32_t acc[kOwn][kAccumulators];

  // Returns the held stage to the producer, if there is one.
  __device__ __forceinline__ void Release() {
    BarrierArrive(ring.empty(held), releases && held >= 0);
    held = -1;
  }
  // Waits for all products in flight, then releases the held stage.
  __device__ __forceinline__ void Finish() {
    WgmmaWait<0>(acc[0]);
    WgmmaWait<0>(acc[1]);
    Release();
  }
  // Returns the next `stages` stages to the producer without multiplying.
  __device__ void Skip(int stages) {
    for (int i = 0; i < stages; ++i) {
      BarrierWait(ring.full(ring.slot), ring.phase);
      BarrierArrive(ring.empty(ring.slot), releases);
      ring.Next();
    }
  }
  // Returns the wgmma descriptor of a unit. first: low half of the descriptor of unit 0.
  __device__ __forceinline__ static uint64_t Unit(uint32_t first, int unit) {
    return Descriptor(first + static_cast<uint32_t>(unit) * (kUnitBytes >> 4));
  }

 protected:
  // Returns the low half of the descriptor of unit 0 of the current stage.
  template <int kStageBytes>
  __device__ __forceinline__ uint32_t FirstUnit() const {
    return Uniform(DescriptorLow<kUnitBytes>(ring.base + kWideRingHeader) +
                   static_cast<uint32_t>(ring.slot) * (kStageBytes >> 4));
  }
};

// Consumer of q k. A stage has the streams of kWideKeys keys in 16 dimensions: 4 kWords units of stream words, then two
// units with the int8 factors that make signed products of the products of bits (sc/tensor_core/operand.cuh explains
// this correction of signs). kMixed: query rows have stream lengths of their own. The codes of a row of a shorter
// length were replaced by ranks, the ones of their streams at that length (RankTable); those of a row of 128 cycles are
// still levels, from which RanksOf computes the ranks.
template <int kWords, bool kMixed>
struct ScoreConsumer : Consumer<kWideKeys> {
  static constexpr int kStageBytes = (4 * kWords + 2) * kUnitBytes;
  // [slot][row, row + 8]: 1 in every byte if the codes of the row are levels, else 0.
  uint32_t is_level[kMixed ? kOwn : 1][2];

  // Returns the ranks of four codes of row i (0: row, 1: row + 8) of slot `own`.
  __device__ __forceinline__ PackedRanks RanksOf(uint32_t codes, int own, int i) const {
    if constexpr (!kMixed) return DirectRanks<kWords>(codes);
    const uint32_t q = codes & 0x7f7f7f7f;
    return {q + ((q >> 6) & is_level[own][i])};
  }

  // Multiplies the next stage and adds the products to acc, or with kFirst sets acc. codes: [slot][row, row + 8], this
  // lane's four codes of each row. Runs kWords pairs of wgmma steps for each slot; while one pair multiplies, the
  // operands of the next pair are made.
  template <bool kFirst>
  __device__ __forceinline__ void Multiply(const uint32_t (&codes)[kOwn][2]) {
    const uint32_t stage = FirstUnit<kStageBytes>();
    Unrolled<kOwn>([&](auto own) {
      const PackedRanks ranks[2] = {RanksOf(codes[own][0], own, 0), RanksOf(codes[own][1], own, 1)};
      Unrolled<kWords>([&](auto pair) {
        uint32_t a[2][4];
        StepOperand<kWords, 2 * pair>(a[0], codes[own], ranks, minus_one);
        StepOperand<kWords, 2 * pair + 1>(a[1], codes[own], ranks, minus_one);
        Pin(a[0]);
        Pin(a[1]);
        if constexpr (own == 0 && pair == 0) BarrierWait(ring.full(ring.slot), ring.phase);
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          Wgmma<kWideKeys>::Bits(acc[own], a[i], Unit(stage, 4 * pair + 2 * i), pair + i > 0 || !kFirst);
        }
        WgmmaCommit();
        WgmmaWait<1>(acc[own]);
        if constexpr (own == 0 && pair == 0 && !kFirst) Release();
      });
      uint32_t a[4];
      CorrectionOperand(a, codes[own], ranks);
      Pin(a);
      WgmmaFence();
      Wgmma<kWideKeys>::Bytes(acc[own], a, Unit(stage, 4 * kWords));
      WgmmaCommit();
      WgmmaWait<1>(acc[own]);
    });
    held = ring.slot;
    ring.Next();
  }
};

// Consumer of p v. A stage has word w of the streams of 32 values, half a block of kWideValues; the stage of w = 0 also
// has the two units of the sign correction. kMixed: codes are ranks.
template <int kWords, int kHeadDim, bool kMixed>
struct ValueConsumer : Consumer<kHeadDim> {
  using Base = Consumer<kHeadDim>;
  using Base::acc, Base::held, Base::minus_one, Base::ring, Base::Unit;
  static constexpr int kStageBytes = kWideValueUnits * Base::kUnitBytes;

  // Returns the ranks of four codes.
  __device__ __forceinline__ static uint32_t RanksOf(uint32_t codes) {
    if constexpr (kMixed) return codes;
    return DirectRanks<kWords>(codes).packed;
  }

  // Multiplies the next stage, word kWord of one half, and adds the products to acc. ranks: [slot][row, row + 8], this
  // lane's eight ranks of each row, of the half's 32 positions.
  template <int kWord>
  __device__ __forceinline__ void Multiply(const uint2 (&ranks)[kOwn][2]) {
    const uint32_t stage = Base::template FirstUnit<kStageBytes>();
    // Four codes of each row at a time: while they multiply, the operands of the next four are made.
    Unrolled<2 * kOwn>([&](auto i) {
      constexpr int own = i / 2, part = i % 2;
      const auto of_part = [&](const uint2& eight) { return PackedRanks{part == 0 ? eight.x : eight.y}; };
      const PackedRanks four[2] = {of_part(ranks[own][0]), of_part(ranks[own][1])};
      uint32_t a[2][4];
      PositiveOperands<kWord, kWords>(a, four, minus_one);
      Pin(a[0]);
      Pin(a[1]);
      constexpr bool kCorrects = kWord == 0 && part == 1;
      uint32_t c[4];
      if constexpr (kCorrects) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          c[row] = CorrectionRanks(0, ranks[own][row].x);
          c[2 + row] = CorrectionRanks(0, ranks[own][row].y);
        }
        Pin(c);
      }
      if constexpr (i == 0) BarrierWait(ring.full(ring.slot), ring.phase);
      WgmmaFence();
      constexpr int kFirst = (kWord == 0 ? 2 : 0) + 4 * part;
      Wgmma<kHeadDim>::Bits(acc[own], a[0], Unit(stage, kFirst), 1);
      Wgmma<kHeadDim>::Bits(acc[own], a[1], Unit(stage, kFirst + 2), 1);
      if constexpr (kCorrects) Wgmma<kHeadDim>::Bytes(acc[own], c, Unit(stage, 0));
      WgmmaCommit();
      WgmmaWait<1>(acc[own]);
      if constexpr (i == 0) Base::Release();
    });
    held = ring.slot;
    ring.Next();
  }
};

}  // namespace stoch::cuda::attention_wide
