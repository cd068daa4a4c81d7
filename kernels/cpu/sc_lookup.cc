// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sc_lookup.h"

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/sc/closed_form/closed_form.h"

namespace stoch::cpu {
namespace {

// The stairs of one table row; false if it has none.
bool MakeStairs(const int16_t* counts, int levels, uint8_t* stairs) {
  constexpr int kGroups = ScTable::kPairBytes / 2;
  if (levels > kGroups * ScTable::kStairLevels || counts[0] != 0) return false;
  std::fill(stairs, stairs + ScTable::kPairBytes, uint8_t{0});
  for (int level = 0; level < levels; ++level) {
    const int group = level / ScTable::kStairLevels;
    const int step = level % ScTable::kStairLevels;
    const int count = counts[level];
    if (count < 0 || count > 255) return false;
    if (step == 0) {
      stairs[group] = static_cast<uint8_t>(count);
      continue;
    }
    const int rise = count - counts[level - 1];
    if (rise < 0 || rise > 1) return false;
    stairs[kGroups + group] = static_cast<uint8_t>(stairs[kGroups + group] | rise << (step - 1));
  }
  return true;
}

// The stairs of every row, or nothing.
Array<uint8_t> MakeStairs(const ScOperator& op) {
  const int64_t rows = static_cast<int64_t>(op.masks) * op.levels;
  Array<uint8_t> stairs = MakeArray<uint8_t>(rows * ScTable::kPairBytes);
  for (int64_t row = 0; row < rows; ++row) {
    if (!MakeStairs(op.counts.data() + row * op.levels, op.levels, stairs.get() + row * ScTable::kPairBytes)) {
      return nullptr;
    }
  }
  return stairs;
}

// The entries of k enabled cycles as bytes; false where they do not fit.
bool MakeAverages(const ScAverageTables& tables, uint8_t* averages) {
  constexpr int kEntries = ScTable::kPairBytes / 2;
  std::array<int, kEntries> high{}, low{};
  std::copy(tables.high.begin(), tables.high.end(), high.begin());
  std::copy(tables.low.begin(), tables.low.end(), low.begin());
  // Where every cycle is enabled, all sums are even and the largest entry is 256: 255 and an odd sum give the same.
  if (tables.high.back() > 255) {
    high[tables.high.size() - 1] = 255;
    for (int& entry : low) ++entry;
  }
  for (size_t i = 0; i < kEntries; ++i) {
    if (std::max(high[i], low[i]) > 255) return false;
    averages[i] = static_cast<uint8_t>(high[i] ^ ScTable::kAverageComplement);
    averages[kEntries + i] = static_cast<uint8_t>(low[i] ^ ScTable::kAverageComplement);
  }
  return true;
}

// Whether the stored entries give the counts of one row.
bool AreCounts(const uint8_t* averages, const int16_t* counts, int levels) {
  for (int level = 0; level < levels; ++level) {
    const int v = level + (level > 63 ? 1 : 0);
    const int high = averages[v >> 4] ^ ScTable::kAverageComplement;
    const int low = averages[ScTable::kPairBytes / 2 + (v & 15)] ^ ScTable::kAverageComplement;
    if ((high + low) / 2 != counts[level]) return false;
  }
  return true;
}

// The averages of every row, or nothing.
Array<uint8_t> MakeAverages(const ScOperator& op) {
  constexpr int kLog2Block = 3;
  constexpr int kGrid = 128;  // 8 high digits of 16 low ones, which fit 16 entries each with the boundary of all
  if (op.config.rng_levels != kGrid || op.levels != kGrid) return nullptr;
  const std::optional<ScClosedForm> form = MakeScClosedForm(op, kLog2Block);
  if (!form) return nullptr;
  const int64_t rows = static_cast<int64_t>(op.masks) * op.levels;
  Array<uint8_t> averages = MakeArray<uint8_t>(rows * ScTable::kPairBytes);
  for (int64_t row = 0; row < rows; ++row) {
    uint8_t* entries = averages.get() + row * ScTable::kPairBytes;
    const int k = form->enabled[static_cast<size_t>(row)];
    if (!MakeAverages(MakeAverageTables(*form, static_cast<int>(row / op.levels), k), entries) ||
        !AreCounts(entries, op.counts.data() + row * op.levels, op.levels)) {
      return nullptr;
    }
  }
  return averages;
}

// Addend `part` of a count cut in `parts`.
int Addend(int count, int parts, int part) { return (count + part) / parts; }

bool CountsFitBytes(const ScOperator& op, int parts) {
  for (size_t at = 0; at < op.counts.size(); ++at) {
    const bool largest = static_cast<int>(at % static_cast<size_t>(op.levels)) == op.levels - 1;
    if (op.counts[at] < 0 || Addend(op.counts[at], parts, parts - 1) > (largest ? 128 : 127)) return false;
  }
  return true;
}

void MakePanelParts(const ScOperator& op, ScLookup* lookup) {
  for (int parts = 1; parts <= 2 && lookup->panel_parts == 0; ++parts)
    lookup->panel_parts = CountsFitBytes(op, parts) ? parts : 0;
  if (lookup->panel_parts != 2) return;
  const int64_t rows = static_cast<int64_t>(op.masks) * op.levels;
  for (int part = 0; part < 2; ++part) {
    lookup->halves[part] = MakeArray<uint8_t>(rows * ScTable::kRowBytes);
    for (int64_t row = 0; row < rows; ++row) {
      for (int b = 0; b < op.levels; ++b) {
        const int count = op.counts[static_cast<size_t>(row * op.levels + b)];
        lookup->halves[part][static_cast<size_t>(row * ScTable::kRowBytes + b)] =
            static_cast<uint8_t>(Addend(count, 2, part));
      }
    }
  }
}

}  // namespace

ScLookupPtr MakeScLookup(ScOperatorPtr op) {
  auto lookup = std::make_shared<ScLookup>();
  lookup->op = std::move(op);
  const ScOperator& table = *lookup->op;
  if (table.code != ScCode::kSignMagnitude) return lookup;

  const int64_t rows = static_cast<int64_t>(table.masks) * table.levels;
  lookup->bytes = MakeArray<uint8_t>(rows * ScTable::kRowBytes);
  std::vector<int64_t> wide;
  for (int64_t row = 0; row < rows; ++row) {
    const int16_t* counts = table.counts.data() + row * table.levels;
    uint8_t* bytes = lookup->bytes.get() + row * ScTable::kRowBytes;
    for (int b = 0; b < table.levels; ++b) bytes[b] = static_cast<uint8_t>(counts[b] & 0xff);
    if (std::any_of(counts, counts + table.levels, [](int16_t count) { return count > 255; })) wide.push_back(row);
  }
  lookup->averages = MakeAverages(table);
  if (lookup->averages == nullptr) lookup->stairs = MakeStairs(table);
  MakePanelParts(table, lookup.get());
  if (wide.empty()) return lookup;

  lookup->wide_row.assign(static_cast<size_t>(rows), -1);
  lookup->wide_bytes = MakeArray<uint8_t>(static_cast<int64_t>(wide.size()) * ScTable::kRowBytes);
  for (size_t i = 0; i < wide.size(); ++i) {
    lookup->wide_row[static_cast<size_t>(wide[i])] = static_cast<int32_t>(i);
    const int16_t* counts = table.counts.data() + wide[i] * table.levels;
    uint8_t* bytes = lookup->wide_bytes.get() + static_cast<int64_t>(i) * ScTable::kRowBytes;
    for (int b = 0; b < table.levels; ++b) bytes[b] = static_cast<uint8_t>(counts[b] >> 8);
  }
  return lookup;
}

}  // namespace stoch::cpu
