// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/closed_form/tile_form.h"

#include <bit>

#include "kernels/sc/closed_form/closed_form.h"
#include "kernels/sc/number_source.h"

namespace stoch {
namespace {

constexpr int kLog2Block = 3;
constexpr int kLows = 16;
constexpr int kLevels = 128;

// With a sum of lows that x < 0 takes from the next block: -T = -q h - P - G(q + 1) + (NOT delta AND lambda(q)).
ScTileEntry MakeEntry(const ScClosedForm& form, int mask, int level, bool negative) {
  const auto at = [](int row, int columns, int column) {
    return static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
  };
  const int k = form.enabled[at(mask, form.levels, level)];
  const int q = k / form.block;
  const int high = form.high_pattern[at(mask, form.cycles + 1, k)];
  const int low = form.low_pattern[at(mask, form.cycles / form.block + 1, q)];
  const auto low_sum = [&](int l) {
    return form.low_sums[at(low, form.lows, l)] + (negative ? form.low_steps[at(low, form.lows, l)] : 0);
  };
  ScTileEntry entry;
  for (int h = 0; h < form.block; ++h) {
    entry.bits |= static_cast<uint32_t>(form.high_steps[at(high, form.block + 1, h)]) << h;
  }
  for (int l = 0; l < form.lows; ++l) {
    entry.low_steps |= static_cast<uint16_t>(form.low_steps[at(low, form.lows, l)] << l);
    if (l > 0) entry.bits |= static_cast<uint32_t>(low_sum(l) - low_sum(l - 1)) << (form.block + l - 1);
  }
  if (negative) entry.bits ^= kTileFormBits;
  const int factor = negative ? -q : q;
  entry.factor = static_cast<int8_t>(factor);
  entry.correction = static_cast<int8_t>(factor + (negative ? 1 : 0) - std::popcount(entry.bits) - 1);
  return entry;
}

}  // namespace

bool HasTileForm(const ScOperator& op) {
  if (op.code != ScCode::kSignMagnitude || op.levels > kLevels || op.config.stoc_len > kLevels ||
      op.config.rng_levels != kTileFormBlock * kLows) {
    return false;
  }
  const std::vector<int> boundaries = LevelBoundaries(op.levels, op.q_max, op.config.rng_levels);
  for (int level = 0; level < op.levels; ++level) {
    if (boundaries[static_cast<size_t>(level)] != level + level / 64) return false;
  }
  return HasClosedForm(op, kLog2Block);
}

std::optional<std::vector<ScTileEntry>> MakeScTileEntries(const ScOperator& op) {
  if (!HasTileForm(op)) return std::nullopt;
  const std::optional<ScClosedForm> form = MakeScClosedForm(op, kLog2Block);
  if (!form) return std::nullopt;
  std::vector<ScTileEntry> entries(static_cast<size_t>(op.masks) * 256);
  for (int mask = 0; mask < op.masks; ++mask) {
    for (int level = 0; level < op.levels; ++level) {
      for (const bool negative : {false, true}) {
        entries[static_cast<size_t>(mask) * 256 + static_cast<size_t>(level + (negative ? 128 : 0))] =
            MakeEntry(*form, mask, level, negative);
      }
    }
  }
  return entries;
}

int TileFormProduct(const ScTileEntry& entry, uint8_t a, uint8_t b) {
  const int level = b & 0x7f;
  const int boundary = level + level / 64;
  const int h = boundary / kLows;
  const int l = boundary % kLows;
  const bool negative = b >= 128;
  const int s = negative ? -1 : 1;
  const int n = negative ? 1 : 0;
  uint32_t ones = ((1u << h) - 1) | (((1u << l) - 1) << kTileFormBlock);
  if (negative) ones = ~ones;
  const uint32_t low_step = uint32_t{entry.low_steps} >> l & 1;
  const uint32_t step = h < kTileFormBlock ? entry.bits >> h & low_step : 0;
  return std::popcount(ones & entry.bits) + entry.factor * (s * h - n) + (a >= 128 ? -s * (h + l) - n : 0) +
         n * entry.correction + static_cast<int>(step ^ static_cast<uint32_t>(n));
}

}  // namespace stoch
