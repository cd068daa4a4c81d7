// SPDX-License-Identifier: Apache-2.0
// The count table of an SC operator as the inner loops read it.
#pragma once

#include <cstdint>

#include "kernels/sc/sc_operator.h"

namespace stoch::cpu {

// For kSignMagnitude, every table row as 128 bytes of (count & 0xff), so that it fills two 64-byte registers whatever
// sc_prec is. Rows that hold a count of 256 are "wide": a second row says with 1 where. They are few (full-length
// streams, largest level), so kernels add 256 in a separate pass. Other codes have no byte table: kernels read
// op->counts.
//
// Many operators have rows of a quarter of that, 16 entries twice, in one of two forms.
// Averages, form B of kernels/sc/closed_form/closed_form.h in blocks of 8 cycles: with v = level + (level > 63) the count is
// (first[v >> 4] + second[v & 15]) / 2 rounded down. Where the instruction set's average rounds up, entries are stored
// as their complements, whose average is the complement of the count.
// Stairs, where a row rises by at most 1 within every 8 levels: first[level / 8] + popcount(second[level / 8] & mask),
// mask = (1 << level % 8) - 1: the count at levels 0, 8, 16, ..., and bit j says whether level 8 * group + j + 1 has one
// more than the level before.
enum class ScForm : uint8_t { kCounts, kBytes, kStairs, kAverages };

struct ScTable {  // plain pointers, for the kernels
  static constexpr int64_t kRowBytes = 128;
  static constexpr int64_t kPairBytes = 32;
  static constexpr int kStairLevels = 8;
#if defined(__aarch64__)
  static constexpr uint8_t kAverageComplement = 0;
#else
  static constexpr uint8_t kAverageComplement = 0xff;
#endif

  const ScOperator* op = nullptr;
  const uint8_t* bytes = nullptr;       // [masks][levels][128], null unless kSignMagnitude
  const int32_t* wide_row = nullptr;    // [masks * levels]: index of its row in wide_bytes or -1; null if none is wide
  const uint8_t* wide_bytes = nullptr;  // [wide rows][128]
  const uint8_t* averages = nullptr;    // [masks][levels][32], null unless every row of the operator has the form
  const uint8_t* stairs = nullptr;      // like averages; null if averages, which take less time, are set

  // The fastest form that the table has, for instruction sets whose look-ups are of 16 entries.
  ScForm form() const {
    if (bytes == nullptr) return ScForm::kCounts;
    return averages != nullptr ? ScForm::kAverages : stairs != nullptr ? ScForm::kStairs : ScForm::kBytes;
  }
};

}  // namespace stoch::cpu
