// SPDX-License-Identifier: Apache-2.0
// SC products with mixed stream lengths, protected channels and smoothing (ScExtras).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/context.h"
#include "kernels/cpu/sc_product.h"

namespace stoch::cpu {

// Some of a weight's input channels as a product of their own.
struct MixedPart {
  std::vector<int32_t> channels;     // ascending
  std::vector<ScLookupPtr> lookups;  // by slot; null: length 0
  ScBlocks blocks;
  ScHardwarePtr hardware;    // null: ideal
  int64_t first_chunk = 0;   // what its chunk 0 counts as
  int64_t first_output = 0;  // of the whole model's matrix, of the first row

  bool empty() const { return channels.empty(); }
};

struct MixedWeight {
  MixedPart rest;  // the channels that rows are dispatched by
  MixedPart protected_part;
  int64_t bytes() const { return rest.blocks.bytes() + protected_part.blocks.bytes(); }
};

// Smooths, divides and quantizes rows [first, first + count) of a weight. Returns the first row with NaN or infinity,
// or -1. Errors: InvalidInput for channels or a smoothing that do not fit `cols`.
int64_t MakeMixedWeight(Context& context, const ScOperatorPtr& op, const ScExtras& extras, const RowReader& reader,
                        int64_t first, int64_t count, int64_t total_rows, int64_t cols, MixedWeight* weight);

// Rows of floats.
struct MixedInput {
  const float* x = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const uint64_t> fault_rows = {};  // as of a LinearCall
  const float* row(int64_t i) const { return x + i * stride; }
};

// out = or += f @ w^T. Lengths follow the rule of the extras, of one call for each of `calls` (row counts, in order),
// or are `forced` [rows][1 or chunks]. False if NaN or infinity was met.
// Bits: as the definition of docs/research.md, whatever the variant and the threads.
struct MixedTarget {
  float* out = nullptr;
  int64_t row_step = 0;
  int64_t col_step = 1;
  bool add = false;
};
bool MixedProduct(Context& context, const MixedInput& input, const ScOperator& op, const ScExtras& extras,
                  const MixedWeight& weight, std::span<const int> forced, const OpSite& site,
                  const MixedTarget& target);

// Backend::ScMixedMatmul.
void ScMixedMatmul(Context& context, const TensorView& a, const TensorView& b, const ScOperatorPtr& op,
                   const ScExtras& extras, std::span<const int> lengths, const TensorView& out);

}  // namespace stoch::cpu
