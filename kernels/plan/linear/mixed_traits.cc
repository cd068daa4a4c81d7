// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/linear/mixed_traits.h"

#include <algorithm>
#include <utility>

#include "kernels/sc/hardware/accumulator.h"
#include "kernels/sc/sc_nested.h"

namespace stoch {
namespace {

// The operator as its configuration makes it. In by_length, the single mask of an operator may be repeated to match
// operators with more masks.
ScOperatorPtr Original(const ScOperator& op) { return MakeScOperator(op.config); }

bool FitsBytes(const ScOperator& op) {
  return op.code == ScCode::kSignMagnitude && op.wide_counts.empty() && op.levels <= 128 &&
         MakeScTraits(*Original(op)).has_bytes;
}

bool HasScaleOfRow(const ScConfig& config) {
  return config.granularity == ScGranularity::kPerRow && config.group_a == 1;
}

template <typename Has>
bool All(std::span<const ScOperatorPtr> by_slot, const Has& has) {
  return std::all_of(by_slot.begin(), by_slot.end(), [&](const auto& one) { return one == nullptr || has(*one); });
}

// Whether the streams of all lengths nest in those of the longest.
bool Nest(std::span<const ScOperatorPtr> by_slot, const ScOperator& longest) {
  return by_slot.size() > 1 && longest.code == ScCode::kSignMagnitude && longest.has_streams &&
         All(by_slot, [&](const ScOperator& one) { return StreamsNest(one, longest); });
}

// An operator in whose order of cycles the streams of `up_to` nest: with direct ranks and as many cycles as the words
// of the longest hold, else the longest itself; null if neither fits.
ScOperatorPtr OrderOf(std::span<const ScOperatorPtr> up_to) {
  const ScOperatorPtr longest = Original(*LongestOperator(up_to));
  const auto takes_all = [&](const ScOperator& order) {
    return order.code == ScCode::kSignMagnitude && order.has_streams &&
           All(up_to, [&](const ScOperator& one) { return StreamsNest(one, order); });
  };
  ScConfig full = longest->config;
  full.stoc_len = 32 * StreamWords(*longest);
  if (longest->levels == 128 && full.stoc_len <= 128) {  // the sizes that RanksAreDirect needs
    ScOperatorPtr order = MakeScOperator(full);
    if (RanksAreDirect(*order) && takes_all(*order)) return order;
  }
  return takes_all(*longest) ? longest : nullptr;
}

}  // namespace

bool NeedsMixed(const LinearSpec& spec) {
  if (spec.sc == nullptr) return false;
  const ScConfig& config = spec.sc->config;
  return spec.extras != nullptr || config.arith != ScArith::kSc || !HasSource(config.gate);
}

std::span<const ScOperatorPtr> OperatorsBySlot(const ScOperatorPtr& op, const ScExtrasPtr& extras) {
  if (extras == nullptr || extras->by_length.empty()) return {&op, 1};
  return extras->by_length;
}

ScOperatorPtr LongestOperator(std::span<const ScOperatorPtr> by_slot) {
  ScOperatorPtr longest;
  for (const ScOperatorPtr& one : by_slot) {
    if (one != nullptr && (longest == nullptr || one->config.stoc_len > longest->config.stoc_len)) longest = one;
  }
  return longest;
}

bool HaveBytes(std::span<const ScOperatorPtr> by_slot) {
  return by_slot.size() <= kMaxByteTables && All(by_slot, FitsBytes);
}

bool IsOfRow(const ScLengthRule& rule) {
  return rule.normalise == ScNormalise::kFixed && rule.scope != ScLengthScope::kFractions;
}

SlotRule SlotRuleOf(const ScLengthRule* rule) {
  if (rule == nullptr) return SlotRule::kNone;
  const size_t bands = rule->ladders.empty() ? 1 : rule->ladders.size();
  const bool fits = bands * (rule->thresholds.size() + 2) <= kMaxRuleSlots && rule->thresholds.size() <= kMaxByteTables;
  if (!fits || !IsOfRow(*rule)) return SlotRule::kApart;
  return rule->scope == ScLengthScope::kChunk ? SlotRule::kChunk : SlotRule::kRow;
}

bool HasQuarters(const ScTraits& sc) { return sc.has_quarters && sc.max_count <= 128; }

void SetRuleTraits(const LinearSpec& spec, MixedTraits* traits) {
  const ScExtras* extras = spec.extras.get();
  const ScLengthRule* rule = extras == nullptr ? nullptr : extras->lengths.get();
  const ScConfig& config = spec.sc->config;
  traits->rule = SlotRuleOf(rule);
  traits->is_alone = HasScaleOfRow(config) && (rule == nullptr || IsOfRow(*rule)) &&
                     (extras == nullptr || (extras->smooth.empty() && extras->protected_channels.empty()));
  traits->is_plain = traits->is_alone && !HasHardware(config);
  traits->can_sort =
      !HasHardware(config) && rule != nullptr && !rule->by_chunk() && spec.sc->has_streams && HasScaleOfRow(config);
}

MixedTraits MakeMixedTraits(const LinearSpec& spec, int64_t in_features) {
  const std::span<const ScOperatorPtr> by_slot = OperatorsBySlot(spec.sc, spec.extras);
  MixedTraits traits;
  traits.dims = MakeScDims(in_features, spec.sc->config.chunk_d);
  traits.any = MakeScTraits(*spec.sc);
  traits.slots = static_cast<int64_t>(by_slot.size());
  SetRuleTraits(spec, &traits);
  traits.has_bytes = HaveBytes(by_slot);
  const ScOperatorPtr longest = Original(*LongestOperator(by_slot));
  traits.nests = Nest(by_slot, *longest);
  if (!traits.has_bytes && !traits.nests) return traits;
  traits.longest = MakeScTraits(*longest);
  traits.has_quarters = traits.has_residuals = true;
  for (const ScOperatorPtr& one : by_slot) {
    if (one == nullptr) continue;
    const ScTraits sc = MakeScTraits(*Original(*one));
    traits.has_quarters = traits.has_quarters && HasQuarters(sc);
    traits.has_residuals = traits.has_residuals && sc.has_residuals;
  }
  return traits;
}

int StreamWords(const ScOperator& op) {
  const StreamShape shape = MakeStreamShape(MakeScDims(kTileDims, 0), 1, 8, op.config.stoc_len);
  return shape.halves * shape.words;
}

std::vector<ScOperatorPtr> LengthOrders(std::span<const ScOperatorPtr> by_slot) {
  std::vector<int> sizes;
  for (const ScOperatorPtr& one : by_slot) {
    if (one != nullptr && one->config.stoc_len > kMaxStreamCycles) return {};
    if (one != nullptr) sizes.push_back(StreamWords(*one));
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::vector<ScOperatorPtr> orders;
  for (const int words : sizes) {
    std::vector<ScOperatorPtr> up_to;
    for (const ScOperatorPtr& one : by_slot) {
      up_to.push_back(one != nullptr && StreamWords(*one) <= words ? one : nullptr);
    }
    ScOperatorPtr order = OrderOf(up_to);
    if (order == nullptr) return {};
    orders.push_back(std::move(order));
  }
  return orders;
}

}  // namespace stoch
