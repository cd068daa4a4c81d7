// SPDX-License-Identifier: Apache-2.0
// Tables for wide tiles (hopper/) in which every row has its own stream length. Streams of K and V are made once, at
// the longest length. A shorter stream of a query or of a probability is a shorter thermometer (ones up to a rank) over
// the streams of the longest length (kernels/sc/swap.h), so only the codes (ranks) and the gains of rows differ between
// lengths.
//
// Bits: docs/research.md#mixed-lengths, as on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

inline constexpr int kRankMasks = 64;  // entries of RankTable::class_of: the masks of the operator, repeated

// Ranks of side a (queries or probabilities) at one stream length.
struct alignas(16) RankTable {
  // [classes][kLevels]: ones of a level's stream, at most 127. Null at length 128, where the rank of a level follows
  // from DirectRanks<4> without a table.
  const uint8_t* ranks = nullptr;
  const uint8_t* class_of = nullptr;  // [kRankMasks]: the class of each mask; masks with equal ranks share a class
  // Real number per count of a product at this length.
  float gain = 0.0f;
  static constexpr int kLevels = 128;

#if defined(__CUDACC__)
  // Returns the rank of `level` at index `at` of the inner dimension: a dimension of the head (q k) or a position (p
  // v). Requires: ranks is not null.
  __device__ __forceinline__ uint32_t Rank(int64_t at, uint32_t level) const {
    return __ldg(ranks + __ldg(class_of + (at & (kRankMasks - 1))) * kLevels + level);
  }
#endif
};

// Rank tables of all lengths of one product, by slot (index of the length), in device memory. Immutable; shared by the
// layers of a cache.
class RankTables {
 public:
  // Makes the tables of the operators by_slot; null entries stand for length 0. Requires: WideOperator(by_slot) is not
  // null.
  // Async: waits for its copies, so not while a graph is recorded.
  static std::shared_ptr<const RankTables> Make(const Device& device, const std::vector<ScOperatorPtr>& by_slot);

  // The operator with which the streams of K and V are made: WideOperator(by_slot), whose length is the longest one,
  // rounded up to 64 or 128 cycles.
  const ScOperator& longest() const { return *longest_; }
  const RankTable* tables() const { return tables_; }   // [slots], device memory
  const uint32_t* swapped() const { return swapped_; }  // SwapStreams(longest()) as 32-bit words, device memory

 private:
  RankTables() = default;
  ScOperatorPtr longest_;
  Buffer memory_;
  const RankTable* tables_ = nullptr;
  const uint32_t* swapped_ = nullptr;
};

}  // namespace stoch::cuda
