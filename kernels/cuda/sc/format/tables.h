// SPDX-License-Identifier: Apache-2.0
// The tables of an ScOperator in device memory, one copy per device and operator.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/math/nonlinear_view.h"
#include "kernels/plan/sc_traits.h"
#include "kernels/sc/closed_form/int8_form.h"
#include "kernels/sc/closed_form/tile_form.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

// A quarter of a row of counts, 32 levels of side b, in a fourth of the bytes: from one level to the next a count stays
// or rises by one.
struct CountQuarter {
  uint32_t rises = 0;  // bit i: the count of level i + 1 of the quarter is one more than that of level i
  uint32_t first = 0;  // the count of its first level
};
inline constexpr int kQuarterLevels = 32;
inline constexpr int kCountQuarters = 4;

// An operator as kernels see it; passed by value.
struct ScTables {
  // [masks][levels][levels], low byte of the count. Null for kOffset. Exact but for one possible exception: where
  // top_is_256 is set, entry (levels-1, levels-1) of every mask stands for 256 and reads 0.
  const uint8_t* counts8 = nullptr;
  const int16_t* counts16 = nullptr;  // [masks][levels][levels], always there, always exact
  // [masks][levels][kCountQuarters] of the rows of counts; null where a count rises faster, or for more levels.
  const CountQuarter* quarters = nullptr;
  // ScResiduals of the operator; null where it has none.
  const uint32_t* factors = nullptr;          // [masks][kResidualLevels], a byte a term
  const uint32_t* residuals = nullptr;        // [masks][kResidualLevels][kResidualWords]
  const ScTileEntry* tile_entries = nullptr;  // MakeScTileEntries [masks][256]; null where there are none
  const ScInt8Entry* int8_entries = nullptr;  // MakeScInt8Entries [masks][256]; null where there are none
  // ScOperator::streams_a as 32-bit words (bit j in word j / 32) and ranks_b; null without streams.
  const uint32_t* streams = nullptr;  // [masks][levels][stream_words]
  const uint16_t* ranks = nullptr;    // [masks][levels], 0..stoc_len
  int stream_words = 0;               // ceil(stoc_len / 32), rounded up to a multiple of 2
  int masks = 1;
  int levels = 128;
  int q_max = 127;
  int stoc_len = 128;
  int max_count = 0;
  bool top_is_256 = false;
  bool direct_ranks = false;  // RanksAreDirect (kernels/plan/sc_traits.h)
  float gain = 0;
  ScCode code = ScCode::kSignMagnitude;
};

// The tables of every operator used on one device, found by configuration; entries live as long as the cache.
class TableCache {
 public:
  explicit TableCache(Device device) : device_(device) {}
  // The tables of `op`, copied to the device at first use (synchronous; so not while a graph is recorded).
  const ScTables& Get(const ScOperator& op);
  // Traits of it that plans read, kept with its tables.
  const ScTraits& Traits(const ScOperator& op);
  // The counts of an operator that keeps them in 32 bits. Requires: wide_counts.
  const int32_t* Wide(const ScOperator& op);
  // A table of a function, copied at first use; of none (null) a view without pieces.
  NonlinearView Function(const NonlinearTable* table);
  // NestStreams as 32-bit words (kernels/sc/sc_nested.h); null where there are none.
  const uint32_t* Nested(const ScOperator& shorter, const ScOperator& longer);

 private:
  struct Entry {
    ScConfig config;
    ScTraits traits;
    Buffer memory;
    ScTables tables;
  };
  const Entry& Find(const ScOperator& op);

  Device device_;
  std::vector<std::unique_ptr<Entry>> entries_;
  struct WideEntry {
    ScConfig config;
    Buffer memory;
  };
  std::vector<WideEntry> wide_;
  struct NestedEntry {
    ScConfig shorter, longer;
    Buffer memory;  // empty: they do not nest
  };
  std::vector<NestedEntry> nested_;
  struct FunctionEntry {
    NonlinearTable table;
    Buffer memory;  // [3][size]: cuts, values, slopes
  };
  std::vector<FunctionEntry> functions_;
};

}  // namespace stoch::cuda
