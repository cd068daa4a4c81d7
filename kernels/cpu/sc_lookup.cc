// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sc_lookup.h"

#include <algorithm>

namespace stoch::cpu {
namespace {

// The stairs of one table row; false if it has none.
bool MakeStairs(const int16_t* counts, int levels, uint8_t* stairs) {
  constexpr int kGroups = ScTable::kStairBytes / 2;
  if (levels > kGroups * ScTable::kStairLevels || counts[0] != 0) return false;
  std::fill(stairs, stairs + ScTable::kStairBytes, uint8_t{0});
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
  Array<uint8_t> stairs = MakeArray<uint8_t>(rows * ScTable::kStairBytes);
  for (int64_t row = 0; row < rows; ++row) {
    if (!MakeStairs(op.counts.data() + row * op.levels, op.levels, stairs.get() + row * ScTable::kStairBytes)) {
      return nullptr;
    }
  }
  return stairs;
}

// Addend `part` of a count cut in `parts`.
int Addend(int count, int parts, int part) { return (count + part) / parts; }

bool FitsPanel(const ScOperator& op, int parts) {
  for (size_t at = 0; at < op.counts.size(); ++at) {
    const bool largest = static_cast<int>(at % static_cast<size_t>(op.levels)) == op.levels - 1;
    if (op.counts[at] < 0 || Addend(op.counts[at], parts, parts - 1) > (largest ? 128 : 127)) return false;
  }
  return true;
}

void MakePanelParts(const ScOperator& op, ScLookup* lookup) {
  for (int parts = 1; parts <= 2 && lookup->panel_parts == 0; ++parts)
    lookup->panel_parts = FitsPanel(op, parts) ? parts : 0;
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
  lookup->stairs = MakeStairs(table);
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
