// SPDX-License-Identifier: Apache-2.0
// The memory of a ScTable: the count table of an SC operator in the form the block kernels read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/simd/sc_table.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cpu {

// Owns the memory behind a ScTable.
struct ScLookup {
  ScOperatorPtr op;
  Array<uint8_t> bytes;
  std::vector<int32_t> wide_row;
  Array<uint8_t> wide_bytes;
  Array<uint8_t> averages, stairs;  // one of them at most
  // Counts as one or two addends of at most 127, but 128 at the largest level of b, so that a signed addend fits a byte:
  // what PanelLoops adds up. One addend is `bytes`; none where counts are negative or above 256.
  int panel_parts = 0;
  Array<uint8_t> halves[2];
  const uint8_t* panel_part(int part) const { return panel_parts == 1 ? bytes.get() : halves[part].get(); }

  ScTable table() const {
    return {op.get(),         bytes.get(),    wide_row.empty() ? nullptr : wide_row.data(),
            wide_bytes.get(), averages.get(), stairs.get()};
  }
  bool has_bytes() const { return bytes != nullptr; }
  int64_t row(int64_t dim, int code) const {  // row index of a sign-magnitude code at a dimension
    return (dim & (op->masks - 1)) * op->levels + (code & 0x7f);
  }
};

using ScLookupPtr = std::shared_ptr<const ScLookup>;

ScLookupPtr MakeScLookup(ScOperatorPtr op);

}  // namespace stoch::cpu
