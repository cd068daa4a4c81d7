// SPDX-License-Identifier: Apache-2.0
// Mixed stream lengths in device memory: a count table for every length, and the rule that picks one for a row.
//
// Bits: levels and slots are those of kernels/sc/sc_lengths.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/math/quantize.h"
#include "kernels/sc/sc_lengths.h"

namespace stoch::cuda {

// The counts of one length. Both null: length 0, which adds nothing.
struct LengthTable {
  const int16_t* counts16 = nullptr;  // [mask_bits + 1][levels][levels]
  const int32_t* counts32 = nullptr;  // in its place where entries need more than 16 bits
  int32_t mask_bits = 0;              // masks - 1
  float gain = 0.0f;
  int32_t stoc_len = 0;
};
// The table of an operator by itself; of a format of numbers without counts.
LengthTable MakeLengthTable(TableCache& cache, const ScOperator& op);

// A table as kernels read it that keep rows of counts in shared memory, a byte a count (ScTables::counts8). Of length 0
// every count is 0.
struct alignas(16) ByteTable {
  const uint8_t* counts = nullptr;  // [mask_bits + 1][levels][levels]
  float gain = 0.0f;
  uint16_t mask_bits = 0;
  uint16_t top_is_256 = 0;
};
inline constexpr int kMaxByteTables = 32;

// A table as streams in the order of the longest (kernels/sc/sc_nested.h). Null: length 0.
struct StreamTable {
  const uint32_t* streams = nullptr;  // [masks][levels][words] of the longest
  float gain = 0.0f;
};
// Slots whose streams take as many words of a tensor core operand (StreamShape): one product has room for all.
struct LengthGroup {
  // In whose order of cycles the streams are, no shorter than any of them: one whose ranks are direct (RanksAreDirect)
  // where there is one, else the longest.
  ScOperatorPtr order;
  const StreamTable* streams = nullptr;  // device memory, [slots]: of all that are no longer than `order`
  StreamTable one;                       // of the one length of the group; no streams: it has several, or length 0
};
inline constexpr int kMaxLengthGroups = 6;  // 1 to 4 words of up to 128 cycles, two times 3 or 4 of up to 256

inline constexpr int kMaxRuleSlots = 256;  // entries of LengthView::slot_of that a decode kernel keeps at hand

// The operators of a product by slot, as kernels see them; passed by value.
struct LengthView {
  const LengthTable* tables = nullptr;  // [slots]
  const ByteTable* bytes = nullptr;  // [slots]; null where a length has no bytes, or there are more than kMaxByteTables
  const StreamTable* streams = nullptr;  // [slots]; null where streams of the lengths do not nest
  int32_t slots = 0;
  bool any_top_is_256 = false;  // of bytes
  ScCode code = ScCode::kSignMagnitude;
  int32_t levels = 128;  // side of every table
  int32_t q_max = 127;
  float scale_floor = kScaleFloor;
  bool wide = false;  // counts32

  // The rule; without one every row has slot 0.
  bool has_rule = false;
  ScLengthScope scope = ScLengthScope::kRow;
  ScNormalise normalise = ScNormalise::kFixed;
  ScMetric metric = ScMetric::kAmax;
  float sign = 1.0f;
  float lo = 0.0f, hi = 1.0f;
  bool escapes = false;
  double escape_threshold = 0.0;
  int32_t num_thresholds = 0;
  int32_t num_fractions = 0;
  const float* thresholds = nullptr;  // [num_thresholds]
  const double* fractions = nullptr;  // [num_fractions]
  const int32_t* bands = nullptr;     // [chunks]; null: one band
  const uint8_t* slot_of = nullptr;   // [bands][num_thresholds + 2], by level; the last is the escape
  int32_t num_slot_of = 0;
  ScArith arith = ScArith::kSc;

  // Whether the slot of a row depends on that row alone.
  bool alone() const { return !has_rule || (normalise == ScNormalise::kFixed && scope != ScLengthScope::kFractions); }
};

// Which length a (row, chunk) runs at: slots [rows][per_row], per_row 1 or the number of chunks; null: slot 0.
struct RowSlots {
  const uint8_t* slots = nullptr;
  int64_t per_row = 1;
};

// Stream lengths of the rows of a call: the groups of their lengths, and in device memory the group of each slot [slots] (null:
// there is one group) and the slots.
struct CallLengths {
  std::span<const LengthGroup> groups;
  const uint8_t* group_of = nullptr;
  RowSlots slots;
};

// Device tables of an operator, or of the operators that its extras have in place of it. Keeps the memory of a view.
// Errors:   OutOfMemory.
// Async:    copies wait, so not while a graph is recorded; `cache` must live as long.
class LengthTables {
 public:
  LengthTables(Device device, TableCache& cache, const ScOperatorPtr& op, const ScExtras* extras);
  const LengthView& view() const { return view_; }
  // The operator whose order the streams of the view have; null where it has none.
  const ScOperatorPtr& longest() const { return longest_; }
  // Groups of all slots, shortest streams first, and the group of each in device memory [slots]; length 0 is in the
  // first. None where streams have no order of the longest, or those of a group none of its own.
  std::span<const LengthGroup> groups() const { return groups_; }
  const uint8_t* group_of() const { return group_of_; }

 private:
  Buffer memory_;
  LengthView view_;
  ScOperatorPtr longest_;
  std::vector<LengthGroup> groups_;
  const uint8_t* group_of_ = nullptr;
};

}  // namespace stoch::cuda
