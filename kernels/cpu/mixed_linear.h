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
  int64_t first_chunk = 0;   // number of the part's chunk 0 when faults are drawn
  int64_t first_output = 0;  // output feature of the first row in the whole model's matrix

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
  std::span<const int64_t> tokens = {};       // experts: row of the call of each of its rows, ascending
  const float* row(int64_t i) const { return x + i * stride; }
};

// out = or += f @ w^T. Lengths follow the rule of the extras, as of one call, or are `forced` [rows][1 or chunks]. False
// if NaN or infinity was met. Those of an expert are shown as one record for each run of tokens: `unit` the expert,
// `first_position` the first token, lengths of the rest where there is one. ShowExperts comes before them.
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

// Whether a row's length depends on the other rows of its call.
inline bool ReadsCall(const ScLengthRule& rule) {
  return rule.normalise == ScNormalise::kCall || rule.scope == ScLengthScope::kFractions;
}
// The rows of one of several weights that are one call together: a layer's experts.
struct MixedPairs {
  MixedInput input;
  const ScOperator* op = nullptr;
  const ScExtras* extras = nullptr;
  const MixedWeight* weight = nullptr;
};
// Lengths of each, as MixedProduct may be forced to. Requires: a rule that ReadsCall.
std::vector<std::vector<int>> LengthsOfCall(Context& context, std::span<const MixedPairs> all);

// Shows that experts follow of a call of `tokens` rows: a record of so many rows and no lengths.
void ShowExperts(Context& context, const OpSite& site, const ScExtras& extras, int64_t tokens);

// Backend::ScMixedMatmul.
void ScMixedMatmul(Context& context, const TensorView& a, const TensorView& b, const ScOperatorPtr& op,
                   const ScExtras& extras, std::span<const int> lengths, const TensorView& out);

}  // namespace stoch::cpu
