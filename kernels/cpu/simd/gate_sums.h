// SPDX-License-Identifier: Apache-2.0
// Sums of dimensions whose bits gates merge before a counter sees them (docs/hardware.md), for the 64 outputs of a block
// at once, and so many blocks as V::kBlocks: bit r of a word belongs to output r, so that one operation on words is a
// gate, or a step of a counter, of all of them. V is a type without linkage (avx512.h):
//   Planes         a vector of 2 * kBlocks words: of the positive products of each block, then of the negative ones
//   Swap(planes)   negative products in place of positive ones
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/simd.h"

namespace stoch::cpu {

template <typename V>
class GateSums {
 public:
  static void Sum(const GateCall& call) {
    const GateSums sums(call);
    for (int64_t block = 0; block < call.num_blocks; block += kBlocks) {
      const int64_t rest = call.num_blocks - block;
      sums.SumBlocks(block, rest < kBlocks ? rest : kBlocks);
    }
  }

 private:
  static constexpr int64_t kBlocks = V::kBlocks;
  static constexpr int kWords = 2 * V::kBlocks;
  using Planes = typename V::Planes;
  static_assert(sizeof(Planes) == 8 * kWords && kWords <= GateCall::kMostWords);
  static constexpr int kAtOnce = 8;  // planes that a counter takes

#define STOCH_INLINE __attribute__((always_inline)) static inline
  STOCH_INLINE Planes Load(const uint64_t* from) {
    Planes planes;
    __builtin_memcpy(&planes, from, sizeof(planes));
    return planes;
  }
  STOCH_INLINE void Store(const Planes& planes, uint64_t* to) { __builtin_memcpy(to, &planes, sizeof(planes)); }
  STOCH_INLINE Planes Positive() {
    Planes planes = {};
    for (int b = 0; b < V::kBlocks; ++b) planes[b] = ~uint64_t{0};
    return planes;
  }
  // The sum of three bits: *one and a and b to *one and twice what is returned.
  STOCH_INLINE Planes Carry(const Planes& a, const Planes& b, Planes* one) {
    const Planes either = *one ^ a;
    const Planes carry = (*one & a) | (either & b);
    *one = either ^ b;
    return carry;
  }
#undef STOCH_INLINE

  explicit GateSums(const GateCall& call)
      : call_(call),
        tables_(*call.tables),
        slice_(GateCall::Slice(call.tables->group)),
        bits_(call.scratch),
        counters_(bits_ + int64_t{2} * GateCall::kMostCycles * kWords),
        outputs_(counters_ + call.num_left * GateCall::kCounterPlanes * kWords) {}

  void SumBlocks(int64_t block, int64_t blocks) const {
    for (int64_t i = 0; i < call_.num_left * GateCall::kCounterPlanes * kWords; ++i) counters_[i] = 0;
    for (int64_t i = 0; i < int64_t{2} * GateCall::kMostCycles * kWords; ++i) bits_[i] = 0;
    for (int64_t begin = 0; begin < call_.dims; begin += slice_) {
      const int64_t end = call_.dims - begin < slice_ ? call_.dims : begin + slice_;
      for (int64_t d = begin; d < end; ++d) FillOutputs(block, blocks, d, OutputsOf(d - begin));
      for (int64_t t = 0; t < call_.num_left; ++t) {
        for (int64_t first = begin; first < end; first += tables_.group) {
          AddGroup(t, begin, first, end - first < tables_.group ? end - first : tables_.group);
        }
      }
    }
    for (int64_t t = 0; t < call_.num_left; ++t) Read(t, block, blocks);
  }

  uint64_t* OutputsOf(int64_t i) const { return outputs_ + i * (tables_.levels + 1) * kWords; }

  // outputs[level] of dimension d: which outputs have that level at least.
  void FillOutputs(int64_t block, int64_t blocks, int64_t d, uint64_t* outputs) const {
    for (int64_t i = 0; i < (tables_.levels + 1) * int64_t{kWords}; ++i) outputs[i] = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* codes = call_.blocks + (block + b) * call_.block_stride + d * kBlockRows;
      for (int r = 0; r < kBlockRows; ++r) {
        const int negative = tables_.has_signs ? codes[r] >> 7 : 0;
        const int level = tables_.has_signs ? codes[r] & 0x7f : codes[r];
        outputs[level * kWords + negative * kBlocks + b] |= uint64_t{1} << r;
      }
    }
    Planes all = {};
    for (int level = tables_.levels - 1; level >= 0; --level) {
      all |= Load(outputs + level * kWords);
      Store(all, outputs + level * kWords);
    }
  }

  // Adds the bits of dimension `first + i` of left row t to `bits` by OR, cycle by cycle; i is its input of the group.
  void AddBits(int64_t t, int64_t begin, int64_t first, int64_t i, uint64_t* bits) const {
    const uint8_t code = call_.left[t][first + i];
    const bool negative = tables_.has_signs && code >= 0x80;
    const int64_t at =
        (call_.first_dim + first + i) % tables_.masks * tables_.levels + (tables_.has_signs ? code & 0x7f : code);
    const ScGateTables::Step* steps = tables_.steps + tables_.first_step[at];
    const ScGateTables::Step* on = steps + tables_.num_on[at];
    const ScGateTables::Step* end = tables_.steps + tables_.first_step[at + 1];
    const uint64_t* outputs = OutputsOf(first - begin + i);
    if (tables_.adder == ScAdder::kMux) {
      Selected select{tables_.inputs, static_cast<int>(i)};
      if (negative) {
        AddSteps<true, false>(steps, on, outputs, bits, select);
      } else {
        AddSteps<false, false>(steps, on, outputs, bits, select);
      }
      AddSteps<false, true>(on, end, outputs, bits, select);
    } else {
      if (negative) {
        AddSteps<true, false>(steps, on, outputs, bits, All());
      } else {
        AddSteps<false, false>(steps, on, outputs, bits, All());
      }
      AddSteps<false, true>(on, end, outputs, bits, All());
    }
  }

  // The cycles of a multiplexer's input, or all.
  struct Selected {
    const int* inputs;
    int input;
    __attribute__((always_inline)) Planes operator()(const Planes& planes, int cycle) const {
      return planes & (Planes{} - static_cast<uint64_t>(inputs[cycle] == input));
    }
  };
  struct All {
    __attribute__((always_inline)) Planes operator()(const Planes& planes, int /*cycle*/) const { return planes; }
  };
  // kOff: outputs below a level are on (kXnor, whose products are all in the first words).
  template <bool kSwaps, bool kOff, typename Select>
  static void AddSteps(const ScGateTables::Step* step, const ScGateTables::Step* end, const uint64_t* outputs,
                       uint64_t* bits, const Select& select) {
    for (; step != end; ++step) {
      Planes planes = Load(outputs + step->level * kWords);
      if constexpr (kSwaps) planes = V::Swap(planes);
      if constexpr (kOff) planes = ~planes & Positive();
      uint64_t* to = bits + step->cycle * kWords;
      Store(Load(to) | select(planes, step->cycle), to);
    }
  }

  // Dimensions [first, first + count), one group, of left row t.
  void AddGroup(int64_t t, int64_t begin, int64_t first, int64_t count) const {
    if (tables_.adder != ScAdder::kApc) {
      for (int64_t i = 0; i < count; ++i) AddBits(t, begin, first, i, bits_);
      return CountBits(t, false);
    }
    for (int64_t i = 0; i < count; i += 2) {  // AND and OR of pairs, in turn
      const bool by_and = i / 2 % 2 == 0;
      AddBits(t, begin, first, i, bits_);
      if (i + 1 < count) AddBits(t, begin, first, i + 1, by_and ? second() : bits_);
      CountBits(t, by_and);
    }
  }

  uint64_t* second() const { return bits_ + GateCall::kMostCycles * kWords; }  // bits of a gate's other input

  // Counts the bits of every cycle, which are 0 then.
  void CountBits(int64_t t, bool by_and) const {
    uint64_t* planes = counters_ + t * GateCall::kCounterPlanes * kWords;
    Planes ones = Load(planes), twos = Load(planes + kWords), fours = Load(planes + 2 * kWords);
    for (int cycle = 0; cycle < tables_.stoc_len; cycle += kAtOnce) {
      Planes x[kAtOnce];
      for (int i = 0; i < kAtOnce; ++i) {
        uint64_t* bits = bits_ + (cycle + i) * kWords;
        x[i] = Load(bits);
        Store(Planes{}, bits);
        if (by_and) {
          x[i] &= Load(second() + (cycle + i) * kWords);
          Store(Planes{}, second() + (cycle + i) * kWords);
        }
      }
      const Planes twos_a = Carry(x[0], x[1], &ones), twos_b = Carry(x[2], x[3], &ones);
      const Planes twos_c = Carry(x[4], x[5], &ones), twos_d = Carry(x[6], x[7], &ones);
      const Planes fours_a = Carry(twos_a, twos_b, &twos), fours_b = Carry(twos_c, twos_d, &twos);
      Planes carry = Carry(fours_a, fours_b, &fours);
      for (int i = 3; i < GateCall::kCounterPlanes; ++i) {
        const Planes plane = Load(planes + i * kWords);
        Store(plane ^ carry, planes + i * kWords);
        carry &= plane;
        uint64_t any = 0;
        for (int w = 0; w < kWords; ++w) any |= carry[w];
        if (any == 0) break;
      }
    }
    Store(ones, planes);
    Store(twos, planes + kWords);
    Store(fours, planes + 2 * kWords);
  }

  // The accumulators of left row t.
  void Read(int64_t t, int64_t block, int64_t blocks) const {
    int32_t factor = tables_.adder == ScAdder::kApc ? 2 : 1, less = 0;
    if (tables_.gate == ScGate::kXnor) {  // bits are +1 and -1
      factor *= 2;
      for (int64_t i = 0; i < call_.dims; ++i) {
        less += tables_.adder == ScAdder::kApc ? tables_.stoc_len : tables_.cycles[i % tables_.group];
      }
    }
    for (int64_t b = 0; b < blocks; ++b) {
      int32_t* acc = call_.acc + (t * call_.num_blocks + block + b) * kBlockRows;
      for (int r = 0; r < kBlockRows; ++r) acc[r] = -less;
      for (int i = 0; i < GateCall::kCounterPlanes; ++i) {
        const uint64_t* plane = counters_ + (t * GateCall::kCounterPlanes + i) * kWords;
        const uint64_t positive = plane[b], negative = plane[kBlocks + b];
        if ((positive | negative) == 0) continue;
        const int32_t weight = factor << i;
        for (int r = 0; r < kBlockRows; ++r) {
          acc[r] += (static_cast<int32_t>(positive >> r & 1) - static_cast<int32_t>(negative >> r & 1)) * weight;
        }
      }
    }
  }

  const GateCall& call_;
  const ScGateTables& tables_;
  int64_t slice_;       // dimensions whose outputs are in scratch at a time: whole groups
  uint64_t* bits_;      // [2][kMostCycles] of a group, or of the two inputs of a gate; 0 in between
  uint64_t* counters_;  // [num_left][kCounterPlanes]
  uint64_t* outputs_;   // [slice][levels + 1]
};

}  // namespace stoch::cpu
