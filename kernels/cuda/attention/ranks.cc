// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention/ranks.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/plan/attention/shape.h"
#include "kernels/sc/swap.h"

namespace stoch::cuda {
namespace {

constexpr int kLongest = 128;

// Ranks at one stream length, on the host. Masks with equal ranks form a class: `ranks` is [classes][kLevels],
// `class_of` is [kRankMasks].
struct Classes {
  std::vector<uint8_t> ranks;
  std::vector<uint8_t> class_of;
};

Classes Classify(const std::vector<uint8_t>& ranks, size_t masks) {
  constexpr size_t kLevels = RankTable::kLevels;
  Classes classes;
  for (size_t i = 0; i < kRankMasks; ++i) {
    const auto row = ranks.begin() + static_cast<std::ptrdiff_t>(i % masks * kLevels);
    size_t found = 0;
    while (found * kLevels < classes.ranks.size() &&
           !std::equal(row, row + kLevels, classes.ranks.begin() + static_cast<std::ptrdiff_t>(found * kLevels))) {
      ++found;
    }
    if (found * kLevels == classes.ranks.size()) classes.ranks.insert(classes.ranks.end(), row, row + kLevels);
    classes.class_of.push_back(static_cast<uint8_t>(found));
  }
  return classes;
}

}  // namespace

std::shared_ptr<const RankTables> RankTables::Make(const Device& device, const std::vector<ScOperatorPtr>& by_slot) {
  const ScOperatorPtr longest = WideOperator(by_slot);
  STOCH_CHECK(longest != nullptr);
  const auto masks = static_cast<size_t>(longest->masks);
  std::vector<char> image(by_slot.size() * sizeof(RankTable));
  const auto add = [&](const auto& values) {
    const size_t at = image.size();
    const auto* from = reinterpret_cast<const char*>(values.data());
    image.insert(image.end(), from, from + values.size() * sizeof(values[0]));
    while (image.size() % sizeof(RankTable) != 0) image.push_back(0);
    return at;
  };
  const size_t at_swapped = add(SwapStreams(*longest));
  struct Place {
    size_t ranks = 0, class_of = 0;
  };
  std::vector<std::optional<Place>> places;
  for (const ScOperatorPtr& one : by_slot) {
    if (one != nullptr && one->config.stoc_len == kLongest) {
      // full length: every level has the rank that registers compute from its code (DirectRanks<4>)
      places.emplace_back();
      continue;
    }
    std::optional<std::vector<uint8_t>> ranks(std::in_place, masks * RankTable::kLevels);
    if (one != nullptr) ranks = SwappedRanks(*MakeScOperator(one->config), *longest);
    STOCH_CHECK(ranks.has_value());
    const Classes classes = Classify(*ranks, masks);
    Place place;
    place.ranks = add(classes.ranks);
    place.class_of = add(classes.class_of);
    places.emplace_back(place);
  }
  std::shared_ptr<RankTables> made(new RankTables());
  made->longest_ = longest;
  made->memory_ = AllocateDevice(device, image.size());
  const auto* base = static_cast<const uint8_t*>(made->memory_.data());
  for (size_t slot = 0; slot < by_slot.size(); ++slot) {
    RankTable table;
    if (places[slot]) table.ranks = base + places[slot]->ranks, table.class_of = base + places[slot]->class_of;
    if (by_slot[slot] != nullptr) table.gain = by_slot[slot]->gain;
    std::memcpy(image.data() + slot * sizeof(RankTable), &table, sizeof table);
  }
  Upload(device, made->memory_.data(), image.data(), image.size());
  made->tables_ = reinterpret_cast<const RankTable*>(base);
  made->swapped_ = reinterpret_cast<const uint32_t*>(base + at_swapped);
  return made;
}

}  // namespace stoch::cuda
