// SPDX-License-Identifier: Apache-2.0
// A binary multiplier given as all of its 65536 products, and how far it is from the exact one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stoch {

// How operands index a table. kFile: as the file says.
enum class ScTableCode : uint8_t { kFile, kSigned, kSignMagnitude, kUnsigned };
// Order of the operands of a signed table in its file: 0..127, -128..-1, or -128..127.
enum class ScTableOrder : uint8_t { kFile, kByte, kNumeric };

struct MultiplierTable {
  std::vector<int32_t> entries;  // [256][256], row = a; operands in numeric order, -128..127 if signed, else 0..255
  bool is_signed = true;
  std::string sha256;  // digest of the entries as little-endian int32

  int32_t at(int a, int b) const {  // operands as numbers
    const int shift = is_signed ? 128 : 0;
    return entries[static_cast<size_t>(a + shift) * 256 + static_cast<size_t>(b + shift)];
  }
};

// Two tables are one if their entries and operands are.
struct MultiplierTablePtr : std::shared_ptr<const MultiplierTable> {
  using std::shared_ptr<const MultiplierTable>::shared_ptr;
  friend bool operator==(const MultiplierTablePtr& a, const MultiplierTablePtr& b) {
    if (a.get() == b.get()) return true;
    return a.get() != nullptr && b.get() != nullptr && a->is_signed == b->is_signed && a->entries == b->entries;
  }
};

// e = T(a, b) - a b. MAE = mean |e|, WCE = max |e|, MRE = mean(|e| / max(1, |a b|)), EP = share of e != 0.
struct MultiplierError {
  double mae = 0, mre = 0, ep = 0, mse = 0, bias = 0;
  int64_t wce = 0;
};

// Over all pairs, or over those that a code uses: signed -127..127, sign_magnitude magnitudes 0..127, unsigned all.
// Bits: sums of integers are exact, one division; MRE sums in double, ascending a, then b.
MultiplierError MeasureMultiplier(const MultiplierTable& table);
MultiplierError MeasureMultiplier(const MultiplierTable& table, ScTableCode code);

}  // namespace stoch
