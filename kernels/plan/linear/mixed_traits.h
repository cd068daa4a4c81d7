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

// How the stream length of a row is found.
enum class SlotRule : uint8_t {
  kNone,   // one length
  kRow,    // from a metric of the row, in the kernel
  kChunk,  // from a metric of each chunk, in the kernel
  kApart,  // by separate kernels
};

struct MixedTraits {
  ScDims dims;        // dimensions of the channels whose lengths the rule picks
  ScTraits any;       // traits of any length other than 0
  ScTraits longest;   // traits of the longest length; valid if has_bytes or nests
  int64_t slots = 1;  // number of lengths, length 0 included
  SlotRule rule = SlotRule::kNone;
  // Whether each row has its own scales, lengths depend on their row alone, and there is no smoothing and no protected
  // channel.
  bool is_alone = false;
  bool is_plain = false;       // is_alone, and the hardware is ideal
  bool has_bytes = false;      // counts of every length fit bytes
  bool nests = false;          // streams of every length nest in those of the longest
  bool has_quarters = false;   // every length has what kMixedFew looks up
  bool has_residuals = false;  // every length has what kMixedTable looks up
  bool can_sort = false;       // rows of one length can run as an SC linear of that length, with equal bits
};

// Limits of the kernels on lengths and rules.
inline constexpr int kMaxByteTables = 32;    // most lengths with byte tables
inline constexpr int kMaxLookupLengths = 8;  // most lengths of kMixedFew and kMixedTable
inline constexpr int kMaxRuleSlots = 256;    // most slots of a rule that a kernel copies to shared memory
// Most groups: 1 to 4 words for up to 128 cycles, two halves of 3 or 4 words for up to 256.
inline constexpr int kMaxLengthGroups = 6;

// Whether a weight with this specification has extras, integers, a number format or a multiplier table.
bool NeedsMixed(const LinearSpec& spec);
// The operators of a product by slot: extras->by_length, or `op` alone. The span refers to the arguments.
std::span<const ScOperatorPtr> OperatorsBySlot(const ScOperatorPtr& op, const ScExtrasPtr& extras);
// The first operator with the longest streams; null if all operators are null.
ScOperatorPtr LongestOperator(std::span<const ScOperatorPtr> by_slot);
// Whether the counts of every length fit bytes, and there are at most kMaxByteTables lengths.
bool HaveBytes(std::span<const ScOperatorPtr> by_slot);
// Whether the length of a row depends on that row alone.
bool IsOfRow(const ScLengthRule& rule);

// The traits of a specification. Takes milliseconds (it looks for residuals, and for an order in which streams nest).
MixedTraits MakeMixedTraits(const LinearSpec& spec, int64_t in_features);
// Sets the traits that follow from the configuration alone: is_alone, is_plain, rule, can_sort.
void SetRuleTraits(const LinearSpec& spec, MixedTraits* traits);
// How the slots of a rule are found; kNone for null. kApart if the rule is too large for a kernel, or lengths depend on
// other rows.
SlotRule SlotRuleOf(const ScLengthRule* rule);
// Whether a length has what kMixedFew looks up.
bool HasQuarters(const ScTraits& sc);

// Words of a tensor core operand (StreamShape) that streams take: equal for the lengths of one group.
int StreamWords(const ScOperator& op);
// One operator for each group of lengths, shortest first, in whose order of cycles the streams of the group are: one
// whose ranks are direct (RanksAreDirect) if the streams nest in it, else the longest of the group. Empty if streams of
// a group nest in neither or exceed kMaxStreamCycles.
std::vector<ScOperatorPtr> LengthOrders(std::span<const ScOperatorPtr> by_slot);

}  // namespace stoch
