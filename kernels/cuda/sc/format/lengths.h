// SPDX-License-Identifier: Apache-2.0
// Mixed stream lengths in device memory: a count table for every length, and the rule that picks the length of a row.
//
// A slot is the index of a length among all lengths that an operator may run at (ScExtras::by_length). A level number
// is an index that the thresholds of a rule give to a row or (row, chunk); the rule maps level numbers to slots.
// Bits: level numbers and slots equal those of kernels/sc/sc_lengths.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/math/quantize.h"
#include "kernels/sc/sc_lengths.h"

namespace stoch::cuda {

// The count table of one stream length. counts16 and counts32 both null: length 0, whose counts are 0, or a number
// format.
struct LengthTable {
  const int16_t* counts16 = nullptr;  // [mask_bits + 1][levels][levels] counts; null: they are in counts32
  const int32_t* counts32 = nullptr;  // [mask_bits + 1][levels][levels] counts of more than 16 bits; null: in counts16
  int32_t mask_bits = 0;              // number of masks - 1: dimension d uses mask d & mask_bits
  float gain = 0.0f;                  // real value of one count, before the scales of its operands
  int32_t stoc_len = 0;               // cycles of a stream
};
// Returns the count table of `op`, whose counts are copied to the device at first use. A number format (IsNumberFormat)
// has no counts: both pointers stay null.
LengthTable MakeLengthTable(TableCache& cache, const ScOperator& op);

// The count table of one stream length in bytes, for kernels that keep its rows in shared memory. Length 0 has a table
// of zeros.
struct alignas(16) ByteTable {
  const uint8_t* counts = nullptr;  // [mask_bits + 1][levels][levels], low byte of each count
  float gain = 0.0f;                // real value of one count, before the scales of its operands
  uint16_t mask_bits = 0;           // number of masks - 1
  uint16_t top_is_256 = 0;          // 1: entry (levels - 1, levels - 1) of every mask reads 0 and stands for 256
};
inline constexpr int kMaxByteTables = 32;  // byte tables of one operator, at most

// Side a's streams of one stream length, their bits in the cycle order of a longer operator (kernels/sc/sc_nested.h),
// so that one binary product takes rows of several lengths.
struct StreamTable {
  const uint32_t* streams = nullptr;  // [masks][levels][stream_words], sizes of that longer operator; null: length 0
  float gain = 0.0f;                  // real value of one count of this length
};
// The slots whose streams take the same number of 32-bit words of a tensor core operand (StreamShape::words and
// halves), so that one binary product takes all their rows.
struct LengthGroup {
  // The operator in whose cycle order the group's streams are, at least as long as each of them: one whose ranks are
  // direct (RanksAreDirect) if the streams nest in such an operator, else the longest of the group.
  ScOperatorPtr order;
  // Device memory [slots]: streams of every slot that is no longer than `order`, shorter groups included; null entries
  // for the other slots.
  const StreamTable* streams = nullptr;
  StreamTable one;  // the group's streams if it has one length; streams null if it has several lengths, or length 0
};
// Groups of an operator, at most: streams of up to 128 cycles take 1 to 4 words, longer ones two halves of 3 or 4
// words.
inline constexpr int kMaxLengthGroups = 6;

inline constexpr int kMaxRuleSlots = 256;  // most bytes of slot_of that kernels copy to shared memory

// The count tables of a product by slot, and the rule that picks the slot of a row, as kernels see them; passed by
// value.
struct LengthView {
  const LengthTable* tables = nullptr;   // [slots] count table of each length
  const ByteTable* bytes = nullptr;      // [slots]; null: some length has no ByteTable, or slots > kMaxByteTables
  const StreamTable* streams = nullptr;  // [slots], in the longest length's cycle order; null: one slot, or no nesting
  int32_t slots = 0;                     // number of lengths, length 0 included
  bool any_top_is_256 = false;           // whether ByteTable::top_is_256 of any slot is set
  ScCode code = ScCode::kSignMagnitude;
  int32_t levels = 128;             // levels of an operand: the side of every table
  int32_t q_max = 127;              // largest level
  float scale_floor = kScaleFloor;  // least max |x| of a scope
  bool wide = false;                // counts of `tables` are in counts32

  // The rule (kernels/sc/sc_lengths.h), its arrays in device memory. If has_rule is false, every row has slot 0 and the
  // members from `scope` to `num_slot_of` mean nothing.
  bool has_rule = false;
  ScLengthScope scope = ScLengthScope::kRow;
  ScNormalise normalise = ScNormalise::kFixed;
  ScMetric metric = ScMetric::kAmax;
  float sign = 1.0f;                  // factor of the metric, +1 or -1
  float lo = 0.0f, hi = 1.0f;         // kFixed: the signed metrics that normalising maps to 0 and to 1
  bool escapes = false;               // kRow: rows above escape_threshold take the escape length
  double escape_threshold = 0.0;      // normalised metric above which a row escapes
  int32_t num_thresholds = 0;         // length of `thresholds`
  int32_t num_fractions = 0;          // length of `fractions`
  const float* thresholds = nullptr;  // [num_thresholds] thresholds of the normalised metric
  const double* fractions = nullptr;  // [num_fractions], kFractions: shares of the rows of a call, by level number
  // A band is the set of chunks that share a row of slot_of.
  const int32_t* bands = nullptr;    // [chunks] row of slot_of for each chunk; null: row 0 for all chunks
  const uint8_t* slot_of = nullptr;  // [bands][num_thresholds + 2] slot by level number, the escape's slot last
  int32_t num_slot_of = 0;           // bytes of slot_of
  ScArith arith = ScArith::kSc;

  // Whether the slot of a row depends on that row alone.
  bool alone() const { return !has_rule || (normalise == ScNormalise::kFixed && scope != ScLengthScope::kFractions); }
};

// The slot of every row, or of every chunk of every row, of a call.
struct RowSlots {
  const uint8_t* slots = nullptr;  // device memory [rows][per_row]; null: slot 0 everywhere
  int64_t per_row = 1;             // slots of a row: 1, or the number of chunks
};

// The stream lengths of a call's rows, in groups for the tensor cores.
struct CallLengths {
  std::span<const LengthGroup> groups;
  const uint8_t* group_of = nullptr;  // device memory [slots]: index in `groups` of each slot's group; null: one group
  RowSlots slots;
};

// Owns the device tables of one operator or, if `extras` has operators by length, of these operators, and the view of
// the tables that kernels take.
// Errors:   OutOfMemory.
// Async:    copies to the device are synchronous, so an object must not be made while a graph is recorded; `cache` must
//           outlive this object.
class LengthTables {
 public:
  LengthTables(Device device, TableCache& cache, const ScOperatorPtr& op, const ScExtras* extras);
  const LengthView& view() const { return view_; }
  // The operator of the longest length, in whose cycle order view().streams are; null if view().streams is null.
  const ScOperatorPtr& longest() const { return longest_; }
  // The groups of all slots, shortest streams first; the slot of length 0 is in the first group. Empty if
  // view().streams is null, if the streams of some group nest in no operator, or if a length exceeds kMaxStreamCycles.
  std::span<const LengthGroup> groups() const { return groups_; }
  // Device memory [slots]: index in groups() of each slot's group; null if groups() is empty.
  const uint8_t* group_of() const { return group_of_; }

 private:
  Buffer memory_;
  LengthView view_;
  ScOperatorPtr longest_;
  std::vector<LengthGroup> groups_;
  const uint8_t* group_of_ = nullptr;
};

}  // namespace stoch::cuda
