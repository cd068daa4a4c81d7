// SPDX-License-Identifier: Apache-2.0
// What every backend refuses in the same words: weights, products and caches that no kernel could compute right.
//
// Errors: InvalidInput from every function here, naming the operand, what was expected and what was given.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/backend.h"

namespace stoch {

// Parts can be stacked into one weight: at least one, equal columns, a type that holds weights.
void CheckStack(std::span<const WeightSource> parts);

// A sum of counts over `dims` dimensions fits 32 bits, and so does an unipolar sum of codes. `where` names it.
void CheckAccumulator(const ScOperator& op, int64_t dims, std::string_view where);

// The operators of a KV cache fit its attention mode (models/sc_model_config.h has the same rules in flags'
// words).
void CheckKvOperators(const KvCacheSpec& spec);

// stripes is 1, or 2, 4 or 8 with pages of 64 positions.
void CheckStripes(const KvCacheSpec& spec);

// Says where the number is that a backend found in row `row` of the stack: tensor, row and column.
// Requires: 0 <= row < the parts' rows together; the row holds NaN, infinity, or a value that is none in float16.
[[noreturn]] void RejectNonFinite(std::span<const WeightSource> parts, int64_t row);

}  // namespace stoch
