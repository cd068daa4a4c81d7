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
STOCH_HD constexpr uint64_t FaultColumn(int64_t chunk, int64_t output) {
  return (static_cast<uint64_t>(chunk) << 32) + static_cast<uint64_t>(output);
}

// Hardware behind an exact sum, without memory of its own, so that kernels take it.
struct ScAccumulatorView {
  // Keys of a row, at a site.
  struct Row {
    uint64_t product_key = 0, acc_key = 0;
  };

  bool signs_apart = false;  // signs are applied to magnitudes, outside of the gate
  bool is_xnor = false;
  int acc_bits = 0;             // width of the register; 0: as many bits as it takes
  int acc_group = 0;            // dimensions after which it is clamped; 0: the chunk
  int fault_acc_bit = -1;       // the one bit that flips; -1: any
  bool flips_register = false;  // bits of the register flip, by register_flips
  BinomialLineView register_flips;
  BinomialTableView product_flips;  // lines null: none

  // Whether Finish wants the number of dimensions whose signs differ.
  STOCH_HD bool wants_negatives() const { return product_flips.lines != nullptr && signs_apart; }

  // The register holds `acc`: clamped to acc_bits. Any acc where there is none.
  STOCH_HD int64_t Clamp(int64_t acc) const {
    if (acc_bits == 0) return acc;
    const int64_t limit = int64_t{1} << (acc_bits - 1);
    return acc < -limit ? -limit : (acc > limit - 1 ? limit - 1 : acc);
  }

  // acc: the exact sum, or what groups left of it. negatives: as above, else 0. dims, stoc_len: of this sum.
  STOCH_HD int32_t Finish(int64_t acc, int64_t negatives, int64_t dims, int stoc_len, const Row& row,
                          uint64_t column) const {
    if (product_flips.lines != nullptr) {
      // Bits of which a flip subtracts, and all others.
      const int64_t bits = dims * stoc_len;
      const int64_t falling = is_xnor ? (bits + acc) / 2 : negatives * stoc_len + acc;
      const int64_t change = product_flips.Flips(bits - falling, row.product_key, 0, column) -
                             product_flips.Flips(falling, row.product_key, 1, column);
      acc += is_xnor ? 2 * change : change;
    }
    acc = Clamp(acc);
    if (!flips_register || acc_bits == 0) return static_cast<int32_t>(acc);
    auto word = static_cast<uint32_t>(acc);
    if (fault_acc_bit < 0) {
      word ^= FlippedBits(register_flips, acc_bits, row.acc_key, column);
    } else if (register_flips.Flips(RandomBits(row.acc_key, 0, column)) > 0) {
      word ^= uint32_t{1} << fault_acc_bit;
    }
    const int unused = 32 - acc_bits;
    return static_cast<int32_t>(word << unused) >> unused;
  }
};

// The accumulators of one operator. Immutable; threads: safe.
class ScAccumulator {
 public:
  // For sums of up to most_dims dimensions. Requires: op of the longest stream that runs.
  // Errors: InvalidInput for 2^32 bits of products or more in a sum whose bits flip.
  ScAccumulator(const ScOperator& op, int64_t most_dims);
  ScAccumulator(const ScAccumulator&) = delete;
  ScAccumulator& operator=(const ScAccumulator&) = delete;

  const ScConfig& config() const { return config_; }
  // The streams of an adder by gates, as words and as kernels have them; null with the counter.
  const ScAdderStreams* adder() const { return adder_.get(); }
  const ScGateSteps* gate_steps() const { return gate_steps_.get(); }
  // Memory of all tables.
  int64_t bytes() const;
  // Its tables, of product bits (null: none) and of the register or its one bit.
  const BinomialTable* product_flips() const { return flips_.get(); }
  const BinomialLine& register_flips() const { return register_line_; }
  const ScAccumulatorView& view() const { return view_; }

  using Row = ScAccumulatorView::Row;
  Row KeysOf(const ScSite& site, uint64_t row) const;

  // As ScAccumulatorView.
  bool wants_negatives() const { return view_.wants_negatives(); }
  int64_t Clamp(int64_t acc) const { return view_.Clamp(acc); }
  int32_t Finish(int64_t acc, int64_t negatives, int64_t dims, int stoc_len, const Row& row, uint64_t column) const {
    return view_.Finish(acc, negatives, dims, stoc_len, row, column);
  }

 private:
  ScConfig config_;
  BinomialTablePtr flips_;
  BinomialLine register_line_;
  ScAccumulatorView view_;
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
