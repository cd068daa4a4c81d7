// SPDX-License-Identifier: Apache-2.0
// Wide tiles of rows that have stream lengths of their own: a shorter stream of a query, or of a probability, is a
// shorter thermometer over the streams of K and V that the longest has (kernels/sc/swap.h), so that only the codes
// of rows and their gains differ.
//
// Bits: docs/research.md#mixed-lengths, as on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

inline constexpr int kRankMasks = 64;  // masks that RankTable::class_of is repeated to

// Codes of side a at one length.
struct alignas(16) RankTable {
  // [classes][levels]: bits of a level's stream, at most 127. Null where a level stands for DirectRanks<4> of it: at 128.
  const uint8_t* ranks = nullptr;
  const uint8_t* class_of = nullptr;  // [kRankMasks]: masks of equal ranks share a class
  float gain = 0.0f;
  static constexpr int kLevels = 128;

#if defined(__CUDACC__)
  // The rank of a level in dimension or position `at`. Requires: ranks.
  __device__ __forceinline__ uint32_t Rank(int64_t at, uint32_t level) const {
    return __ldg(ranks + __ldg(class_of + (at & (kRankMasks - 1))) * kLevels + level);
  }
#endif
};

// The operators of a product by slot, as wide tiles see them. Immutable; lives as long as its caches.
class RankTables {
 public:
  // Requires: operators that wide tiles take (WideOperator).
  // Async: copies wait, so not while a graph is recorded.
  static std::shared_ptr<const RankTables> Make(const Device& device, const std::vector<ScOperatorPtr>& by_slot);

  // WideOperator, whose streams K and V take.
  const ScOperator& longest() const { return *longest_; }
  const RankTable* tables() const { return tables_; }   // [slots]
  const uint32_t* swapped() const { return swapped_; }  // SwapStreams(longest) as 32-bit words

 private:
  RankTables() = default;
  ScOperatorPtr longest_;
  Buffer memory_;
  const RankTable* tables_ = nullptr;
  const uint32_t* swapped_ = nullptr;
};

}  // namespace stoch::cuda
