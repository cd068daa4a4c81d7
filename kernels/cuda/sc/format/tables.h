// SPDX-License-Identifier: Apache-2.0
// The tables of SC operators in device memory, one copy per device and operator.
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

// A quarter of a row of the count table: the counts of 32 consecutive levels of side b, in 8 bytes instead of 32. It
// exists if from each level of the quarter to the next the count stays or rises by one.
struct CountQuarter {
  uint32_t rises = 0;  // bit i: the count of level i + 1 of the quarter is one more than that of level i
  uint32_t first = 0;  // count of the quarter's first level
};
inline constexpr int kQuarterLevels = 32;  // levels of side b in a quarter
inline constexpr int kCountQuarters = 4;   // quarters of a row of 128 levels

// The device tables of one operator, as kernels see them; passed by value. In a linear, activations are side a and
// weights are side b.
struct ScTables {
  // [masks][levels][levels] low byte of each count; null if the counts do not fit bytes (CountsFitBytes). If
  // top_is_256, entry (levels - 1, levels - 1) of every mask reads 0 and stands for 256; all other entries are exact.
  const uint8_t* counts8 = nullptr;
  const int16_t* counts16 = nullptr;  // [masks][levels][levels] counts, never null
  // [masks][levels][kCountQuarters] rows of counts in quarters; null unless CountsAreStaircases: sign-magnitude codes
  // of at most 128 levels, of which all quarters exist.
  const CountQuarter* quarters = nullptr;
  const uint32_t* factors = nullptr;    // [masks][kResidualLevels] ScResiduals::factors, one byte a term; null: none
  const uint32_t* residuals = nullptr;  // [masks][kResidualLevels][kResidualWords] ScResiduals::residuals; null: none
  const ScTileEntry* tile_entries = nullptr;  // [masks][256 codes of side a] parts of the closed form; null: none
  const ScInt8Entry* int8_entries = nullptr;  // [masks][256 codes of side a] parts of its int8 form; null: none
  // [masks][levels][stream_words] streams of side a, bit j in word j / 32; null: the operator has none.
  const uint32_t* streams = nullptr;
  const uint16_t* ranks = nullptr;  // [masks][levels] ones of side b's streams, 0..stoc_len; null without streams
  int stream_words = 0;             // 32-bit words of a stream: ceil(stoc_len / 32), rounded up to a multiple of 2
  int masks = 1;                    // distinct masks, a power of two: dimension d uses mask d & (masks - 1)
  int levels = 128;                 // levels of an operand: the side of the count table
  int q_max = 127;                  // largest level
  int stoc_len = 128;               // stream length in cycles
  int max_count = 0;                // largest absolute count that occurs
  bool top_is_256 = false;          // whether the last entries of counts8 stand for 256 (see there)
  bool direct_ranks = false;        // whether a formula gives `ranks` (RanksAreDirect)
  float gain = 0;                   // real value of one count, before the scales of its operands
  ScCode code = ScCode::kSignMagnitude;
};

// Owns the tables of every operator used on one device and finds them by configuration. Entries live as long as the
// cache.
class TableCache {
 public:
  explicit TableCache(Device device) : device_(device) {}
  // The tables of `op`, copied to the device at first use (synchronously, so not while a graph is recorded).
  const ScTables& Get(const ScOperator& op);
  // The traits of `op` that plans read. They are kept with the tables of `op`, so the first call copies the tables to
  // the device as Get does.
  const ScTraits& Traits(const ScOperator& op);
  // op.wide_counts in device memory, copied at first use. Requires: op.wide_counts is not empty.
  const int32_t* Wide(const ScOperator& op);
  // The pieces of a nonlinear function in device memory, copied at first use. Null `table`: a view without pieces.
  NonlinearView Function(const NonlinearTable* table);
  // Side a's streams of `shorter` in the cycle order of `longer` (NestStreams of kernels/sc/sc_nested.h) as 32-bit
  // words in device memory; null if the streams do not nest.
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
    Buffer memory;  // empty: streams of `shorter` do not nest in `longer`
  };
  std::vector<NestedEntry> nested_;
  struct FunctionEntry {
    NonlinearTable table;
    Buffer memory;  // [3][pieces] floats: cuts, values, slopes
  };
  std::vector<FunctionEntry> functions_;
};

}  // namespace stoch::cuda
