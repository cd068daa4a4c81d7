// SPDX-License-Identifier: Apache-2.0
// SC products of many rows of a by count vectors (PanelLoops).
#pragma once

#include "kernels/cpu/sc_product.h"

namespace stoch::cpu {

// How many of num_rows rows, counted from the first, ScPanelProduct multiplies in less time than blocks one by one; 0
// where an instruction set or a table has no count vectors.
int64_t PanelRows(const Simd& simd, const ScStreams& streams, int64_t num_rows);

// ScProduct of PanelRows() rows.
void ScPanelProduct(ThreadPool& pool, const Simd& simd, const ScStreams& streams, const ScRows& a, int64_t first_row,
                    int64_t num_rows, std::span<const ScTarget> targets);

}  // namespace stoch::cpu
