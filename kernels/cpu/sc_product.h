// SPDX-License-Identifier: Apache-2.0
// The product of quantized operands: integer sums, then back to real numbers (docs/sc_arithmetic.md#4-one-product).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/sc_hardware.h"
#include "kernels/cpu/sc_operands.h"

namespace stoch::cpu {

// Hardware that is not ideal, and where in a model it is.
struct ScHardwareUse {
  const ScHardware* hardware = nullptr;
  ScSite site;                                // site by which faults of accumulators are drawn
  int64_t first_chunk = 0;                    // number of the product's chunk 0 when faults are drawn
  std::span<const uint64_t> fault_rows = {};  // numbers of the rows of a; empty: site.first_row + row

  uint64_t FaultRowOf(int64_t row) const {
    return fault_rows.empty() ? site.first_row + static_cast<uint64_t>(row) : fault_rows[static_cast<size_t>(row)];
  }
};

// Where a @ b^T goes: out[n * row_step + m * col_step], set or added to. Steps in elements.
struct ScTarget {
  const ScBlocks* b = nullptr;
  float* out = nullptr;
  int64_t row_step = 0;
  int64_t col_step = 1;
  bool add = false;
  const ScHardwareUse* use = nullptr;  // null: ideal
};

// The work of one thread at a time: rows of a with blocks of a target's b.
struct ScItem {
  const ScTarget* target = nullptr;
  int64_t first_block = 0;
  int64_t num_blocks = 0;
  int64_t first_row = 0;
  int64_t num_rows = 0;
};

// The operators of a product: one, or one for each stream length, and which rows run at which.
struct ScStreams {
  std::span<const ScLookupPtr> lookups;  // by slot, equal but for their counts and gain; null: nothing is added
  std::span<const uint8_t> slots = {};   // [rows of a][slots_per_row]; empty: slot 0
  int64_t slots_per_row = 1;             // 1, or the number of chunks
};

// The product of rows [first_row, first_row + num_rows) of `a` with every target's b, which share a's chunks.
// Requires: dims * max count < 2^31 (checked when weights are made).
// Bits:     identical for every variant, thread count and way of cutting the work.
void ScProduct(ThreadPool& pool, const Simd& simd, const ScStreams& streams, const ScRows& a, int64_t first_row,
               int64_t num_rows, std::span<const ScTarget> targets);
void ScProduct(ThreadPool& pool, const Simd& simd, const ScLookupPtr& lookup, const ScRows& a, int64_t first_row,
               int64_t num_rows, std::span<const ScTarget> targets);

// Sets or adds num_cols columns of y [num_rows][y_step] to rows first_row.. and columns first_col.. of the target.
void StoreProduct(const float* y, int64_t y_step, const ScTarget& target, int64_t first_row, int64_t num_rows,
                  int64_t first_col, int64_t num_cols);

}  // namespace stoch::cpu
