// SPDX-License-Identifier: Apache-2.0
// Adders that merge the bits of several dimensions by gates before a counter sees them (docs/sc_arithmetic.md).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sc/sc_operator.h"

namespace stoch {

// The input of its group that a multiplexer takes in each cycle, one sequence for all groups: [stoc_len].
// Requires: config resolved, adder = mux.
std::vector<int> MuxInputs(const ScConfig& config);

// The streams of an operator as words in order of cycles, and what its adder makes of them. Immutable; threads: safe.
class ScAdderStreams {
 public:
  // Requires: an adder other than the counter.
  explicit ScAdderStreams(const ScOperator& op);

  // The sum of dimensions first..first + dims of a chunk: levels a[i], b[i * step] (LevelOfCode), groups of adder_group
  // from the first. Masks go by first + i.
  int64_t Sum(const int* a, const int* b, int64_t step, int64_t first, int64_t dims) const;

  int64_t bytes() const;

 private:
  static constexpr int kMostWords = 4;
  struct Word {
    uint64_t bits[kMostWords];
  };

  size_t Index(int64_t mask, int level) const { return static_cast<size_t>(mask * levels_ + level); }
  // The product of two levels, cycle by cycle; level: index in the table.
  Word Product(int64_t mask, int a, int b) const;
  void AddOr(const Word* words, const bool* negative, int64_t count, int64_t* acc) const;
  void AddMux(const Word* words, const bool* negative, int64_t count, int64_t* acc) const;
  void AddApc(const Word* words, const bool* negative, int64_t count, int64_t* acc) const;

  ScAdder adder_;
  ScGate gate_;
  ScCode code_;
  int q_max_;
  int levels_;
  int masks_;
  int words_;
  int stoc_len_;
  int group_;
  Word all_ = {};               // every cycle
  std::vector<Word> a_, b_;     // [masks][levels]; b of the enabled gate in the order in which a's ones take it
  std::vector<Word> selected_;  // mux: [adder_group], the cycles of each input
};

}  // namespace stoch
