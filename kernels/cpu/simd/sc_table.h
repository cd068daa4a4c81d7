// The count table of an SC operator as the inner loops read it.
#pragma once

#include <cstdint>

#include "kernels/sc/sc_operator.h"

namespace stoch::cpu {

// What:   for kSignMagnitude, every table row as 128 bytes of (count & 0xff), so that it fills two 64-byte registers
//         whatever sc_prec is. Rows that hold a count of 256 are "wide": a second row says with 1 where. They are few
//         (full-length streams, largest level), so kernels add 256 in a separate pass.
//         Other codes have no byte table: kernels read op->counts.
struct ScTable {  // plain pointers, for the kernels
  static constexpr int64_t kRowBytes = 128;

  const ScOperator* op = nullptr;
  const uint8_t* bytes = nullptr;       // [masks][levels][128], null unless kSignMagnitude
  const int32_t* wide_row = nullptr;    // [masks * levels]: index of its row in wide_bytes or -1; null if none is wide
  const uint8_t* wide_bytes = nullptr;  // [wide rows][128]
};

}  // namespace stoch::cpu
