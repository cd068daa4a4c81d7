// SPDX-License-Identifier: Apache-2.0
// Sees what ops work on while they run, for calibration, profiles and traces.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/calls.h"

namespace stoch {

// Stream lengths that rows of a product with mixed lengths ran at, or a protected part at one length.
struct ScLengthRecord {
  OpSite site;
  std::string_view op;  // "q_proj", "qk", ...
  int64_t unit = -1;    // query head; -1: none
  int64_t rows = 0;
  int64_t in_features = 0;  // qk: head_dim; av: positions that the last row sees
  int64_t out_features = 0;
  int64_t chunk = 0;                  // dimensions of a chunk
  int64_t lengths_per_row = 1;        // 1, or the number of chunks
  std::span<const int> lengths = {};  // [rows][lengths_per_row], cycles; 0 = pruned
  int64_t first_position = -1;        // attention: of the first row, which sees first_position + 1 positions
};

// Sees the operands of ops on the host, for calibration, profiles and traces. Calls come from the thread that issues
// ops; what is passed is valid during the call.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  // f(x) of a Linear: floats [rows][cols], rows `stride` apart.
  virtual void OnLinear(const LinearCall& /*call*/, const float* /*x*/, int64_t /*rows*/, int64_t /*cols*/,
                        int64_t /*stride*/) {}
  // Queries and keys are rotated.
  virtual void OnAttention(const AttentionCall& /*call*/, const PassLayout& /*layout*/) {}
  virtual void OnLengths(const ScLengthRecord& /*record*/) {}
};

}  // namespace stoch
