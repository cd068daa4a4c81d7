// The count table of an SC operator in the form the block kernels read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/memory.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cpu {

// What:   for kSignMagnitude, every table row as 128 bytes of (count & 0xff), so that it fills two 64-byte registers
//         whatever sc_prec is. Rows that hold a count of 256 are "wide": a second row says with 1 where. They are few
//         (full-length streams, largest level), so kernels add 256 in a separate pass.
//         Other codes have no byte table: kernels read op->counts.
struct ScLookup {
  static constexpr int64_t kRowBytes = 128;

  ScOperatorPtr op;
  Array<uint8_t> bytes;           // [masks][levels][128], empty unless kSignMagnitude
  std::vector<int32_t> wide_row;  // [masks * levels]: index of its row in wide_bytes or -1; empty if none is wide
  Array<uint8_t> wide_bytes;      // [wide rows][128]

  bool has_bytes() const { return bytes != nullptr; }
  int64_t row(int64_t dim, int code) const {  // row index of a sign-magnitude code at a dimension
    return (dim & (op->masks - 1)) * op->levels + (code & 0x7f);
  }
};

using ScLookupPtr = std::shared_ptr<const ScLookup>;

ScLookupPtr MakeScLookup(ScOperatorPtr op);

}  // namespace stoch::cpu
