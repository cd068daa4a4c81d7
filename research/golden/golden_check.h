// SPDX-License-Identifier: Apache-2.0
// Whether a recorded case fits together, before anything computes with it.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/sc/sc_config.h"
#include "research/calibrate/staircase.h"
#include "research/reference.h"

namespace stoch {

// Errors of all: InvalidInput saying what does not fit.

// a [n, d], b [m, d], d above 0; `smooth` [d] or empty.
void CheckGoldenOperands(const HostMatrix& a, const HostMatrix& b, std::span<const float> smooth);
// One length for each row, or each (row, chunk) of `cols` channels.
void CheckGoldenLengths(std::span<const int> lengths, int64_t rows, int64_t cols, const ScConfig& config);
// Ascending, in 0..cols-1.
void CheckGoldenChannels(std::span<const int32_t> channels, int64_t cols);
// p [n, positions], v [positions, head_dim]; row n sees positions 0..start + n, all of them there.
void CheckGoldenAttention(const HostMatrix& p, const HostMatrix& v, std::span<const int> lengths, bool is_int,
                          int64_t start);
// Errors [bins][levels] and weights [bins] for u [bins].
void CheckGoldenStairs(std::span<const StaircaseBucket> buckets, size_t levels);

}  // namespace stoch
