// SPDX-License-Identifier: Apache-2.0
// The count table of an SC operator as the inner loops read it.
#pragma once

#include <cstdint>

#include "kernels/sc/sc_operator.h"

namespace stoch::cpu {

// For kSignMagnitude, every table row as 128 bytes of (count & 0xff), so that it fills two 64-byte registers whatever
// sc_prec is. Rows that hold a count of 256 are "wide": a second row says with 1 where. They are few (full-length
// streams, largest level), so kernels add 256 in a separate pass. Other codes have no byte table: kernels read
// op->counts. Rows that rise by at most 1 within every 8 levels (those of streams up to 128 cycles) are also stored as
// stairs: 16 bytes of the count at levels 0, 8, 16, ..., then 16 bytes whose bit j says whether level 8 * group + j + 1
// has one more than the level before. With mask = (1 << level % 8) - 1, count = base[level / 8] + popcount(rises[level
// / 8] & mask). One table row is a quarter of the 128 bytes.
struct ScTable {  // plain pointers, for the kernels
  static constexpr int64_t kRowBytes = 128;
  static constexpr int64_t kStairBytes = 32;
  static constexpr int kStairLevels = 8;

  const ScOperator* op = nullptr;
  const uint8_t* bytes = nullptr;       // [masks][levels][128], null unless kSignMagnitude
  const int32_t* wide_row = nullptr;    // [masks * levels]: index of its row in wide_bytes or -1; null if none is wide
  const uint8_t* wide_bytes = nullptr;  // [wide rows][128]
  const uint8_t* stairs = nullptr;      // [masks][levels][32], null unless every row of the operator is a staircase
};

}  // namespace stoch::cpu
