// SPDX-License-Identifier: Apache-2.0
// A weight with mixed stream lengths, protected channels, smoothing, integers or a multiplier table, as plans see it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/handles.h"
#include "kernels/plan/sc_dims.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

// How a kernel finds the length of a row.
enum class SlotRule : uint8_t {
  kNone,   // one length
  kRow,    // from a metric of the row, in the kernel
  kChunk,  // from a metric of each chunk, in the kernel
  kApart,  // by kernels of its own
};

struct MixedTraits {
  ScDims dims;        // of the channels that rows are dispatched by
  ScTraits any;       // of a length that is not 0
  ScTraits longest;   // of the longest; read where has_bytes or nests
  int64_t slots = 1;  // lengths, 0 included
  SlotRule rule = SlotRule::kNone;
  bool is_plain = false;   // ideal hardware, a scale a row, no smoothing, no protected channels, lengths of rows alone
  bool has_bytes = false;  // counts of every length fit bytes
  bool nests = false;      // streams of every length are a part of those of the longest
  bool has_quarters = false;   // every length has what kMixedFew looks up
  bool has_residuals = false;  // every length has what kMixedTable looks up
  bool can_sort = false;       // rows of one length are a product of their own without other bits
};

// Bounds of what kernels keep of lengths.
inline constexpr int kMaxByteTables = 32;    // lengths with bytes
inline constexpr int kMaxLookupLengths = 8;  // lengths of kMixedFew and kMixedTable
inline constexpr int kMaxRuleSlots = 256;    // entries of a rule that a kernel keeps at hand
inline constexpr int kMaxLengthGroups = 6;   // 1 to 4 words of up to 128 cycles, two times 3 or 4 of up to 256

// Whether a weight of this kind has extras, integers, a format of numbers or a multiplier table.
bool NeedsMixed(const LinearSpec& spec);
// The operators of a product by slot: those of its extras, or the one. Keeps neither.
std::span<const ScOperatorPtr> OperatorsBySlot(const ScOperatorPtr& op, const ScExtrasPtr& extras);
// The first of those with the longest streams; null where all are.
ScOperatorPtr LongestOperator(std::span<const ScOperatorPtr> by_slot);
// Whether counts of every length fit bytes, and there are no more of them than kernels keep.
bool HaveBytes(std::span<const ScOperatorPtr> by_slot);
// Whether the length of a row depends on that row alone.
bool IsOfRow(const ScLengthRule& rule);

// The traits of a specification. Takes milliseconds (it looks for residuals, and for an order in which streams nest).
MixedTraits MakeMixedTraits(const LinearSpec& spec, int64_t in_features);
// Sets those that follow from the configuration alone: is_plain, rule, can_sort.
void SetRuleTraits(const LinearSpec& spec, MixedTraits* traits);
// Whether a kernel can keep the rule.
SlotRule SlotRuleOf(const ScLengthRule* rule);
// Whether one length has what kMixedFew looks up.
bool HasQuarters(const ScTraits& sc);

// Words of a tensor core operand (StreamShape) that streams take: equal for the lengths of one group.
int StreamWords(const ScOperator& op);
// Orders of cycles of the groups of lengths, shortest first: one whose ranks are direct (RanksAreDirect) if streams nest
// in it, else the longest of the group. Empty if streams of a group nest in neither or exceed kMaxStreamCycles.
std::vector<ScOperatorPtr> LengthOrders(std::span<const ScOperatorPtr> by_slot);

}  // namespace stoch
