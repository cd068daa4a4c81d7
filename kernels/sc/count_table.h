// SPDX-License-Identifier: Apache-2.0
// Counts of a product as its user gives them, for gate=counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stoch {

struct CountTable {
  std::vector<int32_t> entries;  // [masks][levels][levels], index [mask][a][b], a the activation; |entry| <= 32767
  int masks = 1;                 // a power of two in 1..256
  int levels = 0;
  std::string sha256;  // digest of the entries as little-endian int32

  int32_t at(int mask, int a, int b) const {
    const auto row = static_cast<size_t>(mask) * static_cast<size_t>(levels) + static_cast<size_t>(a);
    return entries[row * static_cast<size_t>(levels) + static_cast<size_t>(b)];
  }
};

// Two tables are one if their entries and their shapes are.
struct CountTablePtr : std::shared_ptr<const CountTable> {
  using std::shared_ptr<const CountTable>::shared_ptr;
  friend bool operator==(const CountTablePtr& a, const CountTablePtr& b) {
    if (a.get() == b.get()) return true;
    return a.get() != nullptr && b.get() != nullptr && a->masks == b->masks && a->levels == b->levels &&
           a->entries == b->entries;
  }
};

// Errors: InvalidInput naming the table and the shapes that a quantizer of so many bits takes.
void CheckCountTable(const CountTable& table, int sc_prec, bool unipolar, const std::string& name);

}  // namespace stoch
