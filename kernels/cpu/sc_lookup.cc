#include "kernels/cpu/sc_lookup.h"

#include <algorithm>

namespace stoch::cpu {

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
