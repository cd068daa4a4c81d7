// SPDX-License-Identifier: Apache-2.0
// Everything a kernel knows of stochastic computing: tables. Generators and gates end here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/sc/sc_config.h"

namespace stoch {

// How an operand's level is stored in its code byte.
enum class ScCode : uint8_t {
  kSignMagnitude,  // bipolar: bit 7 = negative, bits 0..6 = |q|; the product's sign is applied outside the table
  kOffset,         // bipolar through kXnor: q + Q, signs live in the table
  kAsymmetric,     // unipolar: q with a zero point
};

// One resolved configuration with its tables; immutable, shared by every weight and cache that uses it.
// Source: docs/sc_arithmetic.md#4-one-product: count(mask, |qa|, |qb|) is the whole of SC arithmetic.
struct ScOperator {
  ScConfig config;  // resolved
  ScCode code = ScCode::kSignMagnitude;
  int q_max = 127;   // Q: 2^(p-1) - 1, or 2^p - 1 for kAsymmetric
  int levels = 128;  // side of the table: 2^(p-1) for kSignMagnitude, 2^p otherwise
  int masks = 64;    // distinct masks, a power of two; dimension d uses mask d & (masks - 1); 1 where none is applied
  float gain = 0;    // float(Q * Q) / float(L)

  // [masks][levels][levels], index (mask * levels + a) * levels + b. 0..stoc_len; -stoc_len..stoc_len for kOffset.
  std::vector<int16_t> counts;
  int max_count = 0;  // largest |entry| that occurs
  // In place of counts where an entry of a multiplier table needs more than 16 bits.
  std::vector<int32_t> wide_counts;
  float scale_floor = 1e-5f;    // the least max |x| of a scope
  bool is_int_product = false;  // kOffset, one mask: every entry is the product of its operands

  // The count table as streams, where the gate allows it (kEnabled, kAnd): count = popcount of the first `rank` bits of
  // side a's stream, bits taken in the order in which side b's source values ascend (ties by cycle).
  bool has_streams = false;
  int stream_words = 0;             // ceil(stoc_len / 64)
  std::vector<uint64_t> streams_a;  // [masks][levels][stream_words], bit j of word j / 64; bits past stoc_len are 0
  std::vector<uint16_t> ranks_b;    // [masks][levels], 0..stoc_len

  int count(int mask, int a, int b) const {
    const size_t at = (static_cast<size_t>(mask) * static_cast<size_t>(levels) + static_cast<size_t>(a)) *
                          static_cast<size_t>(levels) +
                      static_cast<size_t>(b);
    return wide_counts.empty() ? counts[at] : wide_counts[at];
  }
};

using ScOperatorPtr = std::shared_ptr<const ScOperator>;

// Resolves `config` and builds its tables; equal configurations share one operator while it lives.
// Errors: InvalidInput as Resolve.
// Threads: safe.
ScOperatorPtr MakeScOperator(const ScConfig& config);

}  // namespace stoch
