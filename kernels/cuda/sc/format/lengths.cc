// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sc/format/lengths.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/plan/linear/mixed_traits.h"
#include "kernels/plan/sc_dims.h"
#include "kernels/plan/sc_traits.h"

namespace stoch::cuda {
namespace {

// A host image of several arrays at 256-byte aligned offsets, so that one copy brings all of them to the device.
class Image {
 public:
  template <typename T>
  size_t Add(const std::vector<T>& values) {
    constexpr size_t kAlignment = 256;
    const size_t at = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(at + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size() * sizeof(T));
    return at;
  }
  template <typename T>
  void Set(size_t at, const std::vector<T>& values) {
    std::memcpy(bytes_.data() + at, values.data(), values.size() * sizeof(T));
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  std::vector<char> bytes_;
};

// Returns LengthView::slot_of, [bands][thresholds + 2]: the slot of each level number. The last entry of a band is the
// slot of the escape length, or 0 if the rule has none.
std::vector<uint8_t> SlotsOfLevels(const ScExtras& extras) {
  const ScLengthRule& rule = *extras.lengths;
  const size_t bands = rule.ladders.empty() ? 1 : rule.ladders.size();
  std::vector<uint8_t> slots;
  for (size_t band = 0; band < bands; ++band) {
    const std::vector<int>& lengths = rule.ladders.empty() ? rule.levels : rule.ladders[band];
    STOCH_CHECK(lengths.size() >= rule.thresholds.size() + 1);
    for (size_t level = 0; level <= rule.thresholds.size(); ++level) {
      slots.push_back(static_cast<uint8_t>(extras.Slot(lengths[level])));
    }
    slots.push_back(rule.escapes ? static_cast<uint8_t>(extras.Slot(rule.escape_len)) : uint8_t{0});
  }
  return slots;
}

// Returns LengthView::bytes, one table for each slot; empty if some length has no ByteTable: its counts do not fit
// bytes, its code is not kSignMagnitude, it has more than 128 levels, or it is a number format. `zeros`: device memory,
// [levels][levels] counts of length 0.
std::vector<ByteTable> MakeByteTables(TableCache& cache, const std::vector<ScOperatorPtr>& by_slot,
                                      const uint8_t* zeros) {
  std::vector<ByteTable> bytes;
  for (const ScOperatorPtr& one : by_slot) {
    if (one == nullptr) {
      bytes.push_back({zeros, 0.0f, 0, 0});
      continue;
    }
    if (!one->wide_counts.empty() || IsNumberFormat(one->config.arith)) return {};
    const ScTables& tables = cache.Get(*MakeScOperator(one->config));
    if (tables.counts8 == nullptr || tables.code != ScCode::kSignMagnitude || tables.levels > 128) return {};
    bytes.push_back({tables.counts8, tables.gain, static_cast<uint16_t>(tables.masks - 1),
                     static_cast<uint16_t>(tables.top_is_256 ? 1 : 0)});
  }
  return bytes;
}

static_assert(kMaxByteTables == stoch::kMaxByteTables && kMaxRuleSlots == stoch::kMaxRuleSlots &&
              kMaxLengthGroups == stoch::kMaxLengthGroups);

// The operator of the longest length, made from its configuration alone: operators in `by_slot` may have repeated
// masks, so that all have the same number of masks. Null if all lengths are 0.
ScOperatorPtr LongestOf(const std::vector<ScOperatorPtr>& by_slot) {
  const ScOperatorPtr longest = LongestOperator(by_slot);
  return longest == nullptr ? nullptr : MakeScOperator(longest->config);
}

// Returns LengthView::streams, one table for each slot; empty if `longest` is null or has no streams, or if the streams
// of some length do not nest in those of `longest`.
std::vector<StreamTable> MakeStreamTables(TableCache& cache, const std::vector<ScOperatorPtr>& by_slot,
                                          const ScOperatorPtr& longest) {
  std::vector<StreamTable> tables;
  if (longest == nullptr || longest->code != ScCode::kSignMagnitude || !longest->has_streams) return {};
  for (const ScOperatorPtr& one : by_slot) {
    StreamTable table;
    if (one != nullptr) table = {cache.Nested(*MakeScOperator(one->config), *longest), one->gain};
    if (one != nullptr && table.streams == nullptr) return {};
    tables.push_back(table);
  }
  return tables;
}

// The groups of lengths on the host. LengthGroup::streams stay null until `streams` has been copied to the device.
struct Groups {
  std::vector<LengthGroup> groups;
  std::vector<StreamTable> streams;  // [groups][slots] future contents of LengthGroup::streams
  std::vector<uint8_t> group_of;     // [slots] index of each slot's group
};

Groups MakeGroups(TableCache& cache, const std::vector<ScOperatorPtr>& by_slot) {
  const std::vector<ScOperatorPtr> orders = LengthOrders(by_slot);
  STOCH_CHECK(orders.size() <= kMaxLengthGroups);
  Groups all;
  all.group_of.assign(by_slot.size(), 0);
  int shorter_words = 0;  // words of a stream of the previous group
  for (const ScOperatorPtr& order : orders) {
    const int words = StreamWords(*order);
    LengthGroup group;
    group.order = order;
    bool is_one = true;
    int length = 0;  // cycles of the group's last slot so far; 0: none yet
    for (size_t slot = 0; slot < by_slot.size(); ++slot) {
      const ScOperatorPtr& own = by_slot[slot];
      const int own_words = own == nullptr ? 0 : StreamWords(*own);
      StreamTable table;
      if (own != nullptr && own_words <= words) {
        table = {cache.Nested(*MakeScOperator(own->config), *order), own->gain};
      }
      all.streams.push_back(table);
      const bool in_group = own == nullptr ? all.groups.empty() : own_words > shorter_words && own_words <= words;
      if (!in_group) continue;
      all.group_of[slot] = static_cast<uint8_t>(all.groups.size());
      const int cycles = own == nullptr ? 0 : own->config.stoc_len;
      is_one = is_one && cycles > 0 && (length == 0 || cycles == length);
      length = cycles;
      group.one = table;
    }
    if (!is_one) group.one = {};
    all.groups.push_back(std::move(group));
    shorter_words = words;
  }
  return all;
}

}  // namespace

LengthTable MakeLengthTable(TableCache& cache, const ScOperator& op) {
  LengthTable table;
  table.gain = op.gain;
  table.stoc_len = op.config.stoc_len;
  if (IsNumberFormat(op.config.arith)) return table;
  if (op.wide_counts.empty()) {
    const ScTables& tables = cache.Get(op);
    table.counts16 = tables.counts16;
    table.mask_bits = tables.masks - 1;
  } else {
    table.counts32 = cache.Wide(op);
    table.mask_bits = op.masks - 1;
  }
  return table;
}

LengthTables::LengthTables(Device device, TableCache& cache, const ScOperatorPtr& op, const ScExtras* extras) {
  std::vector<ScOperatorPtr> by_slot{op};
  if (extras != nullptr && !extras->by_length.empty()) by_slot = extras->by_length;
  const ScOperator* first = nullptr;
  std::vector<LengthTable> tables;
  for (const ScOperatorPtr& one : by_slot) {
    // An operator in by_slot may repeat its masks to have as many as the other lengths. The tables of its configuration
    // have the same counts in fewer masks.
    const ScOperatorPtr original = one == nullptr ? nullptr : MakeScOperator(one->config);
    tables.push_back(original == nullptr ? LengthTable{} : MakeLengthTable(cache, *original));
    if (first == nullptr) first = one.get();
  }
  STOCH_CHECK(first != nullptr);
  view_.code = first->code;
  view_.levels = first->levels;
  view_.q_max = first->q_max;
  view_.scale_floor = first->scale_floor;
  view_.wide = !first->wide_counts.empty();
  view_.arith = first->config.arith;

  view_.slots = static_cast<int32_t>(by_slot.size());

  Image image;
  const size_t at_tables = image.Add(tables);
  // `bytes` is made here for its size, and again below once the device address of the zeros is known.
  std::vector<ByteTable> bytes;
  if (by_slot.size() <= kMaxByteTables) bytes = MakeByteTables(cache, by_slot, nullptr);
  const bool has_zeros = !bytes.empty() && std::count(by_slot.begin(), by_slot.end(), nullptr) > 0;
  const size_t side = has_zeros ? static_cast<size_t>(first->levels) : 0;
  const size_t at_zeros = image.Add(std::vector<uint8_t>(side * side));
  const size_t at_bytes = image.Add(bytes);
  std::vector<StreamTable> streams;
  if (by_slot.size() > 1) {
    longest_ = LongestOf(by_slot);
    streams = MakeStreamTables(cache, by_slot, longest_);
    if (streams.empty()) longest_ = nullptr;
  }
  Groups groups;
  if (longest_ != nullptr) groups = MakeGroups(cache, by_slot);
  const size_t at_streams = image.Add(streams);
  const size_t at_group_streams = image.Add(groups.streams);
  const size_t at_group_of = image.Add(groups.group_of);
  size_t at_thresholds = 0, at_fractions = 0, at_bands = 0, at_slots = 0;
  const ScLengthRule* rule = extras == nullptr ? nullptr : extras->lengths.get();
  if (rule != nullptr) {
    at_thresholds = image.Add(rule->thresholds);
    at_fractions = image.Add(rule->fractions);
    at_bands = image.Add(std::vector<int32_t>(rule->chunk_bands.begin(), rule->chunk_bands.end()));
    const std::vector<uint8_t> slots = SlotsOfLevels(*extras);
    at_slots = image.Add(slots);
    view_.num_slot_of = static_cast<int32_t>(slots.size());
  }
  memory_ = AllocateDevice(device, image.bytes().size());
  if (has_zeros) {
    bytes = MakeByteTables(cache, by_slot, static_cast<const uint8_t*>(memory_.data()) + at_zeros);
    image.Set(at_bytes, bytes);
  }
  Upload(device, memory_.data(), image.bytes().data(), image.bytes().size());
  const char* base = static_cast<const char*>(memory_.data());
  view_.tables = reinterpret_cast<const LengthTable*>(base + at_tables);
  if (!streams.empty()) view_.streams = reinterpret_cast<const StreamTable*>(base + at_streams);
  groups_ = std::move(groups.groups);
  if (!groups_.empty()) group_of_ = reinterpret_cast<const uint8_t*>(base + at_group_of);
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].streams = reinterpret_cast<const StreamTable*>(base + at_group_streams) + i * by_slot.size();
  }
  if (!bytes.empty()) view_.bytes = reinterpret_cast<const ByteTable*>(base + at_bytes);
  for (const ByteTable& table : bytes) view_.any_top_is_256 = view_.any_top_is_256 || table.top_is_256 != 0;
  if (rule == nullptr) return;
  view_.has_rule = true;
  view_.scope = rule->scope;
  view_.normalise = rule->normalise;
  view_.metric = rule->metric;
  view_.sign = rule->sign;
  view_.lo = rule->lo;
  view_.hi = rule->hi;
  view_.escapes = rule->escapes;
  view_.escape_threshold = rule->escape_threshold;
  view_.num_thresholds = static_cast<int32_t>(rule->thresholds.size());
  view_.num_fractions = static_cast<int32_t>(rule->fractions.size());
  view_.thresholds = reinterpret_cast<const float*>(base + at_thresholds);
  view_.fractions = reinterpret_cast<const double*>(base + at_fractions);
  if (!rule->ladders.empty()) view_.bands = reinterpret_cast<const int32_t*>(base + at_bands);
  view_.slot_of = reinterpret_cast<const uint8_t*>(base + at_slots);
}

}  // namespace stoch::cuda
