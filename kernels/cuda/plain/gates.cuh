// SPDX-License-Identifier: Apache-2.0
// Sums of dimensions whose product bits are merged by gates before a counter sees them (docs/hardware.md), one output a
// thread.
//
// Bits: those of ScAdderStreams (kernels/sc/hardware/adder.h), which is the definition.
#pragma once

#include <cstdint>

#include "kernels/sc/hardware/gate_steps.h"

namespace stoch::cuda {

inline constexpr int kMostGateWords = 8;  // words of a stream, at most, 32 cycles each

// The bits of one product: bit i of word w is cycle 32 w + i.
struct GateBits {
  uint32_t words[kMostGateWords];
};

// The product bits of level a of side a and level b of side b. input: number of the dimension in its group; a
// multiplexer passes only the cycles that select this input.
__device__ inline GateBits ProductBits(const ScGateTables& gates, int64_t mask, int a, int b, int input) {
  const int64_t at = mask * gates.levels + a;
  const ScGateTables::Step* on = gates.steps + gates.first_step[at];
  const ScGateTables::Step* off = on + gates.num_on[at];
  const ScGateTables::Step* const on_end = off;
  const ScGateTables::Step* const off_end = gates.steps + gates.first_step[at + 1];
  GateBits bits;
#pragma unroll
  for (int w = 0; w < kMostGateWords; ++w) {  // the table lists steps in the order of their cycles
    uint32_t word = 0;
    const int end = 32 * (w + 1);
    const auto add = [&](const ScGateTables::Step& step, bool is_on) {
      const bool selected = gates.adder != ScAdder::kMux || gates.inputs[step.cycle] == input;
      if (selected && is_on) word |= 1u << (step.cycle & 31);
    };
    for (; on < on_end && on->cycle < end; ++on) add(*on, b >= on->level);
    for (; off < off_end && off->cycle < end; ++off) add(*off, b < off->level);
    bits.words[w] = word;
  }
  return bits;
}

// The number of ones.
__device__ inline int CountOf(const GateBits& bits) {
  int count = 0;
#pragma unroll
  for (int w = 0; w < kMostGateWords; ++w) count += __popc(bits.words[w]);
  return count;
}

// An adder made of gates and the sum so far. Dimensions are added in order, in groups of gates.group; End closes the
// last group.
class GateSum {
 public:
  __device__ explicit GateSum(const ScGateTables& gates) : gates_(gates) { Clear(); }

  // Adds `dims` dimensions whose products have no bits. Requires: dims is less than a group, and no dimension was added
  // yet.
  __device__ void Skip(int dims) { input_ = dims; }

  // Adds the next dimension. mask: number of its mask; codes: bytes with the sign in bit 7, if gates.has_signs.
  __device__ void Add(int64_t mask, int code_a, int code_b) {
    const int level_mask = gates_.has_signs ? 0x7f : 0xff;
    const bool negative = gates_.has_signs && ((code_a ^ code_b) & 0x80) != 0;
    const GateBits bits = ProductBits(gates_, mask, code_a & level_mask, code_b & level_mask, input_);
    switch (gates_.adder) {
      case ScAdder::kCounter: break;
      case ScAdder::kOr: Merge(bits, negative); break;
      case ScAdder::kMux: {
        const int ones = CountOf(bits);
        acc_ += gates_.gate == ScGate::kXnor ? 2 * ones - gates_.cycles[input_] : (negative ? -ones : ones);
        break;
      }
      case ScAdder::kApc:
        if (input_ % 2 == 0) {
          first_ = bits;
          first_negative_ = negative;
        } else {
          AddPair(bits, negative);
        }
        break;
    }
    if (++input_ == gates_.group) End();
  }

  // Closes the current group, which may be incomplete, and adds its count.
  __device__ void End() {
    if (gates_.adder == ScAdder::kOr) acc_ += CountOf(positive_) - CountOf(negative_);
    if (gates_.adder == ScAdder::kApc) {
      if (input_ % 2 == 1) AddPair(GateBits{}, false);
      acc_ += gates_.gate == ScGate::kXnor ? 2 * pairs_ - input_ * gates_.stoc_len : pairs_;
    }
    Clear();
  }

  // The sum of all closed groups.
  __device__ int64_t total() const { return acc_; }

 private:
  __device__ void Clear() {
    positive_ = negative_ = first_ = GateBits{};
    first_negative_ = false;
    pairs_ = 0;
    input_ = 0;
  }
  // kOr: merges a product into the group's positive or negative bits.
  __device__ void Merge(const GateBits& bits, bool negative) {
#pragma unroll
    for (int w = 0; w < kMostGateWords; ++w) {
      if (negative) {
        negative_.words[w] |= bits.words[w];
      } else {
        positive_.words[w] |= bits.words[w];
      }
    }
  }
  // kApc: merges first_ and `second`, by AND and OR in turn, positive and negative products apart. A merged bit counts
  // twice.
  __device__ void AddPair(const GateBits& second, bool second_negative) {
    const bool by_and = input_ / 2 % 2 == 0;
#pragma unroll
    for (int w = 0; w < kMostGateWords; ++w) {
      const uint32_t x = first_.words[w], y = second.words[w];
      const uint32_t x_plus = first_negative_ ? 0 : x, y_plus = second_negative ? 0 : y;
      const uint32_t x_minus = first_negative_ ? x : 0, y_minus = second_negative ? y : 0;
      const int plus = __popc(by_and ? x_plus & y_plus : x_plus | y_plus);
      const int minus = __popc(by_and ? x_minus & y_minus : x_minus | y_minus);
      pairs_ += 2 * (plus - minus);
    }
  }

  const ScGateTables& gates_;
  GateBits positive_, negative_;  // kOr: merged bits of the group, by sign of the product
  GateBits first_;                // kApc: the first product of a pair
  bool first_negative_;
  // kApc: count of the group's pairs.
  int64_t pairs_;
  int input_;  // number of the next dimension in the group
  int64_t acc_ = 0;
};

}  // namespace stoch::cuda
