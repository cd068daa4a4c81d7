// SPDX-License-Identifier: Apache-2.0
// An exact sum of counts in hardware that is not ideal: flipped bits of products, a register of few bits,
// flipped bits of the register, in this order (docs/research.md).
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/sc/hardware/adder.h"
#include "kernels/sc/hardware/binomial.h"
#include "kernels/sc/hardware/gate_steps.h"
#include "kernels/sc/sc_operator.h"
#include "kernels/sc/sc_site.h"

namespace stoch {

// Whether anything of a product's hardware is not ideal.
constexpr bool HasHardware(const ScConfig& config) { return HasFaults(config) || !HasPlainSums(config); }

// The number of a chunk of a linear's protected channels counts from here.
inline constexpr int64_t kFirstProtectedChunk = 32768;

// Draws of one accumulator are those of its chunk and output: an output feature, a key position of qk, a channel of av.
constexpr uint64_t FaultColumn(int64_t chunk, int64_t output) {
  return (static_cast<uint64_t>(chunk) << 32) + static_cast<uint64_t>(output);
}

// The accumulators of one operator. Immutable; threads: safe.
class ScAccumulator {
 public:
  // For sums of up to most_dims dimensions. Requires: op of the longest stream that runs.
  // Errors: InvalidInput for 2^32 bits of products or more in a sum whose bits flip.
  ScAccumulator(const ScOperator& op, int64_t most_dims);

  const ScConfig& config() const { return config_; }
  // The streams of an adder by gates, as words and as kernels have them; null with the counter.
  const ScAdderStreams* adder() const { return adder_.get(); }
  const ScGateSteps* gate_steps() const { return gate_steps_.get(); }
  // Memory of all tables.
  int64_t bytes() const;
  // Whether Finish wants the number of dimensions whose signs differ.
  bool wants_negatives() const { return flips_ != nullptr && signs_apart_; }

  // The keys of a row, at a site.
  struct Row {
    uint64_t product_key = 0, acc_key = 0;
  };
  Row KeysOf(const ScSite& site, uint64_t row) const;

  // The register holds `acc`: clamped to acc_bits. Any acc where there is none.
  int64_t Clamp(int64_t acc) const;

  // acc: the exact sum, or what groups left of it. negatives: as above, else 0. dims, stoc_len: of this sum.
  int32_t Finish(int64_t acc, int64_t negatives, int64_t dims, int stoc_len, const Row& row, uint64_t column) const;

 private:
  ScConfig config_;
  bool signs_apart_;  // signs are applied to magnitudes, outside of the gate
  bool is_xnor_;
  BinomialTablePtr flips_;      // of product bits; null: none
  BinomialLine register_line_;  // of the register, or its one bit
  std::unique_ptr<const ScAdderStreams> adder_;
  std::unique_ptr<const ScGateSteps> gate_steps_;
};

// Dimensions [begin, begin + dims) of a chunk that begins at chunk_begin: levels a[d] and b[d] of dimension d, whose
// masks and groups go by d and by d - chunk_begin.
struct ScLevelRange {
  const int* a = nullptr;
  const int* b = nullptr;
  int64_t chunk_begin = 0;
  int64_t begin = 0;
  int64_t dims = 0;
};
// Their accumulator, count by count. Requires: masks go by d too, chunk_begin included.
int32_t AccumulateLevels(const ScOperator& op, const ScAccumulator& accumulator, const ScLevelRange& range,
                         const ScAccumulator::Row& row, uint64_t column);

// The signed count of one product of levels, in dimension d of its chunk.
int SignedCount(const ScOperator& op, int64_t d, int a, int b);

}  // namespace stoch
